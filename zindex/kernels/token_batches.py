"""Batches of samples that fit a budget of tokens: padded consecutive ones, and even sums."""

import numpy as np

from zindex.arrays import Int32Array, Int64Array
from zindex.kernels._jit import jit
from zindex.kernels.heap import sift_down


@jit
def cut_padded(
    widths: Int64Array, terms: Int64Array, capacity: int, max_samples: int, stops: Int64Array
) -> int:
    """Cut samples in order into batches; return their number.

    Parameters
    ----------
    widths
        Shape (samples, axes), int64: length of each sample along each axis.
    terms
        Shape (terms, 2), int64: axes of each tensor, -1 for none. A batch of n samples has n times
        the sum over terms of the product of its largest widths as its tokens.
    capacity
        Tokens of a batch; a sample that exceeds it is a batch of its own.
    max_samples
        Samples of a batch, > 0.
    stops
        Shape (samples,), int64: the end of each batch; filled.

    Examples
    --------
    >>> stops = np.empty(4, np.int64)
    >>> lengths, terms = np.array([[7], [6], [3], [2]]), np.array([[0, -1]])
    >>> count = int(cut_padded(lengths, terms, 14, 9, stops))
    >>> stops[:count].tolist()
    [2, 4]
    """
    largest = np.zeros(widths.shape[1], np.int64)
    count, first = 0, 0
    for k in range(widths.shape[0]):
        tokens = 0
        for t in range(terms.shape[0]):
            a, b = terms[t, 0], terms[t, 1]
            product = max(largest[a], widths[k, a])
            if b >= 0:
                product *= max(largest[b], widths[k, b])
            tokens += product
        is_full = (k + 1 - first) * tokens > capacity or k - first >= max_samples
        if k > first and is_full:
            stops[count] = k
            count, first = count + 1, k
            largest[:] = 0
        for a in range(widths.shape[1]):
            largest[a] = max(largest[a], widths[k, a])
    if widths.shape[0] > first:
        stops[count] = widths.shape[0]
        count += 1
    return count


@jit
def fit_evenly(
    tokens: Int64Array, num_batches: int, capacity: int, max_samples: int, batch_of: Int32Array
) -> bool:
    """Put each sample into the batch with the fewest tokens; return whether all fit.

    Parameters
    ----------
    tokens
        Shape (samples,), int64, decreasing.
    num_batches
        Batches, > 0.
    capacity, max_samples
        Tokens and samples of a batch.
    batch_of
        Shape (samples,), int32: the batch of each sample; filled.

    Notes
    -----
    Of batches with equal tokens the first one is taken. Every batch has about the same mix of long
    and short samples. Cost: O(samples * log(batches)).
    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969).

    Examples
    --------
    >>> batch_of = np.empty(5, np.int32)
    >>> fit_evenly(np.array([5, 4, 3, 3, 1]), 2, 9, 9, batch_of), batch_of.tolist()
    (True, [0, 1, 1, 0, 1])
    """
    heap, loads = np.arange(num_batches), np.zeros(num_batches, np.int64)
    counts = np.zeros(num_batches, np.int64)
    size = num_batches
    for k in range(tokens.size):
        top = heap[0]
        if size == 0 or loads[top] + tokens[k] > capacity:
            return False
        batch_of[k] = top
        loads[top] += tokens[k]
        counts[top] += 1
        if counts[top] == max_samples:
            size -= 1
            heap[0] = heap[size]
        sift_down(heap, size, 0, loads)
    return True
