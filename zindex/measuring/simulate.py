"""How long a build takes on so many nodes, what bounds it, and what it needs: by simulation.

Tasks, their order and who waits for whom are those of `zindex.building`; what they take is given.
A task holds one thread; it ends when its computation is over and its bytes are moved, and bytes of
one node, or of the whole store, queue. The client and the scheduler serve one task at a time.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from zindex.measuring.build_model import IDX_NBYTES, Cluster, Costs, Design, Job
from zindex.measuring.events import Clock, Server, Task, Workers

# As in the engine: what others wait for comes first, and what frees memory before all.
_LAST, _FIRST, _WRITE = 0, 1, 3
# A resource that is busy for less of the time does not bound the build: waiting does.
_BOUND_SHARE = 0.5
# Bytes of the client for the receipt of each shard.
_RECEIPT_NBYTES = 400


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a simulated build took."""

    seconds: float
    num_tasks: int
    #: Tasks that ran again because their node was lost.
    num_lost: int
    #: Files of values that are written.
    num_shards: int
    written_nbytes: float
    #: Resource -> share of the time in which it was busy; of many nodes the mean.
    busy: dict[str, float]
    #: The busiest resource, or "order" where none is busy for half of the time.
    bound: str
    #: Most memory of the client and of the scheduler for tasks that are not done.
    client_nbytes: float
    scheduler_nbytes: float
    #: Stage -> seconds from the start until the last of its tasks was done.
    stages: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON values."""
        return asdict(self)


def simulate(
    job: Job,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    design: Design | None = None,
    seed: int = 0,
) -> Forecast:
    """Return what a build takes.

    Parameters
    ----------
    job
        What is built.
    cluster
        Where.
    costs
        What each step takes; plausible values by default.
    design
        How the engine orders tasks; by default as it does.
    seed
        Decides which nodes are lost, and when.

    Notes
    -----
    Law: never faster than all work over all threads, nor than bytes over bandwidth, nor than the
    tasks' number times what the client or the scheduler takes for one.

    Examples
    --------
    >>> job = Job(1e12, num_datasets=100)
    >>> one, ten = (simulate(job, Cluster(num_nodes=nodes)) for nodes in (1, 10))
    >>> one.num_tasks == ten.num_tasks, one.seconds > ten.seconds
    (True, True)
    """
    return _Build(job, cluster, costs or Costs(), design or Design(), seed).run()


class _Build:
    """One simulated build."""

    def __init__(self, job: Job, cluster: Cluster, costs: Costs, design: Design, seed: int) -> None:
        self.job, self.cluster, self.costs, self.design = job, cluster, costs, design
        self.clock = Clock()
        self.workers = Workers(
            self.clock,
            cluster,
            costs,
            design,
            surcharge=self._surcharge,
            lengths_nbytes=4.0 * job.dataset_documents,
            seed=seed,
        )
        self.openers = Server(self.clock, design.num_openers)
        self.num_unopened = job.num_datasets
        self.num_open = job.num_datasets + bool(job.blend_cuts)
        # Ordered lengths that nodes keep: (dataset, shard) -> generation of the node.
        self.ordered: list[OrderedDict[tuple[int, int], int]] = [
            OrderedDict() for _ in range(cluster.num_nodes)
        ]
        self.max_ordered = int(design.ordered_nbytes / (4.0 * max(job.document_cuts)))
        # Chunks of the blend: begun, described, handed over to be stored, and stored.
        self.num_begun = self.num_proven = self.num_stored = 0
        self.is_described = [False] * len(job.blend_cuts)
        self.computed: dict[int, Task] = {}
        regathered = "documents" if job.order == "scalable" else "count"
        self.regather_seconds = costs.stage(regathered, job.order).element_seconds
        self.seconds = 0.0

    def run(self) -> Forecast:
        """Let the build go from its beginning to its end."""
        self.clock.at(self.costs.base_seconds / 2, self._begin)
        self.clock.run(lambda: not self.num_open)
        self.seconds = self.clock.now + self.costs.base_seconds / 2
        return self._forecast()

    def _begin(self) -> None:
        """Begin with the blend, and open all datasets meanwhile."""
        for _ in range(
            self.design.blend_window * self.cluster.num_nodes * self.cluster.num_threads
        ):
            self._next_chunk()
        cost = self.costs.stage("check", self.job.order)
        documents = self.job.dataset_documents
        self.is_checked_here = not (self.design.check_in_tasks and self.job.check_cuts)
        if self.is_checked_here:
            reading = IDX_NBYTES * documents / self.costs.read_bandwidth
            seconds = cost.task_seconds + cost.element_seconds * documents
            seconds = max(seconds, reading * self.design.num_openers)
            for _ in range(self.job.num_datasets):
                self.openers.serve(seconds, self._checked, 1)
            return
        for number in self.job.check_cuts:
            task = self._task("check", number * documents, self._check_done, shard=number)
            task.seconds += (number - 1) * cost.task_seconds
            task.read_nbytes = IDX_NBYTES * documents * number
            task.priority = _WRITE
            self.workers.submit(task)

    def _check_done(self, task: Task) -> None:
        self._checked(task.shard)

    def _checked(self, number: int) -> None:
        """Begin with the indices once all datasets are open: their sizes follow from all."""
        self.num_unopened -= number
        if self.num_unopened:
            return
        job, client = self.job, self.workers.client
        cuts: tuple[int, ...] = ()
        if self.design.bundles:
            cuts = job.bundle_cuts(self.cluster.num_nodes * self.cluster.num_threads)
        for number in cuts:
            client.serve(self.costs.dataset_seconds * number, self._begin_bundle, number)
        if not cuts:
            seconds = self.costs.dataset_seconds + self.costs.client_index_seconds / 2
            for dataset in range(job.num_datasets):
                client.serve(seconds, self._begin_index, dataset)

    def _begin_bundle(self, number: int) -> None:
        """Hand over a task that builds small indices, each from its beginning to its commit."""
        job, bundle = self.job, Task("bundle", 0.0, self._bundle_done, shard=number)
        for stage in ("documents", "count", "shuffle", "samples"):
            if stage in job.loads():
                length = job.loads()[stage][1] // job.num_datasets
                part = self._task(stage, length, self._bundle_done)
                bundle.seconds += number * part.seconds
                bundle.memory_nbytes += number * part.memory_nbytes
                bundle.written_nbytes += number * part.written_nbytes
        bundle.seconds += number * self.costs.index_seconds
        bundle.seconds += number * 4.0 * job.dataset_documents / self.costs.read_bandwidth
        self.workers.submit(bundle)

    def _bundle_done(self, task: Task) -> None:
        self.num_open -= task.shard

    def _task(self, stage: str, length: int, done: Callable[[Task], None], **facts: Any) -> Task:
        """Return a task of a stage for so many elements."""
        cost = self.costs.stage(stage, self.job.order)
        return Task(
            stage,
            cost.task_seconds + cost.element_seconds * length,
            done,
            memory_nbytes=cost.memory_nbytes * length,
            written_nbytes=self.job.written_nbytes(stage) * length,
            **facts,
        )

    @staticmethod
    def _one_of(left: list[int], call: Callable[[Any], None], *args: Any) -> Callable[[Task], None]:
        """Return what counts a task that is done, and calls when none is left."""

        def done(task: Task) -> None:
            left[0] -= 1
            if not left[0]:
                call(*(args or (task.dataset,)))

        return done

    def _begin_index(self, dataset: int) -> None:
        """Begin with the stages of one index."""
        job = self.job
        shuffles = 0
        if job.order == "megatron":
            shuffles = 1
        elif job.stored == "all":
            shuffles = len(job.sample_cuts)
        left = [shuffles + len(job.sample_cuts)]
        finish = self._one_of(left, self._commit, dataset)

        def begin_samples(_: Any) -> None:
            self._begin_samples(dataset, finish)

        if job.order == "megatron":
            facts = {"dataset": dataset, "priority": _FIRST}

            def shuffled(_: Task) -> None:
                self.workers.submit(self._task("shuffle", job.dataset_samples, finish, **facts))
                self._each_document_shard("count", dataset, begin_samples)

            self.workers.submit(self._task("documents", job.dataset_documents, shuffled, **facts))
            return
        self._each_document_shard("documents", dataset, begin_samples)
        if job.stored == "all":
            for length in job.sample_cuts:
                self.workers.submit(self._task("shuffle", length, finish, dataset=dataset))

    def _home(self, dataset: int) -> int | None:
        return dataset % self.cluster.num_nodes if self.design.affinity else None

    def _each_document_shard(self, stage: str, dataset: int, call: Callable[[Any], None]) -> None:
        """Order and count the documents of each shard, and go on when all are counted."""
        left = [len(self.job.document_cuts)]
        counted = self._one_of(left, call)

        def done(task: Task) -> None:
            ordered = self.ordered[task.node]
            if len(ordered) >= self.max_ordered:
                # Lengths of other builds make room.
                first = next(iter(ordered), None)
                if first is not None and first[0] != dataset:
                    del ordered[first]
            if len(ordered) < self.max_ordered:
                ordered[dataset, task.shard] = task.generation
            counted(task)

        for shard, length in enumerate(self.job.document_cuts):
            facts = {"dataset": dataset, "shard": shard, "priority": _FIRST}
            home = self._home(dataset)
            self.workers.submit(
                self._task(stage, length, done, uses_lengths=True, home=home, **facts)
            )

    def _begin_samples(self, dataset: int, finish: Callable[[Task], None]) -> None:
        """Look for the boundaries of samples, from the sums of tokens that are known now."""
        num_sums = len(self.job.document_cuts) if self.design.all_sums else 1
        for shard, length in enumerate(self.job.sample_cuts):
            facts = {"dataset": dataset, "shard": shard, "num_arguments": num_sums}
            self.workers.submit(
                self._task("samples", length, finish, home=self._home(dataset), **facts)
            )

    def _surcharge(self, task: Task, node: int) -> float:
        """Return what a task takes beyond its own on a node that lacks what it builds on."""
        if task.stage == "samples":
            missing = self._missing_documents(task, node)
            if missing:
                task.uses_lengths = True
            return missing * self.regather_seconds
        if task.stage == "store":
            made, generation = self.computed[task.shard], self.workers.generation
            if generation[made.node] != made.generation:
                return made.seconds
        return 0.0

    def _missing_documents(self, task: Task, node: int) -> int:
        """Return the documents of a shard of samples that the node did not order itself."""
        job, cuts = self.job, self.job.document_cuts
        start = task.shard * job.sample_cuts[0] / job.dataset_samples * job.dataset_documents
        length = job.sample_cuts[task.shard] / job.dataset_samples * job.dataset_documents
        first = min(int(start // cuts[0]), len(cuts) - 1)
        last = min(int((start + length - 1e-6) // cuts[0]), len(cuts) - 1)
        ordered, generation = self.ordered[node], self.workers.generation[node]
        return sum(
            cuts[shard]
            for shard in range(first, last + 1)
            if ordered.get((task.dataset, shard)) != generation
        )

    def _commit(self, dataset: int) -> None:
        """Let the client commit an index."""
        shards = self.job.num_shards - 2 * len(self.job.blend_cuts)
        seconds = self.costs.client_index_seconds / 2
        seconds += self.costs.shard_seconds * shards / self.job.num_datasets
        for ordered in self.ordered if self.cluster.num_nodes == 1 else ():
            for shard in range(len(self.job.document_cuts)):
                ordered.pop((dataset, shard), None)
        self.workers.client.serve(seconds, self._finish)

    def _finish(self) -> None:
        self.num_open -= 1

    def _next_chunk(self) -> None:
        """Begin with one more chunk of the blend, if there is one."""
        cuts, shard = self.job.blend_cuts, self.num_begun
        if shard == len(cuts):
            return
        self.num_begun += 1
        if self.job.order == "scalable":
            task = self._task("blend", cuts[shard], self._stored, priority=_WRITE, shard=shard)
        else:
            task = self._task("blend", cuts[shard], self._computed, shard=shard)
        self.workers.submit(task)

    def _computed(self, task: Task) -> None:
        """Ask for the ends of a greedy chunk."""
        self.computed[task.shard] = task
        describe = self._task("describe", 0, self._described, priority=_WRITE, shard=task.shard)
        self.workers.submit(describe)

    def _described(self, task: Task) -> None:
        """Store the chunks that are proven now: each proves the next, from the first one on."""
        self.is_described[task.shard] = True
        cuts = self.job.blend_cuts
        while self.num_proven < len(cuts) and self.is_described[self.num_proven]:
            shard, self.num_proven = self.num_proven, self.num_proven + 1
            facts = {"priority": _WRITE, "shard": shard}
            self.workers.submit(self._task("store", cuts[shard], self._stored, **facts))

    def _stored(self, task: Task) -> None:
        """Let the next chunk in, or commit the blend after the last one."""
        self.computed.pop(task.shard, None)
        self.num_stored += 1
        if self.num_stored == len(self.job.blend_cuts):
            seconds = self.costs.shard_seconds * 2 * self.num_stored
            self.workers.client.serve(seconds, self._finish)
        else:
            self._next_chunk()

    def _forecast(self) -> Forecast:
        workers, seconds = self.workers, self.seconds
        num_threads = self.cluster.num_nodes * self.cluster.num_threads
        busy = {
            "processors": workers.compute_seconds / (seconds * num_threads),
            "client": workers.client.seconds / seconds,
            "memory": _share(workers.memory, seconds),
            "node's writes": _share(workers.writing, seconds),
            "node's reads": _share(workers.reading, seconds),
            "store": _share([workers.store], seconds),
        }
        if workers.scheduler is not workers.client:
            busy["scheduler"] = workers.scheduler.seconds / seconds
        if self.is_checked_here:
            capacity = self.design.num_openers
            busy["checks"] = self.openers.seconds / (seconds * capacity)
        bound = max(busy, key=busy.__getitem__)
        arguments = 9.0 * workers.peak_arguments
        return Forecast(
            seconds=seconds,
            num_tasks=workers.num_tasks,
            num_lost=workers.num_lost,
            num_shards=self.job.num_shards,
            written_nbytes=sum(pipe.nbytes for pipe in workers.writing),
            busy=busy,
            bound=bound if busy[bound] >= _BOUND_SHARE else "order",
            client_nbytes=workers.peak_outstanding * self.costs.client_task_nbytes
            + self.job.num_shards * _RECEIPT_NBYTES,
            scheduler_nbytes=workers.peak_outstanding * self.costs.scheduler_task_nbytes
            + arguments,
            stages={name: times.stop for name, times in workers.stages.items()},
        )


def _share(pipes: list[Any], seconds: float) -> float:
    """Return the mean share of the time in which pipes were busy."""
    return float(sum(pipe.nbytes / pipe.bandwidth for pipe in pipes) / (seconds * len(pipes)))
