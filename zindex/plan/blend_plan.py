"""The plan of one blend: whose samples a split draws, how many, in which order, stored how."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.errors import ConfigError, PlanError
from zindex.plan.index_plan import Order, Stored
from zindex.plan.largest_remainder import largest_remainder
from zindex.plan.split import SPLIT_NAMES, normalize
from zindex.store.layout import ArrayLayout, ChunkGrid

Shuffle = Literal["keyed", "uniform"]

#: Version of the blend of each order; bumped when the same plan gives another blend.
BLEND_VERSIONS: dict[str, int] = {"megatron": 1, "scalable": 1}

#: Megatron's dataset ids are int16; beyond this many datasets ours are int32.
MAX_INT16_DATASETS = 32_767
MAX_DATASETS = 10**6
MAX_BLEND_SAMPLES = 2**62

_INT32_MAX = np.iinfo(np.int32).max
# The greedy order draws up to a few samples more of a dataset than its weight asks for.
_GREEDY_SLACK = 1 << 20


@dataclass(frozen=True, slots=True)
class PermutationPlan:
    """The permutation of a whole run: known from the number of its samples alone."""

    num_samples: int
    seed: int
    split: str
    #: ``"keyed"``: any position in O(1); ``"uniform"``: every order equally likely.
    shuffle: Shuffle
    grid: ChunkGrid = field(default_factory=ChunkGrid)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the permutation's values."""
        return np.dtype(np.uint32 if self.num_samples <= 2**32 else np.int64)

    @property
    def layout(self) -> ArrayLayout:
        """How it is cut: like the arrays of the blend that it orders."""
        return ArrayLayout.plan(schema.DATASET_INDEX, self.num_samples, self.dtype, self.grid)

    @property
    def name(self) -> str:
        """What tells its order from others, however it is cut; for names of tasks and files."""
        return f"{self.split}-{self.num_samples}-{self.seed}"


@dataclass(frozen=True, eq=False)
class BlendPlan:
    """One blend: which dataset, and which of its samples, stands at each position of a split.

    Make one with `weighted` or `exhaustive`.
    """

    split: str
    #: Shape (datasets,), float64: given weights, normalised; sizes over their sum otherwise.
    weights: npt.NDArray[np.float64]
    #: Shape (datasets,), int64: samples of each dataset, all of which are drawn; None if weighted.
    sizes: npt.NDArray[np.int64] | None
    #: Samples of the blend.
    num_samples: int
    order: Order = "megatron"
    seed: int = 1234
    #: How the scalable order is shuffled; the other order has no shuffle.
    shuffle: Shuffle = "keyed"
    #: ``"minimal"`` stores weights and counts only, from which the scalable order is computed.
    stored: Stored = "all"
    grid: ChunkGrid = field(default_factory=ChunkGrid)

    def __post_init__(self) -> None:
        if self.order not in BLEND_VERSIONS:
            raise ConfigError(f"order must be 'megatron' or 'scalable', got {self.order!r}")
        if self.stored not in ("all", "minimal"):
            raise ConfigError(f"store must be 'all' or 'minimal', got {self.stored!r}")
        if self.shuffle not in ("keyed", "uniform"):
            raise ConfigError(f"shuffle must be 'keyed' or 'uniform', got {self.shuffle!r}")
        if self.stored == "minimal" and not (self.order == "scalable" and self.shuffle == "keyed"):
            raise ConfigError(
                "store='minimal' needs order='scalable' and shuffle='keyed', got "
                f"order={self.order!r} and shuffle={self.shuffle!r}: another blend cannot be "
                "computed on read; store all or change the order"
            )
        if self.split not in SPLIT_NAMES:
            raise ConfigError(f"split must be one of {SPLIT_NAMES}, got {self.split!r}")
        if not 1 <= self.num_datasets <= MAX_DATASETS:
            raise PlanError(
                f"a blend must have 1 to {MAX_DATASETS:,} datasets, got {self.num_datasets:,}; "
                "merge some"
            )
        if not 0 <= self.num_samples <= MAX_BLEND_SAMPLES:
            raise PlanError(
                f"a blend must have 0 to {MAX_BLEND_SAMPLES:,} samples, got {self.num_samples:,}"
            )

    @classmethod
    def weighted(cls, weights: Sequence[float], num_samples: int, **settings: Any) -> "BlendPlan":
        """Return the plan of a blend by weights.

        Parameters
        ----------
        weights
            One positive number per dataset; they are normalised.
        num_samples
            Samples of the blend.
        settings
            ``split``, ``order``, ``seed``, ``shuffle``, ``stored`` and ``grid``.

        Raises
        ------
        PlanError
            If a weight is not a positive number.
        """
        values = np.asarray(weights, np.float64)
        with np.errstate(all="ignore"):
            normalized = np.array(normalize(values.tolist()), np.float64)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if not wrong.size:  # beside far larger floats a share is 0, as are all of an infinite sum
            wrong = np.flatnonzero(normalized == 0)
        if wrong.size:
            raise PlanError(
                "weights of a blend must be positive numbers, beside each other too, got "
                f"{values[wrong[0]]} for dataset {wrong[0]} of {values.size}; leave that dataset "
                "out or scale the weights"
            )
        return cls(weights=normalized, sizes=None, num_samples=num_samples, **settings)

    @classmethod
    def exhaustive(cls, sizes: Sequence[int], **settings: Any) -> "BlendPlan":
        """Return the plan of a blend that draws every sample of every dataset once.

        Parameters
        ----------
        sizes
            Samples of each dataset, each > 0.
        settings
            ``split``, ``order``, ``seed``, ``shuffle``, ``stored`` and ``grid``.

        Raises
        ------
        PlanError
            If a size is not positive.
        """
        total = sum(map(int, sizes))
        if total > MAX_BLEND_SAMPLES:
            raise PlanError(
                f"a blend must have 0 to {MAX_BLEND_SAMPLES:,} samples, got {total:,} of all "
                "datasets; leave some out"
            )
        values = np.asarray(sizes, np.int64)
        wrong = np.flatnonzero(values <= 0)
        if wrong.size:
            raise PlanError(
                f"sizes of a blend must be positive, got {values[wrong[0]]} for dataset "
                f"{wrong[0]} of {values.size}; leave that dataset out"
            )
        return cls(weights=values / float(total), sizes=values, num_samples=total, **settings)

    @property
    def num_datasets(self) -> int:
        """Datasets that are drawn from."""
        return len(self.weights)

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """Shape (datasets,), int64: samples that the scalable order draws of each dataset.

        The greedy order may differ from these by a few samples.
        """
        if self.sizes is not None:
            return self.sizes
        return largest_remainder(self.weights, self.num_samples)

    @property
    def permutation(self) -> PermutationPlan:
        """The permutation that orders a scalable blend."""
        return PermutationPlan(
            self.num_samples, self.seed, self.split, self.shuffle, grid=self.grid
        )

    @cached_property
    def dataset_layout(self) -> ArrayLayout:
        """Layout of ``dataset_index``, stored or not."""
        dtype = np.int16 if self.num_datasets <= MAX_INT16_DATASETS else np.int32
        return ArrayLayout.plan(schema.DATASET_INDEX, self.num_samples, dtype, self.grid)

    @cached_property
    def sample_layout(self) -> ArrayLayout:
        """Layout of ``dataset_sample_index``: cut like ``dataset_index``."""
        # A share of exactly 1 has all samples and no more; others leave room for greed.
        most = min(self.num_samples, int(self.weights.max() * self.num_samples) + _GREEDY_SLACK)
        dtype = np.int32 if most <= _INT32_MAX else np.int64
        return ArrayLayout.plan(schema.DATASET_SAMPLE_INDEX, self.num_samples, dtype, self.grid)

    @cached_property
    def weight_layout(self) -> ArrayLayout:
        """Layout of ``dataset_weight``."""
        return ArrayLayout.plan(schema.DATASET_WEIGHT, self.num_datasets, np.float64, self.grid)

    @cached_property
    def count_layout(self) -> ArrayLayout:
        """Layout of ``dataset_count``."""
        return ArrayLayout.plan(schema.DATASET_COUNT, self.num_datasets, np.int64, self.grid)

    @property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the arrays that are stored."""
        small = (self.weight_layout, self.count_layout)
        return (
            small if self.stored == "minimal" else (self.dataset_layout, self.sample_layout, *small)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of values to store."""
        return sum(layout.nbytes for layout in self.layouts)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON; of the members only their weights do."""
        shares = self.weights.astype("<f8") if self.sizes is None else self.sizes.astype("<i8")
        spec = {
            "algorithm": self.order,
            "algorithm_version": BLEND_VERSIONS[self.order],
            "kind": "blend",
            "split": self.split,
            "num_datasets": self.num_datasets,
            "num_samples": self.num_samples,
            "exhaustive": self.sizes is not None,
            "shares_digest": hashlib.sha256(shares.tobytes()).hexdigest(),
        }
        if self.order == "scalable":
            spec |= {"seed": self.seed, "shuffle": self.shuffle}
        return spec
