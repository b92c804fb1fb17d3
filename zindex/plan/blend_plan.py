"""The plan of a blend: the datasets of a split, how many samples of each, and their order."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Float64Array, Int64Array
from zindex.errors import ConfigError, PlanError, check_choice
from zindex.plan.build_plan import INT32_MAX, ORDERS, BuildPlan, Order
from zindex.plan.split import normalize
from zindex.store.layout import ArrayLayout, ChunkGrid

Shuffle = Literal["keyed", "uniform"]

#: Version of the blend of each order; bumped when the same plan gives another blend.
BLEND_VERSIONS: dict[str, int] = {"megatron": 1, "scalable": 1}

#: Megatron's dataset ids are int16; with more datasets than this, ours are int32.
MAX_INT16_DATASETS = 32_767
MAX_DATASETS = 10**6
MAX_BLEND_SAMPLES = 2**62

# The greedy order may exceed a dataset's share by a few samples.
_GREEDY_SLACK = 1 << 20


@dataclass(frozen=True, slots=True)
class PermutationPlan:
    """The permutation of a whole run, which depends on its number of samples only."""

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
        """Layout of the permutation: shards like those of the blend's arrays."""
        return ArrayLayout.plan(schema.DATASET_INDEX, self.num_samples, self.dtype, self.grid)

    @property
    def name(self) -> str:
        """Identity of the order on any grid, for names of tasks and files."""
        return f"{self.split}-{self.num_samples}-{self.seed}"


@dataclass(frozen=True, eq=False, kw_only=True)
class BlendPlan(BuildPlan):
    """One blend: the dataset, and which of its samples, for each position of a split.

    Make one with `weighted` or `exhaustive`. A minimal store holds weights and counts only, from
    which the scalable order is computed.
    """

    prefix = "blend"

    #: Shape (datasets,), float64: given weights, normalised; sizes over their sum otherwise.
    weights: Float64Array
    #: Shape (datasets,), int64: samples of each dataset, all of which are drawn; None if weighted.
    sizes: Int64Array | None
    #: Samples of the blend.
    num_samples: int
    order: Order = "megatron"
    seed: int = 1234
    #: How the scalable order is shuffled; the other order has no shuffle.
    shuffle: Shuffle = "keyed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("order", self.order, ORDERS)
        check_choice("shuffle", self.shuffle, ("keyed", "uniform"))
        if self.stored == "minimal" and not (self.order == "scalable" and self.shuffle == "keyed"):
            raise ConfigError(
                "store='minimal' needs order='scalable' and shuffle='keyed', got "
                f"order={self.order!r} and shuffle={self.shuffle!r}: another blend cannot be "
                "computed on read; store all or change the order"
            )
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
        if not wrong.size:  # next to far larger floats, or of an infinite sum, a share is 0
            wrong = np.flatnonzero(normalized == 0)
        if wrong.size:
            raise PlanError(
                "weights of a blend must be positive numbers, also relative to each other, got "
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

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        weights: Float64Array,
        sizes: Int64Array | None,
    ) -> "BlendPlan":
        """Return the plan of a stored blend from its spec, and the shares of its datasets."""
        return cls(
            split=spec["split"],
            weights=weights,
            sizes=sizes if spec["exhaustive"] else None,
            num_samples=spec["num_samples"],
            order=spec["algorithm"],
            seed=spec.get("seed", 0),
            shuffle=spec.get("shuffle", "keyed"),
            stored=spec["store"],
        )

    @property
    def num_datasets(self) -> int:
        """Datasets that are drawn from."""
        return len(self.weights)

    @property
    def shares(self) -> AnyArray:
        """The sizes, or else the weights."""
        return self.weights if self.sizes is None else self.sizes

    @cached_property
    def counts(self) -> Int64Array:
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
        return self.layout(schema.DATASET_INDEX, self.num_samples, dtype)

    @cached_property
    def sample_layout(self) -> ArrayLayout:
        """Layout of ``dataset_sample_index``, with the shards of ``dataset_index``."""
        # A share of exactly 1 has all samples; others may exceed their share.
        most = min(self.num_samples, int(self.weights.max() * self.num_samples) + _GREEDY_SLACK)
        dtype = np.int32 if most <= INT32_MAX else np.int64
        return self.layout(schema.DATASET_SAMPLE_INDEX, self.num_samples, dtype)

    @cached_property
    def share_layouts(self) -> tuple[ArrayLayout, ArrayLayout]:
        """Layouts of ``dataset_weight`` and ``dataset_count``."""
        return (
            self.layout(schema.DATASET_WEIGHT, self.num_datasets, np.float64),
            self.layout(schema.DATASET_COUNT, self.num_datasets, np.int64),
        )

    @property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the stored arrays."""
        if self.stored == "minimal":
            return self.share_layouts
        return (self.dataset_layout, self.sample_layout, *self.share_layouts)

    @property
    def described_sizes(self) -> dict[str, Any]:
        """Sizes of the blend, for the attributes of its store."""
        return {"num_samples": self.num_samples, "num_datasets": self.num_datasets}

    @property
    def num_build_rows(self) -> int:
        """Rows that a build computes."""
        return self.num_samples

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON; of the datasets only their weights."""
        shares = self.shares.astype(self.shares.dtype.newbyteorder("<"))
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


def largest_remainder(weights: Sequence[float] | Float64Array, size: int) -> Int64Array:
    """Return how many of ``size`` samples each dataset gives.

    Parameters
    ----------
    weights
        Shape (datasets,), float64, each > 0; they need not sum to 1.
    size
        Samples to give out, >= 0.

    Returns
    -------
    counts
        Shape (datasets,), int64.

    Raises
    ------
    PlanError
        If a weight is not a positive number, or there is none.

    Notes
    -----
    Law: the counts sum to ``size``, and each is within one of ``weight / sum(weights) * size``,
    in rational arithmetic on the exact values of the floats. The largest remainders are rounded
    up, the lowest index first among equals.
    Source: Hamilton's method of apportionment.

    Examples
    --------
    >>> largest_remainder([0.5, 0.3, 0.2], 7)
    array([4, 2, 1])
    """
    values = np.asarray(weights, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if wrong.size or not values.size:
        got = f"{values[wrong[0]]} for dataset {wrong[0]}" if wrong.size else "none"
        raise PlanError(f"weights must be positive numbers, got {got}; leave that dataset out")
    # Every float is a whole number of units of the smallest exponent.
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64).tolist()
    shifts = (exponents - exponents.min()).tolist()
    units = [unit << shift for unit, shift in zip(whole, shifts, strict=True)]
    total = sum(units)
    counts, rests = zip(*(divmod(size * unit, total) for unit in units), strict=True)
    num_left = size - sum(counts)
    # Sorting is stable, so equal remainders stay in the order of their datasets.
    first = sorted(range(len(rests)), key=rests.__getitem__, reverse=True)[:num_left]
    result = np.array(counts, np.int64)
    result[first] += 1
    return result
