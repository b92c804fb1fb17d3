"""The plan of a sentence mapping: whole sentences of documents as samples, for BERT, T5 and ICT.

How many samples an epoch gives is known when its sentences are scanned. Where nothing is drawn all
epochs give the same ones, and one epoch is stored.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.errors import ConfigError, PlanError
from zindex.kernels.sentence_mapping import SCAN_VERSION, ScanRule, block_rule, sentence_rule
from zindex.plan.index_plan import ALGORITHM_VERSIONS, Order, SourceFacts, Stored
from zindex.plan.keys import RoundKeys, Stage, round_keys
from zindex.plan.split import SPLIT_NAMES
from zindex.store.layout import ArrayLayout, ChunkGrid

#: What a sample is: sentences up to a number of tokens, or a block that leaves room for a title.
MappingKind = Literal["sentences", "blocks"]

#: Sentences that are scanned together, about; part of the format.
PARTITION_LENGTH = 1 << 22

_UINT32_MAX = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class SentenceFacts:
    """What decides a mapping: the lengths of sentences, and where documents start."""

    #: The sentences, which are the sequences of the corpus.
    lengths: SourceFacts
    #: SHA-256, in hex, of the sentences at which documents start.
    document_digest: str
    num_documents: int
    #: Digest of the titles' lengths, for blocks.
    title_digest: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the sentences and the documents."""
        joined = self.lengths.length_digest + self.document_digest
        return hashlib.sha256(joined.encode()).hexdigest()


@dataclass(frozen=True)
class MappingPlan:
    """One sentence mapping: which documents, into samples by which rule, in which order."""

    source: SentenceFacts
    split: str
    #: Documents of the split, half-open.
    start: int
    stop: int
    #: Sentences of those documents, half-open.
    first_sentence: int
    stop_sentence: int
    #: Tokens of a sample, without special tokens; of a block, with its title.
    max_sequence_length: int
    seed: int
    #: Sentences of a sample at least; of blocks 1 or 2.
    min_num_sentences: int = 1
    #: Share of samples with a shorter target.
    short_sequence_probability: float = 0.0
    #: Samples wanted at least, in as many whole epochs as it takes; None means one epoch.
    num_requested: int | None = None
    kind: MappingKind = "sentences"
    order: Order = "megatron"
    #: ``"minimal"`` leaves out the shuffle, which is computed on read then.
    stored: Stored = "all"
    grid: ChunkGrid = field(default_factory=ChunkGrid)
    #: Sentences scanned together, about; other values than the default are for tests.
    partition_length: int = PARTITION_LENGTH

    def __post_init__(self) -> None:
        if self.order not in ALGORITHM_VERSIONS:
            raise ConfigError(f"order must be 'megatron' or 'scalable', got {self.order!r}")
        if self.stored not in ("all", "minimal"):
            raise ConfigError(f"store must be 'all' or 'minimal', got {self.stored!r}")
        if self.stored == "minimal" and self.order == "megatron":
            raise ConfigError(
                "store='minimal' needs order='scalable', got order='megatron': its shuffle cannot "
                "be computed on read; store all or change the order"
            )
        if self.split not in SPLIT_NAMES:
            raise ConfigError(f"split must be one of {SPLIT_NAMES}, got {self.split!r}")
        if not 0 <= self.start < self.stop <= self.source.num_documents:
            raise PlanError(
                f"a split must hold documents of [0, {self.source.num_documents}), got "
                f"[{self.start}, {self.stop}); give it a larger share"
            )
        if self.max_sequence_length < 2:
            raise ConfigError(
                "samples of sentences need a length of at least 2 tokens, got "
                f"{self.max_sequence_length}; raise sequence_length"
            )
        if not 0 <= self.short_sequence_probability <= 1:
            raise ConfigError(
                "short_sequence_probability must be in [0, 1], got "
                f"{self.short_sequence_probability}"
            )
        if self.num_requested is not None and self.num_requested < 1:
            raise ConfigError(
                f"num_requested must be at least 1, got {self.num_requested}; give None for one "
                "epoch, and map nothing where nothing is wanted"
            )
        # Megatron's seed is an int32.
        high = 2**31 if self.order == "megatron" else 2**63
        if not 0 <= self.seed < high:
            raise ConfigError(f"seed must be in [0, {high}), got {self.seed}; choose another")
        if self.kind == "blocks":
            self._check_blocks()
        elif self.kind != "sentences":
            raise ConfigError(f"kind must be 'sentences' or 'blocks', got {self.kind!r}")

    def _check_blocks(self) -> None:
        """Check what only blocks need."""
        if self.source.title_digest is None:
            raise ConfigError(
                "blocks leave room for the titles of documents, got no titles; give the dataset "
                "that holds them"
            )
        if self.short_sequence_probability or self.min_num_sentences not in (1, 2):
            raise ConfigError(
                "blocks have 1 or 2 sentences at least and no share of short ones, got "
                f"{self.min_num_sentences} and {self.short_sequence_probability}"
            )

    @cached_property
    def rule(self) -> ScanRule:
        """How the sentences of a document become samples."""
        if self.kind == "blocks":
            single = self.min_num_sentences == 1
            return block_rule(self.max_sequence_length, one_sentence_blocks=single)
        return sentence_rule(
            self.max_sequence_length, self.min_num_sentences, self.short_sequence_probability
        )

    @property
    def repeats(self) -> bool:
        """Whether all epochs give the same samples, so that one of them is stored."""
        return not self.rule.short_ratio

    @property
    def is_chained(self) -> bool:
        """Whether targets are drawn in order, so that documents are scanned one after another."""
        return self.order == "megatron" and not self.repeats

    @property
    def num_documents(self) -> int:
        """Documents of one epoch."""
        return self.stop - self.start

    @property
    def num_sentences(self) -> int:
        """Sentences of one epoch."""
        return self.stop_sentence - self.first_sentence

    @property
    def partitions_per_epoch(self) -> int:
        """Runs of documents of one epoch that are scanned by themselves."""
        return max(1, min(self.num_documents, self.num_sentences // self.partition_length))

    def partition_bounds(self, partition: int) -> tuple[int, int, int]:
        """Return the epoch of a partition, and its documents, half-open, of the whole corpus."""
        count = self.partitions_per_epoch
        epoch, place = divmod(partition, count)
        start = self.start + self.num_documents * place // count
        return epoch, start, self.start + self.num_documents * (place + 1) // count

    def round_keys(self, stage: Stage, epoch: int) -> RoundKeys:
        """Return the round keys of the permutation of an epoch's samples, or of its targets."""
        digest = self.source.digest
        return round_keys(self.seed, stage, source_digest=digest, split=self.split, epoch=epoch)

    def target_key(self, epoch: int) -> npt.NDArray[np.uint64]:
        """Return the key of the targets of an epoch in the scalable order: shape (2,), uint64."""
        return self.round_keys(Stage.TARGET, epoch)[:2]

    @property
    def row_dtype(self) -> type[np.uint32] | type[np.uint64]:
        """Dtype of samples, as Megatron chooses it: by the sentences of the whole corpus."""
        return np.uint32 if self.source.lengths.num_sequences <= _UINT32_MAX else np.uint64

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return {
            "algorithm": self.order,
            "algorithm_version": SCAN_VERSION,
            "kind": "sentence_mapping",
            "rule": self.kind,
            "length_digest": self.source.lengths.length_digest,
            "num_sequences": self.source.lengths.num_sequences,
            "document_digest": self.source.document_digest,
            "num_documents": self.source.num_documents,
            "title_digest": self.source.title_digest,
            "split": self.split,
            "start": self.start,
            "stop": self.stop,
            "first_sentence": self.first_sentence,
            "stop_sentence": self.stop_sentence,
            "max_sequence_length": self.max_sequence_length,
            "min_num_sentences": self.min_num_sentences,
            "short_sequence_probability": self.short_sequence_probability,
            "partition_length": self.partition_length,
            "num_wanted": self.num_requested,
            "seed": self.seed,
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any], *, stored: Stored) -> "MappingPlan":
        """Return the plan of a committed mapping."""
        lengths = SourceFacts(spec["length_digest"], spec["num_sequences"], num_tokens=-1)
        documents = (spec["document_digest"], spec["num_documents"], spec["title_digest"])
        same = (
            *("split", "start", "stop", "first_sentence", "stop_sentence", "seed"),
            *("max_sequence_length", "min_num_sentences", "short_sequence_probability"),
        )
        return cls(
            source=SentenceFacts(lengths, *documents),
            num_requested=spec["num_wanted"],
            kind=spec["rule"],
            order=spec["algorithm"],
            stored=stored,
            partition_length=spec["partition_length"],
            **{name: spec[name] for name in same},
        )

    def layouts(
        self, num_partitions: int, num_rows: int, num_samples: int
    ) -> tuple[ArrayLayout, ...]:
        """Return how a mapping of these sizes is stored, the shuffle last if it is.

        Parameters
        ----------
        num_partitions, num_rows
            Partitions that are scanned, and samples that they give.
        num_samples
            Samples of all epochs.
        """

        def cut(spec: schema.ArraySpec, length: int, dtype: npt.DTypeLike) -> ArrayLayout:
            return ArrayLayout.plan(spec, length, dtype, self.grid)

        layouts = (
            cut(schema.SCAN_OFFSET, num_partitions + 1, np.int64),
            cut(schema.SENTENCE_INDEX, num_rows, self.row_dtype),
        )
        if self.stored == "minimal":
            return layouts
        samples = np.uint32 if num_samples < _UINT32_MAX - 1 else np.int64
        return (*layouts, cut(schema.SHUFFLE_INDEX, num_samples, samples))

    @cached_property
    def estimated_layouts(self) -> tuple[ArrayLayout, ...]:
        """How a mapping would be stored if a sample were eight sentences."""
        per_epoch = max(1, self.num_sentences // 8)
        num_epochs = -(-(self.num_requested or 1) // per_epoch)
        scanned = 1 if self.repeats else num_epochs
        sizes = (scanned * self.partitions_per_epoch, scanned * per_epoch)
        return self.layouts(*sizes, num_epochs * per_epoch)
