"""What a simulated build may and may not be, whatever it is made of."""

from dataclasses import replace
from itertools import pairwise

import pytest

from zindex.errors import ConfigError
from zindex.measuring.build_model import Cluster, Costs, Design, Job, StageCost
from zindex.measuring.simulate import Forecast, simulate

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
CUT = Design(bundles=False)


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
    """All that tasks compute, if nothing is computed twice."""
    return sum(
        costs.stage(stage, job.order).task_seconds * num_tasks
        + costs.stage(stage, job.order).element_seconds * num_elements
        for stage, (num_tasks, num_elements) in job.loads().items()
        if stage != "check" or job.check_cuts
    )


@pytest.mark.parametrize("design", [Design(), CUT], ids=["bundles", "cut"])
@pytest.mark.parametrize("job", jobs(), ids=name)
def test_one_thread_takes_the_sum_of_its_tasks_when_the_rest_is_free(
    job: Job, design: Design
) -> None:
    costs = FREE
    if not job.check_cuts:  # the client's own threads check a few files meanwhile
        costs = replace(FREE, stages=dict(FREE.stages) | {"check": StageCost(0, 0)})
    # Ordered lengths are kept, so that the sample index takes no documents twice.
    done = simulate(job, Cluster(1, 1), costs, design=replace(design, ordered_nbytes=1e15))
    assert done.seconds == pytest.approx(work_seconds(job, costs))
    assert done.written_nbytes == pytest.approx(job.nbytes, rel=1e-3)
    assert done.busy["processors"] == pytest.approx(1)
    assert done.bound == "processors"


def test_tasks_are_those_of_the_stages() -> None:
    job = Job(1e12, num_datasets=20)
    loads = job.loads()
    num_checks = len(job.check_cuts)
    expected = sum(num_tasks for num_tasks, _ in loads.values()) - loads["check"][0] + num_checks
    assert simulate(job, Cluster(3, 3), design=CUT).num_tasks == expected


def test_small_indices_are_built_by_bundles() -> None:
    job = Job(1e11, num_datasets=500)
    cut, bundled = (simulate(job, Cluster(2, 8), design=design) for design in (CUT, Design()))
    assert "bundle" in bundled.stages
    assert bundled.num_tasks < cut.num_tasks / 5
    assert bundled.seconds < cut.seconds / 3
    assert sum(job.bundle_cuts(16)) == 500
    assert job.bundle_cuts(1000)[0] == 1
    assert not Job(1e11, num_datasets=15).bundle_cuts(1)
    assert not Job(1e14, num_datasets=500).bundle_cuts(1)


@pytest.mark.parametrize("job", jobs(), ids=name)
@pytest.mark.parametrize("num_nodes", [1, 7, 100])
def test_nothing_is_faster_than_its_resources(job: Job, num_nodes: int) -> None:
    costs = Costs(
        write_bandwidth=3e8, read_bandwidth=2e9, store_bandwidth=1e9, memory_bandwidth=5e9
    )
    done = simulate(job, Cluster(num_nodes, 4), costs, design=CUT)
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
    """The tasks of one dataset that wait for one another, each the shortest of its stage."""

    def shortest(stage: str, lengths: tuple[int, ...]) -> float:
        cost = costs.stage(stage, job.order)
        return cost.task_seconds + cost.element_seconds * min(lengths)

    cuts = job.document_cuts
    stages = [("check", (job.dataset_documents,)), ("samples", job.sample_cuts)]
    if job.order == "megatron":
        stages += [("documents", (job.dataset_documents,)), ("count", cuts)]
    else:
        stages += [("documents", cuts)]
    return sum(shortest(*stage) for stage in stages)


@pytest.mark.parametrize("job", jobs(), ids=name)
def test_more_nodes_are_not_slower_where_lengths_cost_nothing(job: Job) -> None:
    costs = replace(Costs(), read_bandwidth=1e30, store_bandwidth=1e30)
    design = replace(CUT, ordered_nbytes=0)
    seconds = [
        simulate(job, Cluster(nodes, 2), costs, design=design).seconds for nodes in (1, 2, 8, 64)
    ]
    for few, many in pairwise(seconds):
        # List scheduling may be off by a task.
        assert many <= few * 1.02 + longest_task(job, costs)


def longest_task(job: Job, costs: Costs) -> float:
    most = {
        "check": (job.dataset_documents,),
        "count": job.document_cuts,
        "samples": job.sample_cuts,
    }
    most |= {"documents": job.document_cuts, "shuffle": job.sample_cuts}
    if job.order == "megatron":
        most |= {"documents": (job.dataset_documents,), "shuffle": (job.dataset_samples,)}
    return max(
        costs.stage(stage, job.order).task_seconds
        + costs.stage(stage, job.order).element_seconds * max(most.get(stage, job.blend_cuts))
        for stage in job.loads()
    )


@pytest.mark.parametrize("job", jobs(), ids=name)
@pytest.mark.parametrize("seed", range(3))
def test_losses_only_add_and_are_the_same_for_a_seed(job: Job, seed: int) -> None:
    def run(mtbf: float, seed: int) -> Forecast:
        costs = Costs(node_mtbf_seconds=mtbf, detection_seconds=0.5, restart_seconds=1)
        return simulate(job, Cluster(4, 2), costs, design=CUT, seed=seed)

    calm = run(float("inf"), seed)
    rough = run(max(1.0, calm.seconds / 2), seed)
    assert calm.num_lost == 0
    assert rough.seconds >= calm.seconds * 0.999
    assert rough == run(max(1.0, calm.seconds / 2), seed)
    assert rough.written_nbytes >= job.nbytes * (1 - 1e-9)


def test_a_lost_node_costs_its_task_again_and_the_time_to_notice() -> None:
    # A task of 3 s, and a loss every 2 s on average.
    stages = dict.fromkeys(Job(1e9).loads(), StageCost(0, 0)) | {"documents": StageCost(3, 0)}
    job = Job(1e6, num_datasets=1, blend=False, stored="minimal")
    costs = replace(
        FREE,
        stages=stages,
        node_mtbf_seconds=2.0,
        detection_seconds=10.0,
        restart_seconds=5.0,
    )
    done = simulate(job, Cluster(1, 1), costs, design=CUT, seed=1)
    assert done.num_lost >= 1
    assert done.seconds >= 3 + 15 * done.num_lost


def test_a_lost_node_computes_greedy_chunks_anew() -> None:
    job = Job(4e9, num_datasets=2, order="megatron", shard_length=1 << 14)
    costs = Costs(node_mtbf_seconds=0.4, detection_seconds=0.01, restart_seconds=0.01)
    done = simulate(job, Cluster(2, 2), costs, design=CUT, seed=3)
    assert done.num_lost
    assert done.seconds > simulate(job, Cluster(2, 2), Costs(), design=CUT).seconds


def test_a_process_that_is_client_and_scheduler_does_the_work_of_both() -> None:
    job = Job(1e11, num_datasets=50)
    apart = simulate(job, Cluster(8, 4), design=CUT)
    together = simulate(job, Cluster(8, 4, scheduler_in_client=True), design=CUT)
    assert "scheduler" in apart.busy
    assert "scheduler" not in together.busy
    assert together.seconds > apart.seconds


def test_processors_that_are_short_slow_everything_down() -> None:
    job = Job(1e11, num_datasets=5, shard_length=1 << 18)
    many = simulate(job, Cluster(4, 1, num_processors=100))
    few = simulate(job, Cluster(4, 1, num_processors=1))
    assert few.seconds > 2 * many.seconds


def test_a_window_bounds_what_client_and_scheduler_remember() -> None:
    job = Job(1e12, num_datasets=200, shard_length=1 << 18)
    free = simulate(job, Cluster(4, 4), design=replace(CUT, window=None))
    held = simulate(job, Cluster(4, 4), design=replace(CUT, window=3))
    assert held.num_tasks == free.num_tasks
    assert held.scheduler_nbytes < free.scheduler_nbytes / 4
    assert held.seconds < free.seconds * 1.1


def test_sums_of_all_shards_cost_more_than_those_of_a_task() -> None:
    job = Job(2e12, num_datasets=1, shard_length=1 << 18)
    every = simulate(job, Cluster(16, 16), design=Design(all_sums=True, window=None))
    own = simulate(job, Cluster(16, 16), design=Design(window=None))
    assert own.scheduler_nbytes < every.scheduler_nbytes
    assert own.busy["client"] * own.seconds < every.busy["client"] * every.seconds


def test_tasks_beside_their_lengths_read_less() -> None:
    job = Job(1e13, num_datasets=100, shard_length=1 << 20)
    costs = Costs(store_bandwidth=2e10)
    free = simulate(job, Cluster(50, 8), costs, design=CUT)
    near = simulate(job, Cluster(50, 8), costs, design=replace(CUT, affinity=True))
    assert near.busy["store"] * near.seconds < free.busy["store"] * free.seconds


def test_datasets_are_checked_by_tasks_or_by_the_client() -> None:
    job = Job(1e13, num_datasets=100)
    tasks = simulate(job, Cluster(100, 16))
    client = simulate(job, Cluster(100, 16), design=Design(check_in_tasks=False))
    assert "check" not in client.stages
    assert client.num_tasks + len(job.check_cuts) == tasks.num_tasks
    assert tasks.seconds < client.seconds
    assert not Job(1e9, num_datasets=10).check_cuts


def test_forecast_is_json() -> None:
    done = simulate(Job(1e10, num_datasets=2), Cluster())
    facts = done.to_json()
    assert facts["seconds"] == done.seconds
    assert set(facts["stages"]) == {"blend", "documents", "samples", "shuffle"}


@pytest.mark.parametrize("fields", [{"num_nodes": 0}, {"num_threads": 0}])
def test_a_cluster_has_nodes_and_threads(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least one node with one thread"):
        Cluster(**fields)
