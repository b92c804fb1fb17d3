"""The plan of one GPT index: a dataset, a split, an order, and every size that follows."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.errors import ConfigError, PlanError
from zindex.plan.epochs import EpochPlan
from zindex.plan.keys import Stage, round_keys
from zindex.plan.split import SPLIT_NAMES
from zindex.store.layout import ArrayLayout, ChunkGrid

Order = Literal["megatron", "scalable"]
Stored = Literal["all", "minimal"]

#: Version of the algorithm of each order; bumped when the same plan gives another index.
ALGORITHM_VERSIONS: dict[str, int] = {"megatron": 1, "scalable": 1}

_INT32_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What decides the index of a dataset: its sequence lengths, and nothing of where it lies."""

    #: SHA-256, in hex, of the sequence lengths.
    length_digest: str
    num_sequences: int
    num_tokens: int


@dataclass(frozen=True)
class IndexPlan:
    """One index: which documents, in which order, cut into which samples, stored how."""

    source: SourceFacts
    split: str
    #: Documents of the split, half-open.
    start: int
    stop: int
    epochs: EpochPlan
    sequence_length: int
    #: 1 if a sample holds one token more than ``sequence_length``, else 0.
    extra_token: int
    seed: int
    drop_last: bool = True
    order: Order = "megatron"
    #: ``"minimal"`` leaves out what the scalable order can compute on read.
    stored: Stored = "all"
    grid: ChunkGrid = field(default_factory=ChunkGrid)

    def __post_init__(self) -> None:
        if self.order not in ALGORITHM_VERSIONS:
            raise ConfigError(f"order must be 'megatron' or 'scalable', got {self.order!r}")
        if self.stored not in ("all", "minimal"):
            raise ConfigError(f"store must be 'all' or 'minimal', got {self.stored!r}")
        if self.stored == "minimal" and self.order == "megatron":
            raise ConfigError(
                "store='minimal' needs order='scalable', got order='megatron': its shuffles "
                "cannot be computed on read; store all or change the order"
            )
        if self.split not in SPLIT_NAMES:
            raise ConfigError(f"split must be one of {SPLIT_NAMES}, got {self.split!r}")
        if not 0 <= self.start < self.stop <= self.source.num_sequences:
            raise PlanError(
                f"a split must hold documents of [0, {self.source.num_sequences}), got "
                f"[{self.start}, {self.stop}); give it a larger share"
            )
        high = 2**32 if self.order == "megatron" else 2**63
        if not 0 <= self.seed < high:
            raise ConfigError(f"seed must be in [0, {high}), got {self.seed}; choose another")

    @property
    def num_documents(self) -> int:
        """Documents of one epoch."""
        return self.stop - self.start

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

    @cached_property
    def document_layout(self) -> ArrayLayout:
        """Layout of ``document_index``, stored or not: its shards are the unit of all work."""
        dtype = np.int32 if self.stop - 1 <= _INT32_MAX else np.int64
        return ArrayLayout.plan(schema.DOCUMENT_INDEX, self.num_rows, dtype, self.grid)

    @cached_property
    def sample_layout(self) -> ArrayLayout:
        """Layout of ``sample_index``: one row more than there are samples."""
        dtype = np.int32 if self.num_rows <= _INT32_MAX else np.int64
        return ArrayLayout.plan(schema.SAMPLE_INDEX, self.num_samples + 1, dtype, self.grid)

    @cached_property
    def shuffle_layout(self) -> ArrayLayout:
        """Layout of ``shuffle_index``."""
        dtype = np.uint32 if self.num_samples < np.iinfo(np.uint32).max - 1 else np.int64
        return ArrayLayout.plan(schema.SHUFFLE_INDEX, self.num_samples, dtype, self.grid)

    @property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the arrays that are stored."""
        if self.stored == "minimal":
            return (self.sample_layout,)
        return (self.document_layout, self.sample_layout, self.shuffle_layout)

    @property
    def nbytes(self) -> int:
        """Bytes of values to store."""
        return sum(layout.nbytes for layout in self.layouts)

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

    def round_keys(self, stage: Stage, epoch: int) -> npt.NDArray[np.uint64]:
        """Return the round keys of one permutation of the scalable order."""
        digest = self.source.length_digest
        return round_keys(self.seed, stage, source_digest=digest, split=self.split, epoch=epoch)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return {
            "algorithm": self.order,
            "algorithm_version": ALGORITHM_VERSIONS[self.order],
            "kind": "gpt",
            "length_digest": self.source.length_digest,
            "num_sequences": self.source.num_sequences,
            "tokens_per_epoch": self.epochs.tokens_per_epoch,
            "split": self.split,
            "start": self.start,
            "stop": self.stop,
            "num_epochs": self.epochs.num_epochs,
            "separate_final_epoch": self.epochs.separate_final_epoch,
            "sequence_length": self.sequence_length,
            "extra_token": self.extra_token,
            "drop_last": self.drop_last,
            "num_samples": self.num_samples,
            "seed": self.seed,
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any], *, stored: Stored) -> "IndexPlan":
        """Return the plan of a committed index, as far as a reader needs it."""
        tokens = spec["tokens_per_epoch"]
        sans_final = 0
        if spec["num_epochs"] > 1:
            num_tokens = (spec["num_epochs"] - 1) * tokens - spec["extra_token"]
            sans_final = num_tokens // spec["sequence_length"]
        return cls(
            source=SourceFacts(spec["length_digest"], spec["num_sequences"], num_tokens=-1),
            split=spec["split"],
            start=spec["start"],
            stop=spec["stop"],
            epochs=EpochPlan(
                num_epochs=spec["num_epochs"],
                separate_final_epoch=spec["separate_final_epoch"],
                num_samples_sans_final_epoch=sans_final,
                num_samples=spec["num_samples"],
                tokens_per_epoch=tokens,
            ),
            sequence_length=spec["sequence_length"],
            extra_token=spec["extra_token"],
            seed=spec["seed"],
            drop_last=spec["drop_last"],
            order=spec["algorithm"],
            stored=stored,
        )
