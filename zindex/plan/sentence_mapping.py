"""The plan of a sentence mapping: samples of whole sentences, for BERT, T5 and ICT.

The number of samples of an epoch is known once its sentences are scanned. Without random draws all
epochs give the same samples, and one epoch is stored.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from zindex import schema
from zindex.arrays import Int64Array, UInt64Array
from zindex.errors import ConfigError, check_choice
from zindex.kernels.sentence_mapping import SCAN_VERSION, ScanRule, block_rule, sentence_rule
from zindex.plan.build_plan import UINT32_MAX, CountedPlan, Order, SourceFacts, check_order
from zindex.plan.keys import Stage
from zindex.store.layout import ArrayLayout

#: What a sample is: sentences up to a number of tokens, or a block that leaves room for a title.
MappingKind = Literal["sentences", "blocks"]

#: Sentences that are scanned together, about; part of the format.
PARTITION_LENGTH = 1 << 22


@dataclass(frozen=True, slots=True)
class SentenceFacts:
    """What decides a mapping: the lengths of sentences, and the starts of documents."""

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


@dataclass(frozen=True, kw_only=True)
class MappingPlan(CountedPlan):
    """One sentence mapping: which documents, into samples by which rule, in which order."""

    spec_fields = (
        *CountedPlan.spec_fields,
        *("first_sentence", "stop_sentence", "max_sequence_length", "min_num_sentences"),
        *("short_sequence_probability", "partition_length"),
    )

    source: SentenceFacts
    #: Sentences of the split's documents, half-open.
    first_sentence: int
    stop_sentence: int
    #: Tokens of a sample, without special tokens; of a block, with its title.
    max_sequence_length: int
    #: Sentences of a sample at least; of blocks 1 or 2.
    min_num_sentences: int = 1
    #: Share of samples with a shorter target.
    short_sequence_probability: float = 0.0
    kind: MappingKind = "sentences"
    order: Order = "megatron"
    partition_length: int = PARTITION_LENGTH

    def __post_init__(self) -> None:
        check_order(self.order, self.stored)
        super().__post_init__()
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
        check_choice("kind", self.kind, ("sentences", "blocks"))
        if self.kind == "blocks":
            self._check_blocks()

    @property
    def seed_limit(self) -> int:
        """Seeds are below this: Megatron's is an int32."""
        return 2**31 if self.order == "megatron" else 2**63

    @property
    def prefix(self) -> str:
        """First part of the store's name."""
        return self.kind

    def _check_blocks(self) -> None:
        """Check the settings of blocks."""
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
        """The rule that groups the sentences of a document into samples."""
        if self.kind == "blocks":
            single = self.min_num_sentences == 1
            return block_rule(self.max_sequence_length, one_sentence_blocks=single)
        return sentence_rule(
            self.max_sequence_length, self.min_num_sentences, self.short_sequence_probability
        )

    @property
    def repeats(self) -> bool:
        """Whether all epochs give the same samples, so that one epoch is stored."""
        return not self.rule.short_ratio

    @property
    def is_chained(self) -> bool:
        """Whether targets are drawn in sequence, so that documents are scanned in sequence too."""
        return self.order == "megatron" and not self.repeats

    @property
    def rows_per_epoch(self) -> int:
        """Sentences of one epoch."""
        return self.stop_sentence - self.first_sentence

    @property
    def num_wanted(self) -> int | None:
        """Samples to count, or None if one epoch is enough."""
        return None if self.repeats else self.num_requested

    def sample_starts(self, partition_starts: Int64Array) -> Int64Array:
        """Return the sample at which each epoch starts; see `CountedPlan`."""
        if not self.repeats:
            return super().sample_starts(partition_starts)
        num_rows = int(partition_starts[-1, 0])
        num_epochs = max(1, -(-(self.num_requested or 1) // num_rows))
        return np.arange(num_epochs + 1) * num_rows

    def target_key(self, epoch: int) -> UInt64Array:
        """Return the key of the targets of an epoch in the scalable order: shape (2,), uint64."""
        return self.round_keys(Stage.TARGET, epoch)[:2]

    @property
    def row_dtype(self) -> type[np.uint32] | type[np.uint64]:
        """Dtype of samples, as Megatron chooses it: by the sentences of the whole corpus."""
        return np.uint32 if self.source.lengths.num_sequences <= UINT32_MAX else np.uint64

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return self.own_spec | {
            "algorithm": self.order,
            "algorithm_version": SCAN_VERSION,
            "kind": "sentence_mapping",
            "rule": self.kind,
            "length_digest": self.source.lengths.length_digest,
            "num_sequences": self.source.lengths.num_sequences,
            "document_digest": self.source.document_digest,
            "num_documents": self.source.num_documents,
            "title_digest": self.source.title_digest,
            "num_wanted": self.num_requested,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "MappingPlan":
        """Return the plan of a committed mapping from the spec of its store."""
        lengths = SourceFacts(spec["length_digest"], spec["num_sequences"], num_tokens=-1)
        documents = (spec["document_digest"], spec["num_documents"], spec["title_digest"])
        return cls(
            source=SentenceFacts(lengths, *documents),
            num_requested=spec["num_wanted"],
            kind=spec["rule"],
            order=spec["algorithm"],
            **cls.read_spec(spec),
        )

    def describe(self, starts: Int64Array) -> tuple[tuple[ArrayLayout, ...], dict[str, Any]]:
        """Return the exact layouts, and facts for the attributes; see `CountedPlan`."""
        num_rows, num_samples = int(starts[-1, 0]), int(self.sample_starts(starts)[-1])
        num_epochs = (len(starts) - 1) // self.partitions_per_epoch
        return self.layouts_of(len(starts) - 1, num_rows, num_samples), {
            "num_samples": num_samples,
            "num_rows": num_rows,
            "num_epochs": num_samples // num_rows if self.repeats else num_epochs,
            "num_documents": self.num_documents,
        }

    def layouts_of(
        self, num_partitions: int, num_rows: int, num_samples: int
    ) -> tuple[ArrayLayout, ...]:
        """Return the layouts of a mapping of these sizes, the shuffle last if it is stored.

        Parameters
        ----------
        num_partitions, num_rows
            Partitions that are scanned, and samples that they give.
        num_samples
            Samples of all epochs.
        """
        layouts = (
            self.layout(schema.SCAN_OFFSET, num_partitions + 1, np.int64),
            self.layout(schema.SENTENCE_INDEX, num_rows, self.row_dtype),
        )
        minimal = self.stored == "minimal"
        return layouts if minimal else (*layouts, self.shuffle_layout_of(num_samples))

    @cached_property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the mapping if a sample were eight sentences."""
        per_epoch = max(1, self.rows_per_epoch // 8)
        num_epochs = -(-(self.num_requested or 1) // per_epoch)
        scanned = 1 if self.repeats else num_epochs
        sizes = (scanned * self.partitions_per_epoch, scanned * per_epoch)
        return self.layouts_of(*sizes, num_epochs * per_epoch)

    @property
    def num_build_rows(self) -> int:
        """Sentences that a build scans, and rows that it writes, about."""
        return self.rows_per_epoch + sum(layout.length for layout in self.layouts)
