"""The fields that plans of indices, packings, mappings and blends share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from zindex import schema
from zindex.arrays import DTypeLike, Int64Array
from zindex.errors import ConfigError, PlanError, check_choice
from zindex.io.objects import PlaceLike
from zindex.plan.keys import RoundKeys, Stage, round_keys
from zindex.plan.split import SPLIT_NAMES
from zindex.store.commit import StorePlan
from zindex.store.layout import SHARD_LENGTH, ArrayLayout, ChunkGrid

Order = Literal["megatron", "scalable"]
Stored = Literal["all", "minimal"]

ORDERS: tuple[Order, ...] = ("megatron", "scalable")
#: A thread uses about 20 bytes per element of a shard: 320 MiB.
MAX_SHARD_LENGTH = 1 << 24
#: From this many datasets on, one dataset per task keeps all threads busy.
MIN_DATASETS = 64

INT32_MAX = np.iinfo(np.int32).max
UINT32_MAX = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Identity of a dataset's index: its sequence lengths, not its path."""

    #: SHA-256, in hex, of the sequence lengths.
    length_digest: str
    num_sequences: int
    num_tokens: int

    @property
    def digest(self) -> str:
        """SHA-256, in hex, that keys the permutations of the dataset."""
        return self.length_digest

    @property
    def num_documents(self) -> int:
        """Documents of the dataset: each sequence is one."""
        return self.num_sequences


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """One store to build for a split of a run."""

    split: str
    seed: int
    #: ``"minimal"`` leaves out the arrays that can be computed on read.
    stored: Stored = "all"
    grid: ChunkGrid = field(default_factory=ChunkGrid)

    def __post_init__(self) -> None:
        check_choice("store", self.stored, ("all", "minimal"))
        check_choice("split", self.split, SPLIT_NAMES)

    @property
    def prefix(self) -> str:
        """First word of the store's name; the split and the fingerprint follow."""
        raise NotImplementedError

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        raise NotImplementedError

    @property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the stored arrays, estimated where a build must count first."""
        raise NotImplementedError

    @property
    def num_build_rows(self) -> int:
        """Rows that a build computes: the amount of work."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of values to store."""
        return sum(layout.nbytes for layout in self.layouts)

    def layout(self, spec: schema.ArraySpec, length: int, dtype: DTypeLike) -> ArrayLayout:
        """Return the layout of one array on the plan's grid."""
        return ArrayLayout.plan(spec, length, dtype, self.grid)

    def store_plan(self, folder: PlaceLike) -> StorePlan:
        """Return the store to build: a directory named by split and fingerprint."""
        return self._nameless_store.named(folder, f"{self.prefix}-{self.split}")

    @cached_property
    def _nameless_store(self) -> StorePlan:
        spec = self.spec | {"store": self.stored}
        return StorePlan(Path(), "index", spec, self.layouts, self.grid)


def check_order(order: Order, stored: Stored) -> None:
    """Check the order of an index, and that a minimal store can compute the rest on read."""
    check_choice("order", order, ORDERS)
    if stored == "minimal" and order == "megatron":
        raise ConfigError(
            "store='minimal' needs order='scalable', got order='megatron': its shuffles "
            "cannot be computed on read; store all or change the order"
        )


@dataclass(frozen=True, kw_only=True)
class SplitPlan(BuildPlan):
    """One index of a split of a dataset: documents ``[start, stop)`` of a source."""

    #: Fields that the spec holds under their own names.
    spec_fields: ClassVar[tuple[str, ...]] = ("split", "start", "stop", "seed")

    source: Any
    #: Documents of the split, half-open.
    start: int
    stop: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.start < self.stop <= self.source.num_documents:
            raise PlanError(
                f"a split must hold documents of [0, {self.source.num_documents}), got "
                f"[{self.start}, {self.stop}); give it a larger share"
            )
        high = self.seed_limit
        if not 0 <= self.seed < high:
            raise ConfigError(f"seed must be in [0, {high}), got {self.seed}; choose another")

    @property
    def seed_limit(self) -> int:
        """Seeds are below this."""
        return 2**63

    @property
    def num_documents(self) -> int:
        """Documents of one epoch."""
        return self.stop - self.start

    def round_keys(self, stage: Stage, epoch: int) -> RoundKeys:
        """Return the round keys of one epoch's permutation of documents, samples or targets."""
        digest = self.source.digest
        return round_keys(self.seed, stage, source_digest=digest, split=self.split, epoch=epoch)

    def shuffle_layout_of(self, num_samples: int) -> ArrayLayout:
        """Return the layout of ``shuffle_index`` for a number of samples, stored or not."""
        dtype = np.uint32 if num_samples < UINT32_MAX - 1 else np.int64
        return self.layout(schema.SHUFFLE_INDEX, num_samples, dtype)

    @property
    def document_dtype(self) -> np.dtype[Any]:
        """Dtype of document ids, and of offsets in documents."""
        return np.dtype(np.int32 if self.stop - 1 <= INT32_MAX else np.int64)

    @property
    def own_spec(self) -> dict[str, Any]:
        """The part of the spec that names fields of the plan."""
        return {name: getattr(self, name) for name in self.spec_fields}

    @classmethod
    def read_spec(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a plan that the spec of its store names."""
        return {name: spec[name] for name in cls.spec_fields} | {"stored": spec["store"]}


@dataclass(frozen=True, kw_only=True)
class CountedPlan(SplitPlan):
    """An index whose size is known once its documents are counted, epoch after epoch.

    The documents of an epoch are divided into partitions that are counted independently.
    """

    #: Minimum number of samples, in as many whole epochs as needed; None means one epoch.
    num_requested: int | None = None
    #: Approximate minimum of rows counted together; only tests change the default.
    partition_length: int

    @property
    def rows_per_epoch(self) -> int:
        """Rows that are counted in one epoch."""
        return self.num_documents

    @property
    def partitions_per_epoch(self) -> int:
        """Partitions of an epoch's documents, counted independently."""
        return max(1, min(self.num_documents, self.rows_per_epoch // self.partition_length))

    @property
    def num_wanted(self) -> int | None:
        """Samples to count, or None if one epoch is enough."""
        return self.num_requested

    def describe(self, starts: Int64Array) -> tuple[tuple[ArrayLayout, ...], dict[str, Any]]:
        """Return the exact layouts, and sizes for the attributes, given the partition starts.

        Parameters
        ----------
        starts
            Shape (partitions + 1, columns), int64; see `sample_starts`.
        """
        raise NotImplementedError

    def partition_bounds(self, partition: int) -> tuple[int, int, int]:
        """Return the epoch of a partition, and its documents ``[first, last)`` of the split.

        The partitions of an epoch are equally long, to within one document.
        """
        count = self.partitions_per_epoch
        epoch, number = divmod(partition, count)
        first, last = (self.num_documents * i // count for i in (number, number + 1))
        return epoch, first, last

    def sample_starts(self, partition_starts: Int64Array) -> Int64Array:
        """Return the sample at which each epoch starts, then the number of samples.

        Parameters
        ----------
        partition_starts
            Shape (partitions + 1, columns), int64: the first column is the sample at which each
            partition starts.

        Returns
        -------
        sample_starts
            Shape (epochs + 1,), int64.
        """
        return np.ascontiguousarray(partition_starts[:: self.partitions_per_epoch, 0])


def count_epochs(sample_starts: Int64Array, num_wanted: int | None) -> int | None:
    """Return the least number of epochs that give the samples wanted, or None if none do.

    Parameters
    ----------
    sample_starts
        Shape (epochs + 1,), int64: sample at which each epoch starts, and their number.
    num_wanted
        Samples wanted; None means one epoch.

    Examples
    --------
    >>> count_epochs(np.array([0, 5, 10, 16]), 10), count_epochs(np.array([0, 5]), 6)
    (2, None)
    """
    if num_wanted is None:
        return 1
    enough = np.flatnonzero(sample_starts >= num_wanted)
    return max(1, int(enough[0])) if enough.size else None


def choose_grid(grid: ChunkGrid, num_documents: Sequence[int]) -> ChunkGrid:
    """Return a grid on which most datasets of a large run are a single shard.

    An index of one shard is built by one task from start to commit, together with others. For many
    datasets this saves most of the client's own work.

    Parameters
    ----------
    grid
        The configured grid; a shard length other than the default stays.
    num_documents
        Of each dataset.

    Notes
    -----
    A task writes one shard. Small shards make many tasks, each of which costs the scheduler and
    the client some milliseconds; large ones use memory, and leave cores idle at the end of a build.

    Examples
    --------
    >>> choose_grid(ChunkGrid(), [6_250_000] * 1000).shard_length == 2**23
    True
    >>> choose_grid(ChunkGrid(), [6_250_000] * 10).shard_length == SHARD_LENGTH
    True
    """
    if grid.shard_length != SHARD_LENGTH or len(num_documents) < MIN_DATASETS:
        return grid
    typical = sorted(num_documents)[9 * len(num_documents) // 10]
    shard_length = SHARD_LENGTH
    while shard_length < min(typical, MAX_SHARD_LENGTH):
        shard_length *= 2
    return replace(grid, shard_length=shard_length)
