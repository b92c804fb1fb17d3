"""Figures of runs of every kind, against their torch datasets read sample by sample."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import make_config, make_run
from tests.inspection.answers.brute_force import KINDS, draw_run
from zindex.config import DatasetConfig
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers import run_order
from zindex.plan.packing import PackingRules
from zindex.reporting.figures import measure_run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [400, 401])
def test_figures(kind: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, seed, tmp_path, write_corpus)
    found = measure_run(run.config, split=run.split)
    size = len(run.samples)
    assert (found.num_samples, found.num_observed, found.is_exact) == (size, size, True)
    assert found.num_tokens == sum(len(sample.tokens) for sample in run.samples)
    assert found.problem is None
    for number, item in enumerate(found.datasets):
        own = [sample for sample in run.samples if sample.dataset == number]
        assert item.num_samples == len(own)
        assert item.share == pytest.approx(len(own) / size)
        tokens = sum(len(sample.tokens) for sample in own)
        if item.num_epochs is not None and item.num_tokens:
            assert item.num_epochs == pytest.approx(tokens / item.num_tokens)
        repeated = sum(sample.epoch > 0 for sample in own) / max(1, len(own))
        assert item.repeated_share == pytest.approx(repeated)
    fill = found.fill
    assert fill is not None
    documents = [{run.locate(token)[:2] for token in sample.text} for sample in run.samples]
    if kind != "single":  # a document may follow itself where an epoch ends
        assert fill.mean_documents >= np.mean(list(map(len, documents))) - 1e-9
    starts = [run.locate(sample.text[0])[2] > 0 for sample in run.samples]
    assert fill.cut_share == pytest.approx(np.mean(starts))
    if kind != "edited":
        capacity = size * run.config.sequence_length
        held = sum(len(sample.tokens) for sample in run.samples)
        assert fill.filled_share == pytest.approx(held / capacity)
    if found.mix is not None:
        _check_mix(found.mix, [sample.dataset for sample in run.samples])
    json.dumps(found.to_json())


def _check_mix(mix: object, datasets: list[int]) -> None:
    """Compare windows with counts."""
    from zindex.reporting.mix import MixFigures

    assert isinstance(mix, MixFigures)
    windows = np.array_split(np.array(datasets), len(mix.positions))
    for shares, targets in zip(mix.shares, mix.targets, strict=True):
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert sum(targets) == pytest.approx(1, abs=1e-4)
    totals = Counter(datasets)
    mean = np.array(mix.shares).T @ [len(window) for window in windows] / len(datasets)
    for column, dataset in enumerate(mix.datasets):
        assert mean[column] == pytest.approx(totals[dataset] / len(datasets), abs=0.02)


def test_unbuilt_runs(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path, write_corpus, packing=PackingRules())
    found = measure_run(config)
    assert found.problem is not None
    assert "must be built to be asked" in found.problem
    assert (found.num_observed, found.tests, found.mix, found.reads) == (0, (), None, None)
    assert [item.num_samples for item in found.datasets] == [30, 10]
    assert [item.lengths is not None for item in found.datasets] == [True, True]
    assert found.plan.missing_nbytes > 0
    zindex.build(config, SerialExecutor())
    assert measure_run(config).problem is None


def test_runs_without_blends(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    paths = [write_corpus([9] * 60, name=name) for name in ("a", "b")]
    config = make_config(tmp_path, *paths)
    found = measure_run(config)
    assert found.problem is not None
    assert found.problem.startswith("datasets that are not blended have no common order")
    assert (found.num_samples, found.mix, found.reads) == (None, None, None)
    assert [sample.dataset for sample in found.samples] == ["a"] * 3 + ["b"] * 3
    assert found.num_observed == sum(item.num_samples for item in found.datasets)
    assert {test.name for test in found.tests} == {"uniformity", "locality", "batches"}


def test_long_runs_are_sampled(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus, samples={"train": 3000, "valid": 0, "test": 0})
    found = measure_run(config, max_observed=1000)
    assert (found.num_observed, found.is_exact) == (448, False)
    assert [item.num_samples for item in found.datasets] == [2250, 750]
    assert not any(item.is_estimate for item in found.datasets)
    exact = measure_run(config)
    assert found.datasets[0].num_epochs == pytest.approx(exact.datasets[0].num_epochs, rel=0.01)
    assert found.mix is not None
    assert len(found.mix.positions) == 64


def test_limits(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    limits = {limit.name: limit for limit in measure_run(config).limits}
    assert limits["samples"].holds == "40 samples, 160 tokens"
    # 60% of 60 and of 120 tokens, of which web is drawn three times as often.
    first = limits["no repetition"].holds
    assert first.startswith(f"{_epoch_end(config):,.0f} samples at these shares, then web")
    capped = replace(config, max_epochs=9.0)
    limits = {limit.name: limit for limit in measure_run(capped).limits}
    assert limits["max_epochs"].holds.startswith("limits no dataset; web reaches it after ")
    budget = replace(
        config,
        samples={},
        datasets=tuple(DatasetConfig(item.path, tokens=40) for item in config.datasets),
    )
    limits = {limit.name: limit for limit in measure_run(budget).limits}
    assert limits["tokens of all datasets"].setting == "80"


def _epoch_end(config: object) -> float:
    """Return the samples of the run that draw one epoch of web."""
    from zindex.config import RunConfig
    from zindex.indexing.run_plan import plan_run

    assert isinstance(config, RunConfig)
    web = next(item for item in plan_run(config).members if item.plan.split == "train")
    return web.plan.epochs.tokens_per_epoch / config.sequence_length / 0.75


def test_refusals(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    with pytest.raises(PlanError, match="test has none; choose one of train, valid"):
        measure_run(config, split="test")


def test_large_indices_must_be_built(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path, write_corpus)
    monkeypatch.setattr(run_order, "MAX_COMPUTED_ROWS", 10)
    found = measure_run(config)
    assert found.problem is not None
    assert found.num_samples == 40
    assert [item.target for item in found.datasets] == [0.75, 0.25]
