"""Runs that pack documents: what they plan, build and blend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import LENGTHS, make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.run_plan import plan_run
from zindex.plan.packing import PackingRules

SERIAL = SerialExecutor()


def blend_of(tmp_path: Path, *prefixes: str, **changes: Any) -> RunConfig:
    datasets = tuple(
        DatasetConfig(path, weight=weight)
        for path, weight in zip(prefixes, (0.75, 0.25), strict=True)
    )
    settings: dict[str, Any] = {
        "datasets": datasets,
        "samples": {"train": 90, "valid": 0, "test": 0},
        "packing": PackingRules(),
        "order": "scalable",
    }
    return make_config(tmp_path, *prefixes, **(settings | changes))


def test_every_dataset_and_split_gets_a_packed_index(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    config = make_config(
        tmp_path,
        write_corpus(LENGTHS),
        write_corpus(LENGTHS[::-1], name="second"),
        packing=PackingRules(3),
        samples={"train": 40, "test": 0},
    )
    plan = plan_run(config)
    assert plan.indices == ()
    assert [item.plan.split for item in plan.packings] == ["train", "valid"] * 2
    assert [item.num_requested for item in plan.packings] == [40, None] * 2
    results = zindex.build(config, SERIAL)
    assert list(results) == [(item.dataset, item.plan.split) for item in plan]
    for (_, split), result in results.items():
        assert result.store.spec["kind"] == "packed"
        assert result.num_written == result.num_shards > 0
        if split == "train":
            assert result.store.attributes["num_samples"] >= 40
    again = zindex.build(config)
    assert [result.num_written for result in again.values()] == [0] * 4
    assert [result.store for result in again.values()] == [r.store for r in results.values()]


def test_samples_of_no_tokens_are_refused(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config = make_config(
        tmp_path, write_corpus([0, 0]), packing=PackingRules(), samples={"train": 4}
    )
    with pytest.raises(PlanError, match=r"train of .* must hold tokens to give 4 samples"):
        plan_run(config)


@pytest.mark.parametrize("order", ["scalable", "megatron"])
def test_blends_by_weights_draw_from_packed_members(
    write_corpus: WriteCorpus, tmp_path: Path, order: str
) -> None:
    prefixes = write_corpus(LENGTHS), write_corpus(LENGTHS[::-1], name="second")
    config = blend_of(tmp_path, *prefixes, order=order)
    results = zindex.build(config, SERIAL)
    blend = results.pop((None, "train")).store
    counts = blend["dataset_count"][:]
    assert counts.sum() >= 90
    for (path, _), count in zip(results, counts, strict=True):
        assert results[path, "train"].store.attributes["num_samples"] >= count
    for member, result in enumerate(results.values()):
        drawn = blend["dataset_sample_index"][:][blend["dataset_index"][:] == member]
        assert drawn.max() < result.store.attributes["num_samples"]
        assert len(np.unique(drawn)) == len(drawn)
