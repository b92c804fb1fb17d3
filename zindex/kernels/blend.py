"""The greedy blend: the dataset and the sample of each position.

Position k draws from the dataset with the largest error ``w * max(k, 1) - c``, the lowest index if
several are equal, where c counts its earlier draws. The product and the difference are rounded
separately, never fused, so that every machine gives Megatron's order. The counts are the whole
state, so a range can start at any position with known counts, or with guessed counts that are then
verified.

The shares of datasets are weights, or sizes in samples. A blend by sizes draws each sample once, by
weights that are the sizes over their sum.
"""

from typing import TypeAlias

import numpy as np

from zindex.arrays import AnyArray, Float64Array, Int64Array, IntegerArray
from zindex.errors import PlanError
from zindex.kernels._greedy import BlendState

#: Shape (datasets,): weights of float64 or sizes of int64.
Shares: TypeAlias = AnyArray

#: Most datasets of one blend.
MAX_DATASETS = 2**20

#: Positions are exact as float64 up to here.
MAX_POSITION = 2**53

#: Positions computed before a copy to the caller's arrays.
_BUFFER = 2**16


def blend_range(
    shares: Shares,
    counts: Int64Array,
    start: int,
    dataset_index: IntegerArray,
    dataset_sample_index: IntegerArray,
) -> None:
    """Write the draws of consecutive positions of a blend, and advance its counts.

    Parameters
    ----------
    shares
        Shape (datasets,), float64 weights in ``(0, 1]``, used as they are, so normalise them first;
        or int64 sizes in samples, >= 1, to draw every sample once.
    counts
        Shape (datasets,), int64, samples drawn of each dataset before ``start``; any state is
        allowed, with sizes up to them: exhausted datasets are not drawn. Advanced in place to the
        state after the range.
    start
        First position, >= 0.
    dataset_index
        Shape (positions,), int16 or int32: the dataset of each position; filled.
    dataset_sample_index
        Shape (positions,), int32 or int64: the sample of that dataset; filled.

    Raises
    ------
    PlanError
        If shapes, dtypes or values are not as above, the draws do not fit their dtypes, or fewer
        samples are left than positions asked for.

    Notes
    -----
    Law: the draws do not depend on the division into ranges; counts grow by the
    ``bincount`` of ``dataset_index``. A whole blend by sizes draws each sample of each dataset
    once, in order. Cost: tens of nanoseconds per position up to 10**4 datasets; if the errors of
    many datasets coincide, a position scans them. Memory: about 150 bytes per dataset.
    Source: Megatron Core ``datasets/helpers.cpp``, ``build_blending_indices`` and
    ``build_exhaustive_blending_indices``.

    Examples
    --------
    >>> counts = np.zeros(2, np.int64)
    >>> dataset, sample = np.empty(6, np.int16), np.empty(6, np.int64)
    >>> blend_range(np.array([0.2, 0.8]), counts, 0, dataset, sample)
    >>> dataset.tolist(), sample.tolist(), counts.tolist()
    ([1, 0, 1, 1, 1, 0], [0, 0, 1, 2, 3, 1], [2, 4])
    >>> counts = np.zeros(3, np.int64)
    >>> dataset, sample = np.empty(8, np.int16), np.empty(8, np.int64)
    >>> blend_range(np.array([3, 1, 4]), counts, 0, dataset, sample)
    >>> dataset.tolist(), sample.tolist()
    ([2, 0, 1, 2, 0, 2, 0, 2], [0, 0, 0, 1, 1, 2, 2, 3])
    """
    outputs = _check_outputs(dataset_index, dataset_sample_index, counts.size)
    _blend(shares, counts, start, start + dataset_index.size, outputs)


def advance_blend(shares: Shares, counts: Int64Array, start: int, stop: int) -> None:
    """Advance the counts of a blend over positions ``[start, stop)``, writing no draws.

    Parameters
    ----------
    shares, counts
        As of `blend_range`.
    start, stop
        Positions, ``0 <= start <= stop``.

    Raises
    ------
    PlanError
        If shapes, dtypes or values are not as above, or too few samples are left.

    Notes
    -----
    Law: the counts that `blend_range` leaves for the same positions. Cost: as `blend_range`.

    Examples
    --------
    >>> counts = np.zeros(2, np.int64)
    >>> advance_blend(np.array([0.2, 0.8]), counts, 0, 6)
    >>> counts
    array([2, 4])
    """
    _blend(shares, counts, start, stop, None)


def guess_counts(shares: Shares, position: int) -> Int64Array:
    """Guess the counts of the greedy rule before a position.

    Parameters
    ----------
    shares
        As of `blend_range`.
    position
        Position, 0 to 2**53, and at most the sum of sizes.

    Returns
    -------
    counts
        Shape (datasets,), int64, each >= 0 and at most its size; their sum is ``position``.

    Raises
    ------
    PlanError
        If shares or position are not as above.

    Notes
    -----
    Errors of a greedy state are within one sample of each other, as with largest remainders.
    Advancing from the guess usually reaches the true state soon, without a guarantee, so compare
    the counts at the boundary of two ranges. Cost: O(datasets log datasets); a microsecond per
    dataset if the products of sizes exceed 63 bits.

    Examples
    --------
    >>> guess_counts(np.array([0.5, 0.3, 0.2]), 7), guess_counts(np.array([3, 1, 4]), 4)
    (array([4, 2, 1]), array([2, 0, 2]))
    """
    weights = _check(shares, np.zeros(shares.size, np.int64), 0, position)
    if weights is not shares:
        return _divide(shares, position)
    targets = weights * float(position)
    counts = np.floor(targets).astype(np.int64)
    missing = position - int(counts.sum())
    if not 0 <= missing <= weights.size:
        # The weights do not sum to one: find the largest error by bisection.
        low, high = float(-position - 1), float(targets.max())
        for _ in range(128):
            level = (low + high) / 2
            if float(np.maximum(np.ceil(targets - level), 0.0).sum()) > position:
                low = level
            else:
                high = level
        counts = np.maximum(np.ceil(targets - high), 0.0).astype(np.int64)
        missing = position - int(counts.sum())
    while missing > 0:
        raised = np.argsort(counts - targets, kind="stable")[:missing]
        counts[raised] += 1
        missing -= raised.size
    while missing < 0:
        lowered = np.argsort(targets - counts, kind="stable")
        lowered = lowered[counts[lowered] > 0][:-missing]
        counts[lowered] -= 1
        missing += lowered.size
    return counts


def _divide(sizes: Int64Array, position: int) -> Int64Array:
    """Return the counts before a position by largest remainders, in exact integers."""
    total = int(sizes.sum())
    wide = int(sizes.max()) * position >= 2**63
    products = (sizes.astype(object) if wide else sizes) * position
    counts = np.asarray(products // total, np.int64)
    remainders = np.asarray(products % total, np.int64)
    raised = np.argsort(-remainders, kind="stable")[: position - int(counts.sum())]
    counts[raised] += 1
    return counts


def _check_outputs(
    dataset_index: IntegerArray, dataset_sample_index: IntegerArray, datasets: int
) -> tuple[IntegerArray, IntegerArray]:
    """Return the outputs, after checking shapes, dtypes and the number of datasets."""
    if dataset_index.ndim != 1 or dataset_index.shape != dataset_sample_index.shape:
        raise PlanError(
            "dataset_index and dataset_sample_index must have one entry per position, got shapes "
            f"{dataset_index.shape} and {dataset_sample_index.shape}; give two of one length"
        )
    if dataset_index.dtype not in (np.int16, np.int32):
        raise PlanError(f"dataset_index must be int16 or int32, got {dataset_index.dtype}; cast it")
    if dataset_sample_index.dtype not in (np.int32, np.int64):
        raise PlanError(
            f"dataset_sample_index must be int32 or int64, got {dataset_sample_index.dtype}; "
            "cast it"
        )
    if datasets - 1 > np.iinfo(dataset_index.dtype).max:
        raise PlanError(
            f"{dataset_index.dtype} must hold every dataset's index, got {datasets} datasets; "
            "use int32"
        )
    return dataset_index, dataset_sample_index


def _check(shares: Shares, counts: Int64Array, start: int, stop: int) -> Float64Array:
    """Return the weights of a blend, after checking all arguments but outputs."""
    if shares.ndim != 1 or shares.shape != counts.shape or not 1 <= shares.size <= MAX_DATASETS:
        raise PlanError(
            f"shares and counts must have one entry for each of 1 to {MAX_DATASETS} datasets, got "
            f"shapes {shares.shape} and {counts.shape}; give two of one length"
        )
    if counts.dtype != np.int64:
        raise PlanError(f"counts must be int64, got {counts.dtype}; cast them")
    if int(counts.min()) < 0:
        raise PlanError(f"counts must be >= 0, got {int(counts.min())}; count from 0")
    if not 0 <= start <= stop <= MAX_POSITION:  # exact in float64
        raise PlanError(
            f"positions must lie in [0, 2**53] in order, got [{start}, {stop}); "
            "ask for a range of the blend"
        )
    if shares.dtype == np.float64:
        wrong = np.flatnonzero(~((shares > 0.0) & (shares <= 1.0)))
        if wrong.size:
            raise PlanError(
                f"weights must lie in (0, 1], got {float(shares[wrong[0]])} for dataset "
                f"{wrong[0]}; leave out datasets without weight and normalise the others"
            )
        return shares
    if shares.dtype != np.int64:
        raise PlanError(
            f"shares must be weights of float64 or sizes of int64, got {shares.dtype}; cast them"
        )
    if int(shares.min()) < 1:
        raise PlanError(
            f"sizes must be >= 1, got {int(shares.min())} for dataset {int(shares.argmin())}; "
            "leave out empty datasets"
        )
    spent = np.flatnonzero(counts > shares)
    if spent.size:
        raise PlanError(
            f"counts must not exceed sizes, got {int(counts[spent[0]])} of "
            f"{int(shares[spent[0]])} for dataset {spent[0]}; pass the counts of this blend"
        )
    left = int((shares - counts).sum())
    if stop - start > left:
        raise PlanError(
            f"an exhaustive blend must have a sample left for each position, got {left} for "
            f"positions [{start}, {stop}); ask for fewer positions"
        )
    return shares / float(shares.sum())


def _blend(
    shares: Shares,
    counts: Int64Array,
    start: int,
    stop: int,
    outputs: tuple[IntegerArray, IntegerArray] | None,
) -> None:
    """Draw for a range of positions, copy the draws to outputs, and advance the counts."""
    weights = _check(shares, counts, start, stop)
    if start == stop:
        return
    blend = BlendState(weights, counts, None if weights is shares else shares)
    room = min(_BUFFER, stop - start)
    dataset, sample = np.empty(room, np.int32), np.empty(room, np.int64)
    for position in range(start, stop, _BUFFER):
        length = min(_BUFFER, stop - position)
        blend.run(position, dataset[:length], sample[:length])
        if outputs is not None:
            done = position - start
            outputs[0][done : done + length] = dataset[:length]
            outputs[1][done : done + length] = sample[:length]
    blend.finish()
    if outputs is not None and int(counts.max()) - 1 > np.iinfo(outputs[1].dtype).max:
        raise PlanError(
            f"{outputs[1].dtype} must hold every sample's number, got {int(counts.max()) - 1}; "
            "use int64"
        )
