"""Sub-samples that find their ranks, in processes of their own and in this one."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.forked import run_python
from tests.samples.conversations.speakers import make_config
from tests.samples.schedules import schedule_process
from zindex.datasets.data_schedule import HybridCPDataLoaderWrapper
from zindex.datasets.utils import Split
from zindex.datasets.varlen_dataset import VarlenDataset
from zindex.errors import ConfigError, SourceError
from zindex.samples.schedules.balanced_context import BalancedCPScheduler

CONFIG = SimpleNamespace(max_seqlen_per_dp_cp_rank=8)


def run(
    folder: Path,
    *,
    num_ranks: int,
    context_size: int,
    theirs: bool = False,
    left_out: tuple[str, ...] = (),
) -> list[Any]:
    """Return what each rank says."""
    settings = {
        "num_ranks": num_ranks,
        "context_size": context_size,
        "folder": str(folder),
        "max_length": 8,
        "theirs": theirs,
        "left_out": left_out,
    }
    folder.mkdir()
    run_python("-m", "tests.samples.schedules.schedule_process", json.dumps(settings), check=True)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(num_ranks)]


@pytest.mark.parametrize(
    ("num_ranks", "context_size"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)]
)
def test_every_rank_gets_its_scheduled_samples(
    tmp_path: Path, num_ranks: int, context_size: int
) -> None:
    said = run(tmp_path / "ours", num_ranks=num_ranks, context_size=context_size)
    scheduler = BalancedCPScheduler(8, SimpleNamespace(size=lambda: num_ranks))
    for step in range(schedule_process.NUM_BATCHES):
        samples: list[dict[str, torch.Tensor]] = []
        for reader in range(num_ranks // context_size):
            for sample in schedule_process.draw_batch(reader, step):
                bounds = sample.pop("cu_seqlens").tolist()
                sample.pop("max_seqlen")
                for start, stop in pairwise(bounds):
                    if start < stop:
                        samples.append({k: v[start:stop] for k, v in sample.items()})
        lengths = [(i, len(sample["tokens"])) for i, sample in enumerate(samples)]
        _, ids = scheduler.get_groups_and_subsamples(lengths)
        for rank in range(num_ranks):
            got, told = said[rank][step]
            assert told == ids
            mine = sorted(i for group in ids for i in group[rank])
            assert got == schedule_process.summarize({i: samples[i] for i in mine})


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "context_size"), [(4, 2), (2, 1), (2, 2)])
def test_results_equal_megatron_cores(tmp_path: Path, num_ranks: int, context_size: int) -> None:
    pytest.importorskip("megatron.core.datasets.data_schedule")
    # Megatron Core's sends tensors of one dimension alone.
    settings: Any = {"num_ranks": num_ranks, "context_size": context_size, "left_out": ("pairs",)}
    ours = run(tmp_path / "ours", **settings)
    assert ours == run(tmp_path / "theirs", **settings, theirs=True)


def test_one_rank_gets_all(groups: Any) -> None:
    batch = [
        {
            "tokens": torch.arange(6),
            "cu_seqlens": torch.tensor([0, 2, 2, 6, 6]),
            "dataset_id": torch.tensor(3),
            "path": "p",
        }
    ]
    wrapper = HybridCPDataLoaderWrapper(iter([batch]), CONFIG, groups)
    assert isinstance(wrapper.cp_balancing_scheduler, BalancedCPScheduler)
    [(samples, ids)] = list(wrapper)
    assert samples is not None
    assert {i: sample["tokens"].tolist() for i, sample in samples.items()} == {
        0: [0, 1],
        1: [2, 3, 4, 5],
    }
    assert list(samples[0]) == ["tokens"]
    assert ids == [[[1, 0]]]


def test_samples_of_one_length_each_are_sub_samples(groups: Any) -> None:
    texts: Any = ["abc", "abcdefg"]
    dataset = VarlenDataset(texts, "p", range(2), None, Split.train, make_config())
    wrapper = HybridCPDataLoaderWrapper(iter([dataset.__getitems__([0, 1])]), CONFIG, groups)
    [(samples, _)] = list(wrapper)
    assert samples is not None
    for number, sample in samples.items():
        assert list(sample) == ["tokens", "labels", "loss_mask", "position_ids"]
        assert all(torch.equal(sample[name], dataset[number][name]) for name in sample)


def test_ranks_without_data_get_none(groups: Any) -> None:
    assert next(HybridCPDataLoaderWrapper(None, CONFIG, groups)) == (None, None)


def test_megatron_cores_scheduler_takes_precedence(groups: Any, installed: dict[str, Any]) -> None:
    class Scheduler(BalancedCPScheduler):
        pass

    installed["megatron.core.pipeline_parallel.hybrid_cp_schedule"] = SimpleNamespace(
        BalancedCPScheduler=Scheduler
    )
    installed["megatron.core.parallel_state"] = SimpleNamespace(
        get_data_parallel_group=lambda with_context_parallel=False: groups.dp,
        get_tensor_model_parallel_group=lambda: groups.tp,
    )
    wrapper = HybridCPDataLoaderWrapper(None, CONFIG)
    assert wrapper.dp_group is groups.dp
    assert type(wrapper.cp_balancing_scheduler) is Scheduler


def test_errors(groups: Any) -> None:
    nothing = [{"tokens": torch.arange(0), "cu_seqlens": torch.tensor([0, 0])}]
    with pytest.raises(SourceError, match="must have tokens in each batch, rank 0 of 1 has none"):
        next(HybridCPDataLoaderWrapper(iter([nothing]), CONFIG, groups))
    groups.tp = None
    with pytest.raises(
        ConfigError, match=r"needs the process groups dp_cp, dp and tp, got .* None; make all of"
    ):
        HybridCPDataLoaderWrapper(None, CONFIG, groups)
    with pytest.raises(ConfigError, match="needs process groups, megatron-core has none without"):
        HybridCPDataLoaderWrapper(None, CONFIG)
