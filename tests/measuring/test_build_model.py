"""The sizes of a job are those of the plans of a real one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from zindex.building.planning import PlannedIndex, plan_run
from zindex.config import as_config
from zindex.errors import ConfigError
from zindex.formats.idx_writer import write_index
from zindex.measuring.build_model import Cluster, Costs, Job, StageCost
from zindex.store.layout import MAX_SHARDS


@pytest.mark.parametrize("order", ["scalable", "megatron"])
def test_a_job_is_cut_as_the_plan_of_its_run(tmp_path: Path, order: str) -> None:
    # 3 datasets of 1,000 documents of 100 tokens; samples of 64 tokens: 1,562 of each.
    for number in range(3):
        lengths = np.full(1000, 100, np.int32)
        write_index(f"{tmp_path}/{number}.idx", np.uint16, lengths, np.arange(1001), None)
    config = as_config(
        {
            "datasets": [{"path": f"{tmp_path}/{number}", "weight": 1} for number in range(3)],
            "sequence_length": 64,
            "split": "1,0,0",
            "samples": {"train": 4686},
            "surplus": 0,
            "order": order,
            "index": str(tmp_path / "index"),
            "grid": {"chunk_length": 64, "shard_length": 256},
        }
    )
    plan = plan_run(config, require_bin=False)
    job = Job(
        300_000,
        num_datasets=3,
        document_length=100,
        sequence_length=64,
        order=config.order,
        shard_length=256,
    )
    index = plan.indices[0]
    assert isinstance(index, PlannedIndex)
    assert len(job.document_cuts) == index.plan.document_layout.num_shards == 4
    assert len(job.sample_cuts) == index.plan.shuffle_layout.num_shards == 7
    assert job.dataset_samples == index.plan.num_samples
    [blend] = plan.blends
    assert len(job.blend_cuts) == blend.plan.dataset_layout.num_shards
    small = blend.plan.weight_layout.num_shards + blend.plan.count_layout.num_shards
    num_shards = sum(item.store_plan("x").num_shards for item in plan) - small
    assert job.num_shards == num_shards
    nbytes = sum(item.store_plan("x").nbytes for item in plan)
    # A row of samples more for each dataset, and weights and counts of the blend.
    assert nbytes == pytest.approx(job.nbytes, abs=3 * 8 + 3 * 16)


def test_loads_are_the_elements_of_each_stage() -> None:
    # 10 datasets of 1,250,000 documents, 244,141 samples each.
    job = Job(1e10, num_datasets=10, shard_length=1 << 18)
    assert job.loads() == {
        "check": (10, 12_500_000),
        "documents": (50, 12_500_000),
        "shuffle": (10, 2_441_410),
        "samples": (10, 2_441_410),
        "blend": (10, 2_441_410),
    }
    assert set(replace(job, stored="minimal").loads()) == {"check", "documents", "samples"}
    loads = replace(job, order="megatron").loads()
    assert loads["documents"] == (10, 12_500_000)
    assert loads["count"] == (50, 12_500_000)
    assert loads["describe"] == (10, 0)
    assert "blend" not in replace(job, blend=False).loads()


def test_shards_grow_where_there_would_be_too_many() -> None:
    job = Job(1e14, num_datasets=1, shard_length=1 << 16)
    for cuts in (job.document_cuts, job.sample_cuts, job.blend_cuts):
        assert len(cuts) <= MAX_SHARDS
    assert sum(job.document_cuts) == job.dataset_documents


def test_shards_grow_with_the_datasets_as_the_engine_has_it() -> None:
    # 12.5 million documents in each of 1,000 datasets: 2**24 is the next power of two.
    job = Job(1e13, num_datasets=1000)
    assert job.index_shard_length == 1 << 24
    assert len(job.document_cuts) == 1
    assert len(job.blend_cuts) == -(-job.num_samples // (1 << 22))
    assert replace(job, grows=False).index_shard_length == 1 << 22
    assert replace(job, shard_length=1 << 20).index_shard_length == 1 << 20
    assert Job(1e13, num_datasets=10).index_shard_length == 1 << 22


def test_each_order_has_its_costs() -> None:
    costs = Costs(
        stages={"samples": StageCost(1, 2), "shuffle": StageCost(3, 4)},
        megatron={"shuffle": StageCost(5, 6)},
    )
    assert costs.stage("samples", "megatron") == StageCost(1, 2)
    assert costs.stage("shuffle", "megatron") == StageCost(5, 6)
    assert costs.stage("shuffle", "scalable") == StageCost(3, 4)
    assert json.loads(json.dumps(costs.to_json()))["stages"]["shuffle"]["task_seconds"] == 3


def test_a_job_has_something_to_do() -> None:
    with pytest.raises(ConfigError, match="got 0 tokens"):
        Job(0)


@pytest.mark.parametrize("fields", [{"num_nodes": 0}, {"num_threads": 0}])
def test_a_cluster_has_nodes_and_threads(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least one node with one thread"):
        Cluster(**fields)
