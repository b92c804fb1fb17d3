"""The plan of a packed index: samples made of whole documents, epoch after epoch.

Each epoch's documents are shuffled and cut into partitions, which are packed by themselves; then
the samples of each epoch are shuffled. How many samples there are is known when the documents are
packed: until then, all that is known is how few there can be.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.errors import ConfigError, PlanError
from zindex.kernels.packing import DROP, PACKING_VERSION, SPLIT, TRUNCATE
from zindex.plan.index_plan import SourceFacts, Stored
from zindex.plan.keys import RoundKeys, Stage, round_keys
from zindex.plan.settings import show
from zindex.plan.split import SPLIT_NAMES
from zindex.store.layout import ArrayLayout, ChunkGrid

Int64Array = npt.NDArray[np.int64]
#: What becomes of a document that is longer than a sample.
LongDocuments = Literal["split", "truncate", "drop"]

LONG_DOCUMENTS: dict[LongDocuments, int] = {"split": SPLIT, "truncate": TRUNCATE, "drop": DROP}
#: Documents that are packed together at least, where an epoch has them; part of the format. Fewer
#: cost padding: of equally likely lengths, those of n documents leave about 0.7 / sqrt(n) unfilled.
PARTITION_LENGTH = 1 << 20
#: Most documents that a sample may be allowed.
MAX_DOCUMENTS = 1 << 20

_INT32_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class PackingRules:
    """How documents become samples where they are kept whole."""

    #: Most documents of a sample: it bounds the sequences of an attention kernel.
    max_documents: int = 256
    #: Whether a document longer than a sample is ``"split"``, which loses nothing; has only its
    #: start taken, ``"truncate"``; or is left out, ``"drop"``.
    long_documents: LongDocuments = "split"

    def __post_init__(self) -> None:
        number = self.max_documents
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigError(
                f"max_documents of packing must be a whole number, got {show(number)}"
            )
        if not 1 <= number <= MAX_DOCUMENTS:
            raise ConfigError(
                f"max_documents of packing must be in [1, {MAX_DOCUMENTS:,}], got {show(number)}"
            )
        if self.long_documents not in list(LONG_DOCUMENTS):  # it may be of a kind without a hash
            raise ConfigError(
                "long_documents of packing must be 'split', 'truncate' or 'drop', got "
                f"{show(self.long_documents)}; 'split' loses nothing"
            )


@dataclass(frozen=True)
class PackingPlan:
    """One packed index: which documents, into samples of what length, under which rules."""

    source: SourceFacts
    split: str
    #: Documents of the split, half-open.
    start: int
    stop: int
    #: Tokens of those documents.
    tokens_per_epoch: int
    sequence_length: int
    #: 1 if a sample has room for one token more than ``sequence_length``, else 0.
    extra_token: int
    seed: int
    #: Samples wanted at least, in as many whole epochs as it takes; None means one epoch.
    num_requested: int | None = None
    rules: PackingRules = field(default_factory=PackingRules)
    #: ``"minimal"`` leaves out the shuffle, which is computed on read then.
    stored: Stored = "all"
    grid: ChunkGrid = field(default_factory=ChunkGrid)
    #: Documents packed together at least; other values than the default are for tests.
    partition_length: int = PARTITION_LENGTH

    def __post_init__(self) -> None:
        if self.stored not in ("all", "minimal"):
            raise ConfigError(f"store must be 'all' or 'minimal', got {self.stored!r}")
        if self.split not in SPLIT_NAMES:
            raise ConfigError(f"split must be one of {SPLIT_NAMES}, got {self.split!r}")
        if not 0 <= self.start < self.stop <= self.source.num_sequences:
            raise PlanError(
                f"a split must hold documents of [0, {self.source.num_sequences}), got "
                f"[{self.start}, {self.stop}); give it a larger share"
            )
        if self.tokens_per_epoch < 1:
            raise PlanError(
                f"a split must hold tokens to be packed, documents [{self.start}, {self.stop}) "
                "hold none; give it a larger share or ask for no samples of it"
            )
        if self.sequence_length < 1:
            raise PlanError(f"sequence_length must be at least 1, got {self.sequence_length}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}; choose another")

    @property
    def room(self) -> int:
        """Tokens that a sample has room for."""
        return self.sequence_length + self.extra_token

    @property
    def num_documents(self) -> int:
        """Documents of one epoch."""
        return self.stop - self.start

    @property
    def partitions_per_epoch(self) -> int:
        """Runs of documents of one epoch that are packed by themselves."""
        return max(1, self.num_documents // self.partition_length)

    def partition_bounds(self, partition: int) -> tuple[int, int, int]:
        """Return the epoch of a partition, and where in its shuffled documents it lies.

        The partitions of an epoch are equally long, to within one document.
        """
        epoch, place = divmod(partition, self.partitions_per_epoch)
        start = self.num_documents * place // self.partitions_per_epoch
        return epoch, start, self.num_documents * (place + 1) // self.partitions_per_epoch

    @property
    def document_dtype(self) -> np.dtype[Any]:
        """Dtype of document ids and offsets in them."""
        return np.dtype(np.int32 if self.stop - 1 <= _INT32_MAX else np.int64)

    @property
    def least_samples(self) -> int:
        """Samples that an epoch gives at least: those without any padding.

        Nothing is known where long documents lose tokens: 1 then, or there is no packing at all.
        """
        lossless = self.rules.long_documents == "split"
        return max(1, -(-self.tokens_per_epoch // self.room)) if lossless else 1

    @property
    def num_wanted(self) -> int | None:
        """Samples wanted, or None if one epoch surely gives them."""
        wanted = self.num_requested
        return None if wanted is None or wanted <= self.least_samples else wanted

    def round_keys(self, stage: Stage, epoch: int) -> RoundKeys:
        """Return the round keys of the permutation of an epoch's documents or samples."""
        digest = self.source.length_digest
        return round_keys(self.seed, stage, source_digest=digest, split=self.split, epoch=epoch)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return {
            "algorithm": "best-fit-decreasing",
            "algorithm_version": PACKING_VERSION,
            "kind": "packed",
            "length_digest": self.source.length_digest,
            "num_sequences": self.source.num_sequences,
            "tokens_per_epoch": self.tokens_per_epoch,
            "split": self.split,
            "start": self.start,
            "stop": self.stop,
            "sequence_length": self.sequence_length,
            "extra_token": self.extra_token,
            "max_documents": self.rules.max_documents,
            "long_documents": self.rules.long_documents,
            "partition_length": self.partition_length,
            "num_wanted": self.num_wanted,
            "seed": self.seed,
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any], *, stored: Stored) -> "PackingPlan":
        """Return the plan of a committed index."""
        return cls(
            source=SourceFacts(spec["length_digest"], spec["num_sequences"], num_tokens=-1),
            split=spec["split"],
            start=spec["start"],
            stop=spec["stop"],
            tokens_per_epoch=spec["tokens_per_epoch"],
            sequence_length=spec["sequence_length"],
            extra_token=spec["extra_token"],
            seed=spec["seed"],
            num_requested=spec["num_wanted"],
            rules=PackingRules(spec["max_documents"], spec["long_documents"]),
            stored=stored,
            partition_length=spec["partition_length"],
        )

    def layouts(self, num_partitions: int, num_samples: int, num_parts: int) -> "PackingLayouts":
        """Return how an index of these sizes is stored."""
        parts = np.int32 if num_parts <= _INT32_MAX else np.int64
        samples = np.uint32 if num_samples < np.iinfo(np.uint32).max - 1 else np.int64

        def cut(spec: schema.ArraySpec, length: int, dtype: npt.DTypeLike) -> ArrayLayout:
            return ArrayLayout.plan(spec, length, dtype, self.grid)

        return PackingLayouts(
            cut(schema.PARTITION_OFFSET, num_partitions + 1, np.int64),
            cut(schema.PART_INDEX, num_parts, self.document_dtype),
            cut(schema.SAMPLE_OFFSET, num_samples + 1, parts),
            cut(schema.SHUFFLE_INDEX, num_samples, samples) if self.stored == "all" else None,
        )

    @cached_property
    def estimated_layouts(self) -> "PackingLayouts":
        """How the index would be stored if no sample had padding, and no document were long."""
        per_epoch = -(-self.tokens_per_epoch // self.room)
        num_epochs = -(-(self.num_wanted or 1) // per_epoch)
        return self.layouts(
            num_epochs * self.partitions_per_epoch,
            num_epochs * per_epoch,
            num_epochs * max(self.num_documents, per_epoch),
        )


@dataclass(frozen=True, slots=True)
class PackingLayouts:
    """How the arrays of a packed index are cut."""

    partition: ArrayLayout
    part: ArrayLayout
    sample: ArrayLayout
    #: None where the shuffle is not stored.
    shuffle: ArrayLayout | None

    @property
    def stored(self) -> tuple[ArrayLayout, ...]:
        """The arrays that are stored."""
        kept = (self.partition, self.part, self.sample)
        return kept if self.shuffle is None else (*kept, self.shuffle)


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
