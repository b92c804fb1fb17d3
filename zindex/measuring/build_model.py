"""What a build consists of: its size, what each step costs, and how the engine orders the steps.

This mirrors `zindex.building` in numbers alone: nothing here opens a file or starts a task. The
simulator walks through the steps, and a fit of measured builds gives their costs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from zindex.building.bundles import MAX_INDICES, MAX_ROWS, MIN_SMALL, TASKS_PER_THREAD
from zindex.building.opening import FEW_NBYTES, TASK_FILES, TASK_NBYTES
from zindex.errors import ConfigError
from zindex.plan.index_plan import Order, Stored
from zindex.plan.shard_length import choose_grid
from zindex.store.layout import MAX_SHARDS, SHARD_LENGTH, ChunkGrid

#: Bytes of a ``.idx`` file for each of its documents.
IDX_NBYTES = 20


@dataclass(frozen=True)
class Job:
    """A build: its data and how it is ordered, cut and stored. All datasets are equally large."""

    num_tokens: float
    num_datasets: int = 1000
    #: Tokens of a document on average.
    document_length: float = 800.0
    #: Tokens of a sample.
    sequence_length: int = 4096
    order: Order = "scalable"
    stored: Stored = "all"
    #: Whether the datasets are blended; a run that is not has one index per dataset, and no more.
    blend: bool = True
    #: Elements per file, the work of one task, before it grows with the array.
    shard_length: int = SHARD_LENGTH
    #: Whether the shards of indices grow with the datasets, as `choose_grid` has it.
    grows: bool = True
    #: Elements per file of the blend; None: as of the indices.
    blend_shard_length: int | None = None

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.num_datasets < 1 or self.shard_length < 1:
            raise ConfigError(
                "a job must have at least one token, one dataset and one element per shard, got "
                f"{self.num_tokens:,} tokens, {self.num_datasets} datasets and shards of "
                f"{self.shard_length}; name a larger one"
            )

    @property
    def dataset_documents(self) -> int:
        """Documents of each dataset."""
        return max(1, round(self.num_tokens / self.document_length / self.num_datasets))

    @property
    def dataset_samples(self) -> int:
        """Samples of each dataset."""
        return max(1, round(self.num_tokens / self.sequence_length / self.num_datasets))

    @property
    def num_samples(self) -> int:
        """Samples of all datasets, and so of the blend."""
        return self.dataset_samples * self.num_datasets

    @cached_property
    def index_shard_length(self) -> int:
        """Elements per file of an index."""
        if not self.grows or self.shard_length != SHARD_LENGTH:
            return self.shard_length
        return choose_grid(ChunkGrid(), [self.dataset_documents] * self.num_datasets).shard_length

    @cached_property
    def document_cuts(self) -> tuple[int, ...]:
        """Documents in each shard of one dataset."""
        return _cut_shards(self.dataset_documents, self.index_shard_length)

    @cached_property
    def sample_cuts(self) -> tuple[int, ...]:
        """Samples in each shard of one dataset."""
        return _cut_shards(self.dataset_samples, self.index_shard_length)

    @cached_property
    def blend_cuts(self) -> tuple[int, ...]:
        """Samples in each shard of the blend: none if it is not stored."""
        if not self.blend or self.stored == "minimal":
            return ()
        return _cut_shards(self.num_samples, self.blend_shard_length or self.shard_length)

    @cached_property
    def check_cuts(self) -> tuple[int, ...]:
        """Datasets of each task that checks their ``.idx`` files; none if the client does it."""
        nbytes = IDX_NBYTES * self.dataset_documents
        if nbytes * self.num_datasets <= FEW_NBYTES:
            return ()
        return _cut(self.num_datasets, min(TASK_FILES, max(1, TASK_NBYTES // nbytes)))

    def bundle_cuts(self, num_threads: int) -> tuple[int, ...]:
        """Return the indices of each bundle: none if indices are too large or too few for it."""
        is_small = len(self.document_cuts) == len(self.sample_cuts) == 1
        if not is_small or self.num_datasets < MIN_SMALL:
            return ()
        rows = self.dataset_documents + self.dataset_samples
        longest = min(
            MAX_INDICES,
            max(1, self.num_datasets // (TASKS_PER_THREAD * num_threads)),
            max(1, MAX_ROWS // rows),
        )
        return _cut(self.num_datasets, longest)

    @property
    def num_shards(self) -> int:
        """Files of values that the build writes."""
        index = len(self.sample_cuts)
        if self.stored == "all":
            index += len(self.document_cuts) + len(self.sample_cuts)
        return index * self.num_datasets + 2 * len(self.blend_cuts)

    def loads(self) -> dict[str, tuple[int, int]]:
        """Return what each stage has to do: its steps, and its elements.

        A step is a task, or a part of one that does several. Elements are documents while datasets
        are checked, ordered and counted, samples otherwise.
        """
        num, documents, samples = self.num_datasets, self.dataset_documents, self.dataset_samples
        loads = {"check": (num, num * documents)}
        shards = num * len(self.document_cuts), num * documents
        if self.order == "megatron":
            loads |= {"documents": (num, num * documents), "count": shards}
            loads["shuffle"] = num, num * samples
        else:
            loads["documents"] = shards
            if self.stored == "all":
                loads["shuffle"] = num * len(self.sample_cuts), num * samples
        loads["samples"] = num * len(self.sample_cuts), num * samples
        if self.blend_cuts:
            loads["blend"] = len(self.blend_cuts), self.num_samples
            if self.order == "megatron":
                loads["describe"] = len(self.blend_cuts), 0
                loads["store"] = len(self.blend_cuts), self.num_samples
        return loads

    def written_nbytes(self, stage: str) -> float:
        """Return the bytes that a stage writes for each of its elements."""
        wide = 2 if self.dataset_documents >= 2**31 else 1
        per_sample = {"samples": 8.0 * wide, "shuffle": 4.0, "blend": 6.0, "store": 6.0}
        if self.order == "megatron":
            per_sample["blend"] = 0.0
        if stage == "documents":
            return 4.0 * wide if self.stored == "all" else 0.0
        return per_sample.get(stage, 0.0)

    @property
    def nbytes(self) -> float:
        """Bytes of values of the whole build."""
        return sum(self.written_nbytes(stage) * load[1] for stage, load in self.loads().items())


def _cut(length: int, part: int) -> tuple[int, ...]:
    """Return a length as equal parts and the rest."""
    whole, rest = divmod(length, part)
    return (part,) * whole + ((rest,) if rest else ())


def _cut_shards(length: int, shard_length: int) -> tuple[int, ...]:
    """Return the elements of each shard; shards grow where there would be too many."""
    while length > shard_length * MAX_SHARDS:
        shard_length *= 2
    return _cut(length, shard_length)


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a task of one stage takes on one thread, its write to the disk included."""

    task_seconds: float
    element_seconds: float
    #: Bytes that go between processor and memory for each element.
    memory_nbytes: float = 0.0


# Bytes of memory for each element: a cache line for each random access, the streams besides.
_MEMORY_NBYTES = {
    "check": 20.0,
    "documents": 90.0,
    "count": 80.0,
    "samples": 40.0,
    "shuffle": 12.0,
    "blend": 20.0,
    "describe": 0.0,
    "store": 18.0,
}


def _default_stages() -> dict[str, StageCost]:
    """Return plausible costs of a thread of a server, for a forecast without a measurement."""
    seconds = {
        "check": (0.5e-3, 10e-9),
        "documents": (3.5e-3, 25e-9),
        "count": (1.0e-3, 8e-9),
        "samples": (3.5e-3, 30e-9),
        "shuffle": (3.5e-3, 8e-9),
        "blend": (5e-3, 12e-9),
        "describe": (0.5e-3, 0.0),
        "store": (5e-3, 3e-9),
    }
    return {name: stage_cost(name, *cost) for name, cost in seconds.items()}


def stage_cost(stage: str, task_seconds: float, element_seconds: float) -> StageCost:
    """Return the cost of a stage with the memory traffic that is known of it."""
    return StageCost(task_seconds, element_seconds, _MEMORY_NBYTES.get(stage, 0.0))


@dataclass(frozen=True)
class Costs:
    """What steps take and what the machines give; measured, or the plausible values here."""

    #: Stage -> cost in the scalable order; ``megatron`` where that order differs.
    stages: Mapping[str, StageCost] = field(default_factory=_default_stages)
    #: Stage -> cost in Megatron's order where it is another one: one task shuffles a dataset.
    megatron: Mapping[str, StageCost] = field(
        default_factory=lambda: {
            "documents": stage_cost("documents", 6e-3, 8e-9),
            "shuffle": stage_cost("shuffle", 5e-3, 8e-9),
            "blend": stage_cost("blend", 5e-3, 40e-9),
        }
    )
    #: Seconds of Python for each task, beside what it computes: in the process that orders tasks,
    #: in Dask's scheduler, and on the worker.
    client_task_seconds: float = 1.3e-3
    scheduler_task_seconds: float = 1.8e-3
    worker_task_seconds: float = 1.7e-3
    #: Seconds of either for each number that a task carries with it.
    argument_seconds: float = 0.35e-6
    #: Seconds of the client for each dataset: opening and planning it.
    dataset_seconds: float = 2e-3
    #: Seconds for the beginning and the commit of each index: of the worker that builds a bundle of
    #: small ones, and of the client, which does it for the others.
    index_seconds: float = 9e-3
    client_index_seconds: float = 9e-3
    #: Seconds of the client for each shard in a commit.
    shard_seconds: float = 20e-6
    #: Seconds before the first task and after the last.
    base_seconds: float = 0.1
    #: Bytes per second of a node's memory, of its way to the store and back, and of all nodes'.
    memory_bandwidth: float = 2e10
    write_bandwidth: float = 1e9
    read_bandwidth: float = 2e9
    store_bandwidth: float = 1e11
    #: Seconds between two losses of one node on average; infinity: none.
    node_mtbf_seconds: float = float("inf")
    #: Seconds until a lost node is noticed, and until another is in its place.
    detection_seconds: float = 15.0
    restart_seconds: float = 60.0
    #: Bytes of the client and of the scheduler for each task that was handed over and is not done.
    client_task_nbytes: float = 19_000.0
    scheduler_task_nbytes: float = 4_800.0

    def stage(self, name: str, order: Order) -> StageCost:
        """Return the cost of a stage in an order."""
        found = self.megatron.get(name) if order == "megatron" else None
        return found or self.stages[name]

    def to_json(self) -> dict[str, Any]:
        """Return the costs as JSON values."""
        return asdict(replace(self, stages=dict(self.stages), megatron=dict(self.megatron)))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a build runs."""

    num_nodes: int = 1
    #: Tasks that a node runs at a time.
    num_threads: int = 16
    #: Whether the scheduler shares the Python process of the client, as `LocalCluster` does.
    scheduler_in_client: bool = False
    #: Processors that everything shares, where it runs on one machine; None: nobody waits for one.
    num_processors: int | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.num_threads < 1:
            raise ConfigError(
                "a cluster must have at least one node with one thread, got "
                f"{self.num_nodes} nodes with {self.num_threads} threads; name more"
            )


@dataclass(frozen=True, slots=True)
class Design:
    """How the engine orders tasks: what it does, and what it could do instead."""

    #: Whether workers check the datasets where there is much to check; otherwise the client does.
    check_in_tasks: bool = True
    #: Threads of the client that open datasets.
    num_openers: int = 8
    #: Whether one task builds several small indices.
    bundles: bool = True
    #: Tasks that the scheduler has at a time, for each thread; None: all that can be begun.
    window: int | None = 16
    #: Chunks of a blend that wait or run, for each thread.
    blend_window: int = 3
    #: Whether the tasks of a dataset prefer the nodes that hold its lengths.
    affinity: bool = False
    #: Whether a task of the sample index carries the sums of all document shards, or its own only.
    all_sums: bool = False
    #: Bytes of lengths that a process holds for random access.
    held_nbytes: float = 2.0**30
    #: Bytes of ordered lengths that a process keeps for the sample index.
    ordered_nbytes: float = 2.0**28
