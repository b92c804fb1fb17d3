"""Size, order and store of a build to forecast, and its numbers of shards and tasks."""

from dataclasses import dataclass
from functools import cached_property

from zindex.errors import ConfigError
from zindex.execution.dask_executor import DaskExecutor
from zindex.indexing.index import MAX_INDICES, MIN_SMALL, bundle_seconds
from zindex.indexing.open_sources import FEW_NBYTES, TASK_FILES, check_nbytes
from zindex.indexing.task_size import choose_task_seconds, count_tasks, estimate_seconds
from zindex.plan.build_plan import MAX_SHARD_LENGTH, Order, Stored, choose_grid
from zindex.store.layout import MAX_SHARDS, SHARD_LENGTH, ChunkGrid

#: Bytes per document in a ``.idx`` file.
IDX_NBYTES = 20


@dataclass(frozen=True)
class Job:
    """A build of equally large datasets: size, order, shards and store."""

    num_tokens: float
    num_datasets: int = 1000
    #: Mean tokens per document.
    document_length: float = 800.0
    #: Tokens per sample.
    sequence_length: int = 4096
    order: Order = "scalable"
    stored: Stored = "all"
    #: Whether the datasets are blended; if not, only their indices are built.
    blend: bool = True
    #: Elements per file and task, before it grows with the array.
    shard_length: int = SHARD_LENGTH
    #: Whether index shards grow with the datasets, as in `choose_grid`.
    grows: bool = True

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.num_datasets < 1 or self.shard_length < 1:
            raise ConfigError(
                "a job must have at least one token, one dataset and one element per shard, got "
                f"{self.num_tokens:,} tokens, {self.num_datasets} datasets and shards of "
                f"{self.shard_length}; name a larger one"
            )

    @property
    def dataset_documents(self) -> int:
        """Number of documents per dataset."""
        return max(1, round(self.num_tokens / self.document_length / self.num_datasets))

    @property
    def dataset_samples(self) -> int:
        """Number of samples per dataset."""
        return max(1, round(self.num_tokens / self.sequence_length / self.num_datasets))

    @property
    def num_samples(self) -> int:
        """Number of samples of all datasets, and therefore of the blend."""
        return self.dataset_samples * self.num_datasets

    @cached_property
    def index_shard_length(self) -> int:
        """Elements per file of an index."""
        if not self.grows or self.shard_length != SHARD_LENGTH:
            return self.shard_length
        return choose_grid(ChunkGrid(), [self.dataset_documents] * self.num_datasets).shard_length

    @property
    def document_shards(self) -> int:
        """Number of document shards per dataset."""
        return _count_shards(self.dataset_documents, self.index_shard_length)

    @property
    def sample_shards(self) -> int:
        """Number of sample shards per dataset."""
        return _count_shards(self.dataset_samples, self.index_shard_length)

    @property
    def blend_shards(self) -> int:
        """Number of blend shards; 0 if the blend is not stored."""
        if not self.blend or self.stored == "minimal":
            return 0
        return _count_shards(self.num_samples, self.shard_length)

    def check_tasks(self, num_threads: int) -> int:
        """Return the number of tasks that check ``.idx`` files; 0 if the client checks them."""
        nbytes = IDX_NBYTES * self.dataset_documents
        total = nbytes * self.num_datasets
        if total <= FEW_NBYTES:
            return 0
        room = check_nbytes(total, num_threads, DaskExecutor.overhead)
        return -(-self.num_datasets // min(TASK_FILES, max(1, int(room // nbytes))))

    def task_seconds(self, num_threads: int) -> float:
        """Return how long a task should compute at least."""
        num_rows = self.num_datasets * (self.dataset_documents + self.dataset_samples)
        if self.blend_shards:
            num_rows += self.num_samples
        seconds = estimate_seconds(num_rows, self.num_shards)
        return choose_task_seconds(seconds, num_threads, DaskExecutor.overhead)

    def bundle_tasks(self, num_threads: int) -> int:
        """Return the number of tasks that build bundles of small indices; 0 without bundles."""
        task_seconds = self.task_seconds(num_threads)
        rows = self.dataset_documents + self.dataset_samples
        seconds = estimate_seconds(rows, self.index_shards)
        is_short = self.dataset_documents <= MAX_SHARD_LENGTH and seconds <= task_seconds
        is_small = is_short or self.document_shards == self.sample_shards == 1
        if not is_small or self.num_datasets < MIN_SMALL:
            return 0
        room = max(task_seconds, bundle_seconds(self.num_datasets * seconds, num_threads))
        return -(-self.num_datasets // min(MAX_INDICES, max(1, int(room / seconds))))

    def stage_tasks(self, stage: str, num_threads: int) -> int:
        """Return the number of tasks of a stage, which may store several shards each."""
        num_steps = self.loads()[stage][0]
        is_greedy = self.order == "megatron" and stage not in ("count", "samples")
        if is_greedy or stage == "check":
            return num_steps
        is_blend = stage == "blend"
        num_arrays = 1 if is_blend else self.num_datasets
        length = self.shard_length if is_blend else self.index_shard_length
        seconds = self.task_seconds(num_threads)
        return num_arrays * count_tasks(num_steps // num_arrays, length, seconds)

    @property
    def index_shards(self) -> int:
        """Number of array files per dataset."""
        others = self.document_shards + self.sample_shards if self.stored == "all" else 0
        return self.sample_shards + others

    @property
    def num_shards(self) -> int:
        """Number of array files that the build writes."""
        return self.index_shards * self.num_datasets + 2 * self.blend_shards

    def loads(self) -> dict[str, tuple[int, int]]:
        """Return the number of steps and of elements of each stage.

        A step is a task, or part of a task that does several. Elements are documents while datasets
        are checked, ordered and counted, samples otherwise.
        """
        num, documents, samples = self.num_datasets, self.dataset_documents, self.dataset_samples
        loads = {"check": (num, num * documents)}
        shards = num * self.document_shards, num * documents
        if self.order == "megatron":
            loads |= {"documents": (num, num * documents), "count": shards}
            loads["shuffle"] = num, num * samples
        else:
            loads["documents"] = shards
            if self.stored == "all":
                loads["shuffle"] = num * self.sample_shards, num * samples
        loads["samples"] = num * self.sample_shards, num * samples
        if self.blend_shards:
            loads["blend"] = self.blend_shards, self.num_samples
            if self.order == "megatron":
                loads["describe"] = self.blend_shards, 0
                loads["store"] = self.blend_shards, self.num_samples
        return loads

    def written_nbytes(self, stage: str) -> float:
        """Return the bytes that a stage writes per element."""
        wide = 2 if self.dataset_documents >= 2**31 else 1
        per_sample = {"samples": 8.0 * wide, "shuffle": 4.0, "blend": 6.0, "store": 6.0}
        if self.order == "megatron":
            per_sample["blend"] = 0.0
        if stage == "documents":
            return 4.0 * wide if self.stored == "all" else 0.0
        return per_sample.get(stage, 0.0)

    @property
    def nbytes(self) -> float:
        """Size of all arrays of the build, in bytes."""
        return sum(self.written_nbytes(stage) * load[1] for stage, load in self.loads().items())


def _count_shards(length: int, shard_length: int) -> int:
    """Return the number of shards of an array; shards grow if there would be too many."""
    while length > shard_length * MAX_SHARDS:
        shard_length *= 2
    return -(-length // shard_length)
