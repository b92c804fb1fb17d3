"""Rounds of work, against Megatron Core's scheduler and by its laws."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zindex.errors import ConfigError, PlanError
from zindex.samples.schedules.balanced_context import BalancedCPScheduler


def group_of(size: int) -> Any:
    return SimpleNamespace(size=lambda: size)


def draw(number: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Return ranks, tokens of a rank and sub-samples, none too long for all ranks."""
    generator = np.random.default_rng(number)
    num_ranks = 2 ** int(generator.integers(0, 5))
    most = int(generator.integers(1, 200))
    spread = generator.choice([0.3, 1.0, 2.0])
    lengths = np.exp(generator.normal(np.log(most), spread, generator.integers(0, 60)))
    lengths = np.clip(lengths.astype(int), 1, most * num_ranks)
    return num_ranks, most, list(enumerate(lengths.tolist()))


@pytest.mark.parametrize("number", range(300))
def test_rounds_are_megatron_cores(number: int) -> None:
    theirs = pytest.importorskip("megatron.core.pipeline_parallel.hybrid_cp_schedule")
    num_ranks, most, samples = draw(number)
    ours = BalancedCPScheduler(most, group_of(num_ranks))
    other = theirs.BalancedCPScheduler(most, group_of(num_ranks))
    expected = other.get_groups_and_subsamples(samples, None)
    assert ours.get_groups_and_subsamples(samples) == expected
    ordered = sorted(samples, key=lambda sample: sample[1], reverse=True)
    for scheduler in (ours, other):
        scheduler.result = scheduler.next_hdp_group(
            ordered, scheduler.get_total_workload, num_ranks, delta=0.2
        )
    assert ours.result == other.result  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", range(20))
def test_every_sub_sample_is_worked_on_once(number: int) -> None:
    num_ranks, most, samples = draw(number)
    scheduler = BalancedCPScheduler(most, group_of(num_ranks))
    lengths = dict(samples)
    groups, ids = scheduler.get_groups_and_subsamples(samples)
    seen: Counter[int] = Counter()
    for tokens, names in zip(groups, ids, strict=True):
        assert all(names)
        assert [[lengths[i] for i in rank] for rank in names] == tokens
        shares = Counter(i for rank in names for i in rank)
        for i, share in shares.items():
            assert share >= scheduler.gpus_needed(lengths[i])
        seen.update(shares.keys())
    assert seen == Counter(lengths.keys())


def test_workloads() -> None:
    scheduler = BalancedCPScheduler(10, group_of(4))
    assert [scheduler.gpus_needed(n) for n in (1, 10, 11, 20, 21, 40)] == [1, 1, 2, 2, 4, 4]
    assert scheduler.get_total_workload(20) == 200
    assert scheduler.get_total_workload(20, 4) == 100


def test_errors() -> None:
    with pytest.raises(ConfigError, match="max_seqlen_per_dp_cp_rank must be at least 1 token"):
        BalancedCPScheduler(0, group_of(4))
    scheduler = BalancedCPScheduler(10, group_of(4))
    with pytest.raises(PlanError, match="a sub-sample of 41 tokens needs 8 ranks of 10 tokens"):
        scheduler.get_groups_and_subsamples([(0, 41), (1, 5)])
    with pytest.raises(ConfigError, match="strategy must be 'dp', got 'pp'"):
        scheduler.next_hdp_group([(0, 5)], scheduler.get_total_workload, 4, strategy="pp")
    odd = BalancedCPScheduler(10, group_of(5))
    with pytest.raises(PlanError, match="one of 2 ranks cannot; give a number of ranks that is"):
        odd.get_groups_and_subsamples([(0, 20), (1, 20)])
