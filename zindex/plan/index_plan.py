"""The plan of a GPT index: one split of a dataset, its order, and all derived sizes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from zindex import schema
from zindex.plan.build_plan import INT32_MAX, Order, SourceFacts, SplitPlan, check_order
from zindex.plan.epochs import EpochPlan
from zindex.store.layout import ArrayLayout

#: Version of the algorithm of each order; bumped when the same plan gives another index.
ALGORITHM_VERSIONS: dict[str, int] = {"megatron": 1, "scalable": 1}


@dataclass(frozen=True, kw_only=True)
class IndexPlan(SplitPlan):
    """One index: which documents, in which order, divided into which samples, and how stored."""

    prefix = "gpt"
    spec_fields = (*SplitPlan.spec_fields, "sequence_length", "extra_token", "drop_last")

    source: SourceFacts
    epochs: EpochPlan
    sequence_length: int
    #: 1 if a sample holds one token more than ``sequence_length``, else 0.
    extra_token: int
    drop_last: bool = True
    order: Order = "megatron"

    def __post_init__(self) -> None:
        check_order(self.order, self.stored)
        super().__post_init__()

    @property
    def seed_limit(self) -> int:
        """Seeds are below this."""
        return 2**32 if self.order == "megatron" else 2**63

    @property
    def num_rows(self) -> int:
        """Rows of ``document_index``: the documents of all epochs."""
        return self.epochs.num_epochs * self.num_documents

    @property
    def num_samples(self) -> int:
        """Samples of all epochs."""
        return self.epochs.num_samples

    @property
    def num_full_samples(self) -> int:
        """Samples that hold all their tokens; one more may be partial."""
        num_tokens = self.epochs.num_epochs * self.epochs.tokens_per_epoch - self.extra_token
        return num_tokens // self.sequence_length

    @property
    def num_mixed_samples(self) -> int:
        """Samples that Megatron's order shuffles first: all, or those before a separate epoch."""
        if not self.epochs.separate_final_epoch:
            return self.num_samples
        return self.epochs.count_sans_final(self.sequence_length, self.extra_token)

    @cached_property
    def document_layout(self) -> ArrayLayout:
        """Layout of ``document_index``, stored or not: tasks follow its shards."""
        return self.layout(schema.DOCUMENT_INDEX, self.num_rows, self.document_dtype)

    @cached_property
    def sample_layout(self) -> ArrayLayout:
        """Layout of ``sample_index``: one row more than there are samples."""
        dtype = np.int32 if self.num_rows <= INT32_MAX else np.int64
        return self.layout(schema.SAMPLE_INDEX, self.num_samples + 1, dtype)

    @cached_property
    def shuffle_layout(self) -> ArrayLayout:
        """Layout of ``shuffle_index``, stored or not."""
        return self.shuffle_layout_of(self.num_samples)

    @property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the stored arrays."""
        if self.stored == "minimal":
            return (self.sample_layout,)
        return (self.document_layout, self.sample_layout, self.shuffle_layout)

    @property
    def num_build_rows(self) -> int:
        """Rows that a build computes."""
        return self.num_rows + self.num_samples

    @property
    def described_sizes(self) -> dict[str, Any]:
        """Sizes of the index, for the attributes of its store."""
        return {"num_samples": self.num_samples, "num_documents": self.num_documents}

    def epoch_of_sample(self, sample: int) -> int:
        """Return the epoch to which a sample belongs: the one in which it starts.

        The scalable order shuffles each epoch's samples among themselves.
        """
        return sample * self.sequence_length // self.epochs.tokens_per_epoch

    def samples_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the half-open range of samples that start in an epoch; it may be empty."""
        tokens, length = self.epochs.tokens_per_epoch, self.sequence_length
        start, stop = -(-epoch * tokens // length), -(-(epoch + 1) * tokens // length)
        return min(start, self.num_samples), min(stop, self.num_samples)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return self.own_spec | {
            "algorithm": self.order,
            "algorithm_version": ALGORITHM_VERSIONS[self.order],
            "kind": "gpt",
            "length_digest": self.source.length_digest,
            "num_sequences": self.source.num_sequences,
            **asdict(self.epochs),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "IndexPlan":
        """Return the plan of a committed index from the spec of its store."""
        return cls(
            source=SourceFacts(spec["length_digest"], spec["num_sequences"], num_tokens=-1),
            epochs=EpochPlan(**{item.name: spec[item.name] for item in fields(EpochPlan)}),
            order=spec["algorithm"],
            **cls.read_spec(spec),
        )
