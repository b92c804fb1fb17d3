"""Jobs have the sizes of real plans, and forecasts respect resources and critical paths."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from zindex.config import as_config
from zindex.errors import ConfigError
from zindex.forecast.cost_model import Costs, Machines, StageCost, forecast_build
from zindex.forecast.job import Job
from zindex.formats.idx_writer import write_index
from zindex.indexing.run_plan import PlannedIndex, plan_run
from zindex.store.layout import MAX_SHARDS


@pytest.mark.parametrize("order", ["scalable", "megatron"])
def test_a_job_has_the_shards_of_its_plan(tmp_path: Path, order: str) -> None:
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
    assert job.document_shards == index.plan.document_layout.num_shards == 4
    assert job.sample_shards == index.plan.shuffle_layout.num_shards == 7
    assert job.dataset_samples == index.plan.num_samples
    [blend] = plan.blends
    assert job.blend_shards == blend.plan.dataset_layout.num_shards
    small = sum(layout.num_shards for layout in blend.plan.share_layouts)
    num_shards = sum(item.plan.store_plan("x").num_shards for item in plan) - small
    assert job.num_shards == num_shards
    nbytes = sum(item.plan.store_plan("x").nbytes for item in plan)
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


def test_shards_grow_above_the_maximum_number() -> None:
    job = Job(1e14, num_datasets=1, shard_length=1 << 16)
    for num_shards in (job.document_shards, job.sample_shards, job.blend_shards):
        assert num_shards <= MAX_SHARDS


def test_shards_grow_with_the_datasets() -> None:
    # 12.5 million documents in each of 1,000 datasets: 2**24 is the next power of two.
    job = Job(1e13, num_datasets=1000)
    assert job.index_shard_length == 1 << 24
    assert job.document_shards == 1
    assert job.blend_shards == -(-job.num_samples // (1 << 22))
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


def test_an_empty_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 0 tokens"):
        Job(0)


@pytest.mark.parametrize("fields", [{"num_nodes": 0}, {"num_threads": 0}])
def test_machines_need_nodes_and_threads(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least one node with one thread"):
        Machines(**fields)


SIZES = [(1e9, 3, 1 << 12), (1e11, 20, 1 << 18), (3e11, 1, 1 << 20)]
FREE = Costs(
    client_task_seconds=0,
    scheduler_task_seconds=0,
    worker_task_seconds=0,
    argument_seconds=0,
    dataset_seconds=0,
    index_seconds=0,
    client_index_seconds=0,
    shard_seconds=0,
    base_seconds=0,
    memory_bandwidth=1e30,
    write_bandwidth=1e30,
    read_bandwidth=1e30,
    store_bandwidth=1e30,
)


def jobs() -> list[Job]:
    """Jobs of both orders and stores, of a few tasks and of thousands."""
    made = []
    for tokens, num_datasets, shard_length in SIZES:
        job = Job(tokens, num_datasets=num_datasets, shard_length=shard_length)
        made += [job, replace(job, stored="minimal"), replace(job, order="megatron")]
        made.append(replace(job, blend=False))
    return made


def name(job: Job) -> str:
    return f"{job.num_tokens:.0e}-{job.num_datasets}-{job.order}-{job.stored}-{job.blend}"


def work_seconds(job: Job, costs: Costs) -> float:
    """Seconds of all tasks, if each runs once."""
    return sum(
        costs.stage(stage, job.order).task_seconds * num_tasks
        + costs.stage(stage, job.order).element_seconds * num_elements
        for stage, (num_tasks, num_elements) in job.loads().items()
        if stage != "check" or job.check_tasks(1)
    )


@pytest.mark.parametrize("job", jobs(), ids=name)
def test_one_thread_takes_the_sum_of_its_tasks_when_the_rest_is_free(job: Job) -> None:
    costs = FREE
    if not job.check_tasks(1):  # threads of the client check a few files
        costs = replace(FREE, stages=dict(FREE.stages) | {"check": StageCost(0, 0)})
    done = forecast_build(job, Machines(1, 1), costs)
    # Ordered lengths that do not fit in memory are ordered again.
    again = work_seconds(job, costs) * 0.5 if job.dataset_documents * 4 > 2**28 else 0
    expected = pytest.approx(work_seconds(job, costs), abs=1e-9 + again)
    assert done.seconds == expected
    assert done.written_nbytes == pytest.approx(job.nbytes, rel=1e-3)
    assert done.busy["processors"] == pytest.approx(1)
    assert done.bound == "processors"


def test_tasks_are_those_of_the_stages() -> None:
    job = Job(1e12, num_datasets=20)
    loads = job.loads()
    expected = sum(tasks for tasks, _ in loads.values()) - loads["check"][0] + job.check_tasks(9)
    assert forecast_build(job, Machines(3, 3)).num_tasks == expected


def test_small_indices_are_built_by_bundles() -> None:
    job = Job(1e11, num_datasets=500)
    alone = forecast_build(replace(job, shard_length=1 << 14), Machines(2, 8))
    bundled = forecast_build(job, Machines(2, 8))
    assert "bundle" in bundled.stages
    assert bundled.num_tasks < alone.num_tasks / 5
    assert bundled.seconds < alone.seconds / 3
    assert job.bundle_tasks(16) == 167  # 3 indices each
    assert job.bundle_tasks(1000) == 72  # more would be submitted for longer than they compute
    assert not Job(1e11, num_datasets=15).bundle_tasks(1)
    assert not Job(1e14, num_datasets=500).bundle_tasks(1)


@pytest.mark.parametrize("num_tokens", [1e11, 1e12, 1e13, 1e14])
@pytest.mark.parametrize("num_datasets", [100, 1000])
def test_more_nodes_are_not_slower(num_tokens: float, num_datasets: int) -> None:
    job = Job(num_tokens, num_datasets=num_datasets)
    seconds = [forecast_build(job, Machines(nodes)).seconds for nodes in (1, 10, 100, 1000)]
    assert all(more <= 1.02 * few for few, more in pairwise(seconds))


@pytest.mark.parametrize("job", jobs(), ids=name)
@pytest.mark.parametrize("num_nodes", [1, 7, 100])
def test_nothing_is_faster_than_its_resources(job: Job, num_nodes: int) -> None:
    costs = Costs(
        write_bandwidth=3e8, read_bandwidth=2e9, store_bandwidth=1e9, memory_bandwidth=5e9
    )
    done = forecast_build(job, Machines(num_nodes, 4), costs)
    seconds = done.seconds
    assert seconds >= work_seconds(job, costs) / (4 * num_nodes)
    assert seconds >= job.nbytes / 1e9
    assert seconds >= job.nbytes / num_nodes / 3e8
    assert seconds >= 20 * job.dataset_documents * job.num_datasets / num_nodes / 2e9
    assert seconds >= done.num_tasks * costs.client_task_seconds
    assert seconds >= done.num_tasks * costs.scheduler_task_seconds
    assert seconds >= job.num_datasets * costs.dataset_seconds
    assert seconds >= critical_path(job, costs)
    assert all(0 <= share <= 1 + 1e-9 for share in done.busy.values())


def critical_path(job: Job, costs: Costs) -> float:
    """Seconds of the tasks of one dataset that wait for one another."""

    def shortest(stage: str) -> float:
        num_tasks, num_elements = job.loads()[stage]
        cost = costs.stage(stage, job.order)
        return cost.task_seconds + cost.element_seconds * num_elements / num_tasks

    stages = ["check", "documents", "samples", *(["count"] if job.order == "megatron" else [])]
    return sum(map(shortest, stages))


@pytest.mark.parametrize("job", jobs(), ids=name)
def test_more_nodes_are_not_slower_where_lengths_cost_nothing(job: Job) -> None:
    costs = replace(Costs(), read_bandwidth=1e30, store_bandwidth=1e30)
    seconds = [forecast_build(job, Machines(nodes, 2), costs).seconds for nodes in (1, 2, 8, 64)]
    for few, many in pairwise(seconds):
        assert many <= few * 1.02 + critical_path(job, costs)


def test_losses_add_repeated_tasks_and_the_time_until_they_are_replaced() -> None:
    job, machines = Job(1e11, num_datasets=20), Machines(4, 2)
    calm = forecast_build(job, machines)
    rough = forecast_build(job, machines, Costs(node_mtbf_seconds=10, detection_seconds=5))
    assert calm.num_lost == 0 < rough.num_lost
    # A node is away for 65 seconds after every 10.
    assert rough.seconds > 7.5 * calm.seconds


def test_a_process_that_is_client_and_scheduler_does_the_work_of_both() -> None:
    job = Job(1e11, num_datasets=50)
    apart = forecast_build(job, Machines(100, 4))
    together = forecast_build(job, Machines(100, 4, scheduler_in_client=True))
    assert "scheduler" in apart.busy
    assert "scheduler" not in together.busy
    assert together.seconds > apart.seconds


def test_processes_on_one_machine_share_its_processors() -> None:
    job = Job(1e11, num_datasets=5, shard_length=1 << 18)
    many = forecast_build(job, Machines(4, 1, num_processors=100))
    few = forecast_build(job, Machines(4, 1, num_processors=1))
    assert few.seconds > 2 * many.seconds


def test_datasets_are_checked_by_tasks_or_by_the_client() -> None:
    large = forecast_build(Job(1e13, num_datasets=100), Machines(100, 16))
    small = forecast_build(Job(1e9, num_datasets=10), Machines(100, 16))
    assert "check" in large.stages
    assert "check" not in small.stages
    assert "checks" in small.busy


@pytest.mark.parametrize("job", jobs(), ids=name)
def test_stages_end_in_order_within_the_build(job: Job) -> None:
    done = forecast_build(job, Machines(2, 4))
    stops = [
        done.stages[stage] for stage in ("check", "documents", "samples") if stage in done.stages
    ]
    assert stops == sorted(stops)
    assert 0 < max(done.stages.values()) <= done.seconds
