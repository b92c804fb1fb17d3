"""Batches of consecutive samples whose padded tensors fit a budget of tokens."""

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import jit


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
