"""The plan of a packed index: samples of whole documents, epoch after epoch.

Each epoch's documents are shuffled and divided into partitions, which are packed independently;
then the samples of each epoch are shuffled. The number of samples is known only once the documents
are packed; before that, there is a lower bound.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from zindex import schema
from zindex.arrays import Int64Array
from zindex.errors import ConfigError, PlanError
from zindex.kernels.packing import DROP, PACKING_VERSION, SPLIT, TRUNCATE, FitRules
from zindex.plan.build_plan import INT32_MAX, CountedPlan, SourceFacts
from zindex.plan.settings import show
from zindex.store.layout import ArrayLayout

#: The treatment of a document that is longer than a sample.
LongDocuments = Literal["split", "truncate", "drop"]

LONG_DOCUMENTS: dict[LongDocuments, int] = {"split": SPLIT, "truncate": TRUNCATE, "drop": DROP}
#: Least number of documents packed together, if an epoch has them; part of the format. Fewer cost
#: padding: n documents of uniformly distributed lengths leave a share of about 0.7 / sqrt(n).
PARTITION_LENGTH = 1 << 20
#: Upper limit of ``max_documents``.
MAX_DOCUMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class PackingRules:
    """How whole documents become samples."""

    #: Most documents of a sample: it bounds the sequences of an attention kernel.
    max_documents: int = 256
    #: ``"split"`` keeps all tokens of a document longer than a sample, ``"truncate"`` only its
    #: start, ``"drop"`` none.
    long_documents: LongDocuments = "split"

    def __post_init__(self) -> None:
        number = self.max_documents
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not is_whole or not 1 <= number <= MAX_DOCUMENTS:
            raise ConfigError(
                f"max_documents of packing must be a whole number in [1, {MAX_DOCUMENTS:,}], got "
                f"{show(number)}"
            )
        if self.long_documents not in list(LONG_DOCUMENTS):  # it may be of an unhashable type
            raise ConfigError(
                "long_documents of packing must be 'split', 'truncate' or 'drop', got "
                f"{show(self.long_documents)}; 'split' loses nothing"
            )


@dataclass(frozen=True, kw_only=True)
class PackingPlan(CountedPlan):
    """One packed index: which documents, into samples of what length, under which rules."""

    prefix = "packed"
    spec_fields = (
        *CountedPlan.spec_fields,
        *("tokens_per_epoch", "sequence_length", "extra_token", "partition_length"),
    )

    source: SourceFacts
    #: Tokens of the split's documents.
    tokens_per_epoch: int
    sequence_length: int
    #: 1 if a sample has room for one token more than ``sequence_length``, else 0.
    extra_token: int
    rules: PackingRules = field(default_factory=PackingRules)
    partition_length: int = PARTITION_LENGTH

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens_per_epoch < 1:
            raise PlanError(
                f"a split must hold tokens to be packed, documents [{self.start}, {self.stop}) "
                "hold none; give it a larger share or ask for no samples of it"
            )
        if self.sequence_length < 1:
            raise PlanError(f"sequence_length must be at least 1, got {self.sequence_length}")

    @property
    def room(self) -> int:
        """Tokens that a sample has room for."""
        return self.sequence_length + self.extra_token

    @property
    def fit_rules(self) -> FitRules:
        """The rules as the kernels take them."""
        long_documents = LONG_DOCUMENTS[self.rules.long_documents]
        shape = (self.sequence_length, self.extra_token, self.rules.max_documents)
        return FitRules(*shape, long_documents)

    @property
    def least_samples(self) -> int:
        """Least number of samples of an epoch, assuming no padding.

        1 if long documents lose tokens, because then no better bound is known.
        """
        lossless = self.rules.long_documents == "split"
        return max(1, -(-self.tokens_per_epoch // self.room)) if lossless else 1

    @property
    def num_wanted(self) -> int | None:
        """Samples wanted, or None if one epoch is certainly enough."""
        wanted = self.num_requested
        return None if wanted is None or wanted <= self.least_samples else wanted

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return self.own_spec | {
            "algorithm": "best-fit-decreasing",
            "algorithm_version": PACKING_VERSION,
            "kind": "packed",
            "length_digest": self.source.length_digest,
            "num_sequences": self.source.num_sequences,
            **asdict(self.rules),
            "num_wanted": self.num_wanted,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "PackingPlan":
        """Return the plan of a committed index from the spec of its store."""
        return cls(
            source=SourceFacts(spec["length_digest"], spec["num_sequences"], num_tokens=-1),
            num_requested=spec["num_wanted"],
            rules=PackingRules(spec["max_documents"], spec["long_documents"]),
            **cls.read_spec(spec),
        )

    def padding_share(self, num_samples: int, num_tokens: int) -> float:
        """Return the share of padding in the room of all samples."""
        return 1 - num_tokens / max(1, num_samples * self.room)

    def describe(self, starts: Int64Array) -> tuple[tuple[ArrayLayout, ...], dict[str, Any]]:
        """Return the exact layouts, and facts for the attributes; see `CountedPlan`."""
        num_samples, num_parts, num_tokens = starts[-1].tolist()
        return self.layouts_of(len(starts) - 1, num_samples, num_parts), {
            "num_samples": num_samples,
            "num_parts": num_parts,
            "num_tokens": num_tokens,
            "num_epochs": (len(starts) - 1) // self.partitions_per_epoch,
            "num_documents": self.num_documents,
            "padding_share": self.padding_share(num_samples, num_tokens),
        }

    def layouts_of(
        self, num_partitions: int, num_samples: int, num_parts: int
    ) -> tuple[ArrayLayout, ...]:
        """Return the layouts of an index of these sizes, the shuffle last if it is stored."""
        parts = np.int32 if num_parts <= INT32_MAX else np.int64
        layouts = (
            self.layout(schema.PARTITION_OFFSET, num_partitions + 1, np.int64),
            self.layout(schema.PART_INDEX, num_parts, self.document_dtype),
            self.layout(schema.SAMPLE_OFFSET, num_samples + 1, parts),
        )
        minimal = self.stored == "minimal"
        return layouts if minimal else (*layouts, self.shuffle_layout_of(num_samples))

    @cached_property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the index if no sample had padding, and no document were long."""
        per_epoch = -(-self.tokens_per_epoch // self.room)
        num_epochs = -(-(self.num_wanted or 1) // per_epoch)
        return self.layouts_of(
            num_epochs * self.partitions_per_epoch,
            num_epochs * per_epoch,
            num_epochs * max(self.num_documents, per_epoch),
        )

    @property
    def num_build_rows(self) -> int:
        """Documents that a build packs, about."""
        return self.layouts[1].length


def count_packed(lengths: Int64Array, sequence_length: int, max_samples: int) -> int:
    """Return how many sequences samples fill, by best-fit decreasing with long samples split.

    Pure Python, because compiling the kernel of a build takes seconds.

    Parameters
    ----------
    lengths
        Shape (samples,), int64, tokens of each, > 0.
    sequence_length
        Tokens of a sequence, > 0.
    max_samples
        Maximum samples, or parts of samples, of a sequence, > 0.

    Notes
    -----
    Law: equal to `zindex.kernels.packing.count_samples` with ``SPLIT`` and no extra token.
    Cost: O(samples * log(samples)) comparisons.

    Examples
    --------
    >>> count_packed(np.array([3, 9, 5, 2, 3]), 8, 4)
    3
    """
    num_full, rests = np.divmod(lengths, sequence_length)
    num_sequences = int(num_full.sum())
    # Free space of the open sequences, ascending, the last filled first, and their samples.
    opened: list[tuple[int, int, int]] = []
    for turn, length in enumerate(np.sort(rests[rests > 0])[::-1].tolist()):
        at = bisect_left(opened, (length,))
        if at < len(opened):
            room, _, num_samples = opened.pop(at)
        else:
            room, num_samples = sequence_length, 0
            num_sequences += 1
        if room > length and num_samples + 1 < max_samples:
            insort(opened, (room - length, -turn, num_samples + 1))
    return num_sequences
