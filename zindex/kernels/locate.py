"""Find the dataset and sample of numbers that count through concatenated datasets."""

import numpy as np

from zindex.arrays import Int32Array, Int64Array, IntegerArray
from zindex.kernels._jit import jit
from zindex.kernels.numpy_budget import use_numpy

# Table entries per dataset: so many that few hold the starts of two datasets.
_ENTRIES_PER_DATASET = 8


@jit
def _fill_table(offsets: Int64Array, shift: int, table: Int32Array) -> None:
    """Write the dataset of the first of every ``2**shift`` numbers."""
    dataset = 0
    for entry in range(table.size):
        while offsets[dataset + 1] <= entry << shift:
            dataset += 1
        table[entry] = dataset


@jit
def _locate(
    numbers: IntegerArray,
    offsets: Int64Array,
    shift: int,
    table: Int32Array,
    dataset_index: IntegerArray,
    dataset_sample_index: IntegerArray,
) -> None:
    """Write the dataset and sample of each number."""
    one, bits = np.uint64(1), np.uint64(shift)
    for k in range(numbers.size):
        number = np.int64(numbers[k])
        dataset = np.uint64(table[np.uint64(number) >> bits])
        # Most entries need at most one step, of which a branch would be mispredicted.
        dataset += np.uint64(offsets[dataset + one] <= number)
        while offsets[dataset + one] <= number:
            dataset += one
        dataset_index[k] = dataset
        dataset_sample_index[k] = number - offsets[dataset]


def locate(
    numbers: IntegerArray,
    counts: Int64Array,
    dataset_index: IntegerArray,
    dataset_sample_index: IntegerArray,
) -> None:
    """Write the dataset of each number, and its sample in that dataset.

    Parameters
    ----------
    numbers
        Shape (positions,), uint32, int64 or uint64; each in ``[0, sum(counts))``.
    counts
        Shape (datasets,), int64, samples of each of the concatenated datasets; some may be 0.
    dataset_index
        Shape (positions,), int16 or int32; filled.
    dataset_sample_index
        Shape (positions,), int32 or int64; filled.

    Notes
    -----
    Cost: O(datasets + positions); a few nanoseconds per position.

    Examples
    --------
    >>> datasets, samples = np.empty(3, np.int16), np.empty(3, np.int32)
    >>> locate(np.array([0, 4, 2]), np.array([2, 0, 3]), datasets, samples)
    >>> datasets.tolist(), samples.tolist()
    ([0, 2, 2], [0, 2, 0])
    """
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    if not numbers.size:
        return
    assert int(numbers.max()) < total
    assert numbers.dtype.kind == "u" or int(numbers.min()) >= 0
    # Too few to pay for a table, or for the kernels.
    if _ENTRIES_PER_DATASET * numbers.size < len(counts) or use_numpy(numbers.size):
        sought = numbers.astype(np.int64, copy=False)
        datasets = np.searchsorted(offsets, sought, side="right") - 1
        dataset_index[:] = datasets
        dataset_sample_index[:] = sought - offsets[datasets]
        return
    num_entries = _ENTRIES_PER_DATASET * len(counts)
    shift = max(0, total.bit_length() - num_entries.bit_length())
    table = np.empty(((total - 1) >> shift) + 1, np.int32)
    _fill_table(offsets, shift, table)
    _locate(numbers, offsets, shift, table, dataset_index, dataset_sample_index)
