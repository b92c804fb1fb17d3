"""Forecast the duration, bottleneck and memory of a build on given nodes.

A build has two phases: open and check all datasets, then build all indices. The chunks of the
blend run concurrently with both. A phase takes as long as its busiest resource: threads, the
client and the scheduler (which handle one task at a time), memory, disks or the store. No phase is
shorter than its critical path, the dependent tasks of one dataset.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zindex.errors import ConfigError
from zindex.forecast.job import IDX_NBYTES, Job
from zindex.plan.build_plan import Order

# Bytes per length while an index is built.
_LENGTH_NBYTES = 4.0
# Client threads that open datasets, if there is too little to check in tasks.
_NUM_OPENERS = 8
# Tasks per thread that the scheduler holds at a time.
_TASKS_PER_THREAD = 16
# Bytes of ordered lengths that a process caches for the sample index.
_ORDERED_NBYTES = 2.0**29
# Bytes of lengths that a process caches for random access.
_HELD_NBYTES = 2.0**30
# Client memory per shard receipt, in bytes.
_RECEIPT_NBYTES = 400
# If every resource has a lower utilisation, the bottleneck is waiting.
_BOUND_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class StageCost:
    """Cost per task of one stage on one thread, including its writes to disk."""

    task_seconds: float
    element_seconds: float
    #: Bytes of memory traffic per element.
    memory_nbytes: float = 0.0


#: Costs of the stages in the scalable order. Memory traffic counts sequential access, and a cache
#: line per random access.
STAGE_COSTS = {
    "check": StageCost(0.5e-3, 10e-9, 20.0),
    "documents": StageCost(3.5e-3, 25e-9, 90.0),
    "count": StageCost(1.0e-3, 8e-9, 80.0),
    "samples": StageCost(3.5e-3, 30e-9, 40.0),
    "shuffle": StageCost(3.5e-3, 8e-9, 12.0),
    "blend": StageCost(5e-3, 12e-9, 20.0),
    "describe": StageCost(0.5e-3, 0.0),
    "store": StageCost(5e-3, 3e-9, 18.0),
}
# Costs that differ in Megatron's order, in which one task shuffles a dataset.
_MEGATRON_COSTS = {
    "documents": StageCost(6e-3, 8e-9, 90.0),
    "shuffle": StageCost(5e-3, 8e-9, 12.0),
    "blend": StageCost(5e-3, 40e-9, 20.0),
}


@dataclass(frozen=True)
class Costs:
    """Costs of steps and bandwidths of machines; the defaults are typical of a server."""

    #: Cost by stage in the scalable order, and in Megatron's order where it differs.
    stages: Mapping[str, StageCost] = field(default_factory=lambda: STAGE_COSTS)
    megatron: Mapping[str, StageCost] = field(default_factory=lambda: _MEGATRON_COSTS)
    #: Overhead per task in seconds of Python, in addition to its computation: in the process that
    #: submits tasks, in Dask's scheduler, and on the worker.
    client_task_seconds: float = 1.3e-3
    scheduler_task_seconds: float = 1.8e-3
    worker_task_seconds: float = 1.7e-3
    #: Seconds of client and scheduler per number in a task's arguments.
    argument_seconds: float = 0.35e-6
    #: Seconds of the client to open and plan each dataset.
    dataset_seconds: float = 1.5e-3
    #: Seconds to begin and commit each index: on the worker for bundles of small indices, and on
    #: the client for the others.
    index_seconds: float = 9e-3
    client_index_seconds: float = 9e-3
    #: Seconds of the client per shard in a commit.
    shard_seconds: float = 20e-6
    #: Seconds before the first task and after the last.
    base_seconds: float = 0.1
    #: Bytes per second of a node's memory, of its disk or network, and of the store for all nodes.
    memory_bandwidth: float = 2e10
    write_bandwidth: float = 1e9
    read_bandwidth: float = 2e9
    store_bandwidth: float = 1e11
    #: Mean seconds between failures of a node; infinity for none.
    node_mtbf_seconds: float = float("inf")
    #: Seconds until a lost node is detected, and until it is replaced.
    detection_seconds: float = 15.0
    restart_seconds: float = 60.0
    #: Bytes of the client and of the scheduler per submitted, unfinished task.
    client_task_nbytes: float = 19_000.0
    scheduler_task_nbytes: float = 4_800.0

    def stage(self, name: str, order: Order) -> StageCost:
        """Return the cost of a stage in an order."""
        found = self.megatron.get(name) if order == "megatron" else None
        return found or self.stages[name]


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes on which a build runs."""

    num_nodes: int = 1
    #: Concurrent tasks per node.
    num_threads: int = 16
    #: Whether the scheduler shares the Python process of the client, as in `LocalCluster`.
    scheduler_in_client: bool = False
    #: CPUs shared by all processes if they run on one machine; None if there are enough.
    num_processors: int | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.num_threads < 1:
            raise ConfigError(
                "a cluster must have at least one node with one thread, got "
                f"{self.num_nodes} nodes with {self.num_threads} threads; name more"
            )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted time and memory of a build."""

    seconds: float
    num_tasks: int
    #: Number of tasks that are rerun because their node failed.
    num_lost: int
    #: Number of array files that are written.
    num_shards: int
    written_nbytes: float
    #: Utilisation by resource; mean over nodes.
    busy: dict[str, float]
    #: The busiest resource, or "order" if none is busy for half of the time.
    bound: str
    #: Peak memory of the client and of the scheduler for unfinished tasks.
    client_nbytes: float
    scheduler_nbytes: float
    #: End of each stage, in seconds from the start of the build.
    stages: dict[str, float]


@dataclass
class _Phase:
    """Totals of the tasks of one phase."""

    num_tasks: int = 0
    #: Thread seconds of computation, and of waiting for lengths.
    compute_seconds: float = 0.0
    waiting_seconds: float = 0.0
    #: Seconds of the client, excluding the overhead per task.
    client_seconds: float = 0.0
    memory_nbytes: float = 0.0
    read_nbytes: float = 0.0
    written_nbytes: float = 0.0
    #: Seconds and number of tasks of the critical path.
    path_seconds: float = 0.0
    path_tasks: int = 0
    #: Task seconds by stage.
    stage_seconds: dict[str, float] = field(default_factory=dict)


def forecast_build(job: Job, machines: Machines, costs: Costs | None = None) -> Forecast:
    """Forecast the time and memory of a build.

    Parameters
    ----------
    job
        The build.
    machines
        Nodes on which it runs.
    costs
        Costs of its steps; None uses the defaults.

    Notes
    -----
    Law: never faster than total work over threads, bytes over bandwidth, the number of tasks
    times the overhead per task of client or scheduler, or the critical path.

    Examples
    --------
    >>> job = Job(1e12, num_datasets=100)
    >>> one, ten = (forecast_build(job, Machines(num_nodes=nodes)) for nodes in (1, 10))
    >>> one.num_tasks > ten.num_tasks, one.seconds > ten.seconds
    (True, True)
    """
    return _Model(job, machines, costs or Costs()).forecast()


class _Model:
    """Cost model of one build."""

    def __init__(self, job: Job, machines: Machines, costs: Costs) -> None:
        self.job, self.machines, self.costs = job, machines, costs
        self.loads = job.loads()
        self.num_threads = machines.num_nodes * machines.num_threads
        self.checks, self.indices, self.blend = _Phase(), _Phase(), _Phase()
        # Seconds of the client between opening the datasets and submitting their tasks.
        self.planning_seconds = costs.dataset_seconds * job.num_datasets
        self.opening_seconds = self._add_checks()
        num_bundles = job.bundle_tasks(self.num_threads)
        if num_bundles:
            self._add_bundles(num_bundles)
        else:
            self._add_indices()
        if job.blend_shards:
            greedy = job.order == "megatron"
            self._add_path(self.blend, "blend", *(("describe", "store") if greedy else ()))
            self.blend.client_seconds = 2 * job.blend_shards * costs.shard_seconds

    def _add_stage(self, phase: _Phase, stage: str, num_tasks: int) -> float:
        """Add the work of a stage; return the seconds per task."""
        num_steps, num_elements = self.loads[stage]
        cost = self.costs.stage(stage, self.job.order)
        seconds = cost.task_seconds * num_steps + cost.element_seconds * num_elements
        phase.num_tasks += num_tasks
        phase.compute_seconds += seconds + num_tasks * self.costs.worker_task_seconds
        phase.memory_nbytes += cost.memory_nbytes * num_elements
        phase.written_nbytes += self.job.written_nbytes(stage) * num_elements
        phase.stage_seconds[stage] = seconds
        return seconds / max(1, num_tasks)

    def _add_path(self, phase: _Phase, *stages: str) -> None:
        """Add dependent stages to the critical path."""
        for stage in stages:
            num_tasks = self.job.stage_tasks(stage, self.num_threads)
            phase.path_seconds += self._add_stage(phase, stage, num_tasks)
        phase.path_tasks += len(stages)

    def _add_checks(self) -> float:
        """Add the tasks that check all datasets, or return the seconds if the client does."""
        job, costs, phase = self.job, self.costs, self.checks
        nbytes = IDX_NBYTES * job.dataset_documents
        self.num_checks = job.check_tasks(self.num_threads)
        if self.num_checks:
            phase.path_seconds = self._add_stage(phase, "check", self.num_checks)
            phase.path_tasks = 1
            phase.read_nbytes = float(nbytes * job.num_datasets)
            return 0.0
        cost = costs.stage("check", job.order)
        seconds = cost.task_seconds + cost.element_seconds * job.dataset_documents
        seconds = max(seconds, nbytes / costs.read_bandwidth * _NUM_OPENERS)
        return seconds * -(-job.num_datasets // _NUM_OPENERS)

    def _add_bundles(self, num_bundles: int) -> None:
        """Add the tasks that build bundles of small indices."""
        job, costs, phase = self.job, self.costs, self.indices
        for stage in ("documents", "count", "shuffle", "samples"):
            if stage in self.loads:
                self._add_stage(phase, stage, 0)
        reading = _LENGTH_NBYTES * job.dataset_documents / costs.read_bandwidth
        phase.compute_seconds += job.num_datasets * (costs.index_seconds + reading)
        phase.path_seconds, phase.path_tasks = phase.compute_seconds / num_bundles, 1
        phase.compute_seconds += num_bundles * costs.worker_task_seconds
        phase.num_tasks = num_bundles
        phase.stage_seconds = {"bundle": phase.compute_seconds}

    def _add_indices(self) -> None:
        """Add the stages of indices that are built individually."""
        job, costs, phase = self.job, self.costs, self.indices
        ordering = ("documents", "count") if job.order == "megatron" else ("documents",)
        self._add_path(phase, *ordering, "samples")
        if "shuffle" in self.loads:
            self._add_stage(phase, "shuffle", job.stage_tasks("shuffle", self.num_threads))
        self._add_lengths(ordering[-1])
        seconds = job.num_datasets * costs.client_index_seconds / 2
        self.planning_seconds += seconds
        phase.client_seconds = (
            seconds
            + costs.shard_seconds * (job.num_shards - 2 * job.blend_shards)
            + costs.argument_seconds * self.loads["samples"][0]
        )

    def _add_lengths(self, stage: str) -> None:
        """Add the cost of reading lengths, and of ordering them where they are not cached.

        A task runs on any of N nodes, so one in N finds lengths already ordered by another task of
        its dataset, as long as the node caches them.
        """
        job, phase, nodes = self.job, self.indices, self.machines.num_nodes
        lengths_nbytes = _LENGTH_NBYTES * job.dataset_documents
        tasks = {name: job.stage_tasks(name, self.num_threads) for name in (stage, "samples")}
        document_tasks, sample_tasks = (each // job.num_datasets for each in tasks.values())
        num_tasks = document_tasks + 2 * sample_tasks
        in_flight = min(job.num_datasets, -(-_TASKS_PER_THREAD * self.num_threads // num_tasks))
        missing = 1 - min(1 / nodes, _ORDERED_NBYTES / (lengths_nbytes * in_flight))
        element_seconds = self.costs.stage(stage, job.order).element_seconds
        phase.compute_seconds += missing * self.loads["documents"][1] * element_seconds
        reads = [min(nodes, document_tasks)]
        reads.append(min(nodes, sample_tasks) if missing > 0.5 else 0)
        forgotten = 1 - min(1.0, _HELD_NBYTES / (lengths_nbytes * in_flight))
        nbytes = lengths_nbytes * job.num_datasets * (max(reads) + forgotten * min(reads))
        phase.read_nbytes += nbytes
        # All threads of a node that run tasks of a dataset wait for its lengths.
        threads = min(self.machines.num_threads, -(-document_tasks // nodes))
        phase.waiting_seconds += threads * nbytes / self.costs.read_bandwidth

    def _busy(self, *phases: _Phase) -> dict[str, float]:
        """Return the busy seconds of each resource in concurrent phases."""
        costs, nodes = self.costs, self.machines.num_nodes
        num_tasks = sum(phase.num_tasks for phase in phases)
        read = sum(phase.read_nbytes for phase in phases)
        written = sum(phase.written_nbytes for phase in phases)
        client = sum(phase.client_seconds for phase in phases)
        busy = {
            "processors": sum(phase.compute_seconds for phase in phases) / self.num_threads,
            "client": client + num_tasks * costs.client_task_seconds,
            "memory": sum(phase.memory_nbytes for phase in phases) / nodes / costs.memory_bandwidth,
            "node's writes": written / nodes / costs.write_bandwidth,
            "node's reads": read / nodes / costs.read_bandwidth,
            "store": (read + written) / costs.store_bandwidth,
        }
        scheduler = num_tasks * costs.scheduler_task_seconds
        name = "client" if self.machines.scheduler_in_client else "scheduler"
        busy[name] = busy.get(name, 0.0) + scheduler
        return busy

    def _seconds(self, *phases: _Phase) -> float:
        """Return the duration of concurrent phases."""
        costs, processors = self.costs, self.machines.num_processors
        busy = self._busy(*phases)
        waiting = sum(phase.waiting_seconds for phase in phases) / self.num_threads
        each = costs.client_task_seconds + costs.scheduler_task_seconds + costs.worker_task_seconds
        path = max(phase.path_seconds + phase.path_tasks * each for phase in phases)
        # Graham's bound for list scheduling: the last tasks of a path leave other threads idle.
        threads = busy["processors"] + waiting + (1 - 1 / self.num_threads) * path
        shared = busy["processors"] * self.num_threads + busy["client"] + busy.get("scheduler", 0)
        return max(path, threads, *busy.values(), shared / processors if processors else 0.0)

    def forecast(self) -> Forecast:
        """Compute the forecast."""
        job, costs = self.job, self.costs
        phases = self.checks, self.indices, self.blend
        num_tasks = sum(phase.num_tasks for phase in phases)
        checked = self.opening_seconds + self._seconds(self.checks)
        opened = checked + self.planning_seconds
        # The blend uses resources left idle by the other phases.
        built = max(opened + self._seconds(self.indices), self._seconds(*phases))
        seconds = costs.base_seconds + built
        busy = self._busy(*phases)
        busy["client"] += self.planning_seconds
        if not self.num_checks:
            busy["checks"] = self.opening_seconds
        # A node is unavailable after each failure, and its unfinished tasks run again.
        away = (costs.detection_seconds + costs.restart_seconds) / costs.node_mtbf_seconds
        again = sum(phase.compute_seconds for phase in phases) / num_tasks / 2
        seconds *= (1 + away) * (1 + again / costs.node_mtbf_seconds)
        num_running = min(self.num_threads, num_tasks) * min(1.0, busy["processors"] / seconds)
        num_lost = round(seconds / costs.node_mtbf_seconds * max(num_running, 1.0))
        shares = {name: value / seconds for name, value in busy.items()}
        bound = max(shares, key=shares.__getitem__)
        most = max(self.checks.num_tasks, self.indices.num_tasks) + self.blend.num_tasks
        outstanding = min(most, _TASKS_PER_THREAD * self.num_threads)
        receipts = job.num_shards * _RECEIPT_NBYTES
        return Forecast(
            seconds=seconds,
            num_tasks=num_tasks,
            num_lost=num_lost,
            num_shards=job.num_shards,
            written_nbytes=sum(phase.written_nbytes for phase in phases),
            busy=shares,
            bound=bound if shares[bound] >= _BOUND_SHARE else "order",
            client_nbytes=outstanding * costs.client_task_nbytes + receipts,
            scheduler_nbytes=outstanding * costs.scheduler_task_nbytes,
            stages=self._stage_stops(checked, opened, built),
        )

    def _stage_stops(self, checked: float, opened: float, built: float) -> dict[str, float]:
        """Return the end of each stage; stages of a phase share its time by work."""
        stops = {}
        for phase, start, stop in (
            (self.checks, 0.0, checked),
            (self.indices, opened, built),
            (self.blend, 0.0, built),
        ):
            work, done = sum(phase.stage_seconds.values()), 0.0
            for stage, seconds in phase.stage_seconds.items():
                done += seconds
                share = done / work if work else 1.0
                stops[stage] = self.costs.base_seconds / 2 + start + share * (stop - start)
        return stops
