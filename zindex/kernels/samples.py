"""The sample index, chunk by chunk: token sums of documents, and the rows that their tokens fill.

Documents are given in `document_index` order. How many rows there are, and the last row of a
partial sample, are integers that `plan` knows; they are not decided here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.kernels._instructions import prefetch
from zindex.kernels._jit import jit

IntegerArray = npt.NDArray[np.integer[Any]]

_AHEAD = 128
"""Documents between the fetch of a length's cache line and its use."""


@jit
def sum_lengths(lengths: IntegerArray, documents: IntegerArray, base: int) -> int:
    """Return the tokens that documents hold together.

    Parameters
    ----------
    lengths
        Shape (range,), int32, tokens: the lengths of documents ``base``, ``base + 1``, ...
    documents
        Shape (documents,), int32 or int64: document ids in the range, in any order.
    base
        Id of the document whose length comes first.

    Returns
    -------
    num_tokens
        Sum in int64.

    Notes
    -----
    Law: ``lengths[documents - base].sum()``. Cost: O(documents), a few nanoseconds each in
    any order, since cache lines are fetched ahead; no memory.

    Examples
    --------
    >>> int(sum_lengths(np.array([3, 5, 2], np.int32), np.array([12, 10, 12], np.int32), 10))
    7
    """
    total: Any = np.int64(0)
    origin = np.int64(base)
    last = documents.size - 1
    for k in range(documents.size):
        prefetch(lengths, np.uint64(np.int64(documents[min(k + _AHEAD, last)]) - origin))
        total += np.int64(lengths[np.uint64(np.int64(documents[k]) - origin)])
    return int(total)


@jit
def gather_lengths(
    lengths: IntegerArray, documents: IntegerArray, base: int, out: IntegerArray
) -> None:
    """Write the length of each document, in the given order.

    Parameters
    ----------
    lengths
        Shape (range,), int32, tokens: the lengths of documents ``base``, ``base + 1``, ...
    documents
        Shape (documents,), int32 or int64: document ids in the range, in any order.
    base
        Id of the document whose length comes first.
    out
        Shape (documents,), int32 or int64, tokens; filled.

    Notes
    -----
    Law: ``lengths[documents - base]``. Cost: as `sum_lengths`.

    Examples
    --------
    >>> out = np.empty(3, np.int32)
    >>> gather_lengths(np.array([3, 5, 2], np.int32), np.array([12, 10, 12], np.int32), 10, out)
    >>> out
    array([2, 3, 2], dtype=int32)
    """
    origin = np.int64(base)
    last = documents.size - 1
    for k in range(documents.size):
        prefetch(lengths, np.uint64(np.int64(documents[min(k + _AHEAD, last)]) - origin))
        out[k] = lengths[np.uint64(np.int64(documents[k]) - origin)]


@jit
def fill_boundaries(
    document_lengths: IntegerArray,
    first_row: int,
    first_token: int,
    sequence_length: int,
    extra_token: int,
    boundaries: IntegerArray,
    first_boundary: int,
    next_boundary: int,
) -> int:
    """Write the sample boundaries that fall in a run of documents; return the next one to write.

    Parameters
    ----------
    document_lengths
        Shape (documents,), int32 or int64, tokens, each >= 0: consecutive rows of
        `document_index`.
    first_row
        Row of the first of them in `document_index`.
    first_token
        Tokens that all earlier rows hold.
    sequence_length
        Tokens per sample, > 0.
    extra_token
        1 if samples overlap by one token (Megatron's ``add_extra_token_to_sequence``), else 0.
    boundaries
        Shape (boundaries, 2), int32 or int64: (row in `document_index`, token offset in that
        document) of boundaries ``first_boundary``, ``first_boundary + 1``, ...; filled from
        ``next_boundary`` up to what is returned. The row after that, if any, is left undefined.
    first_boundary
        Boundary that ``boundaries[0]`` holds.
    next_boundary
        First boundary not written by an earlier run; >= ``first_boundary`` and not before this
        run.

    Returns
    -------
    next_boundary
        First boundary that is still to be written, from a later run or a later array.

    Notes
    -----
    Boundary k > 0 lies at token ``p = k * sequence_length``. With an extra token its document is
    the first that ends after p; without one, the first that ends at or after p, so that its offset
    may equal the document's length. Boundary 0 is always (0, 0).

    Law: the result does not depend on how documents are cut into runs. Cost: O(documents +
    boundaries), sequential; no memory.
    Source: Megatron Core ``datasets/helpers.cpp``, ``build_sample_idx``.

    Examples
    --------
    >>> boundaries = np.zeros((3, 2), np.int32)
    >>> int(fill_boundaries(np.array([2, 5], np.int32), 0, 0, 3, 1, boundaries, 0, 0))
    3
    >>> boundaries.tolist()
    [[0, 0], [1, 1], [1, 4]]
    """
    boundary: Any = np.int64(next_boundary)
    stop = np.int64(first_boundary) + boundaries.shape[0]
    if boundary == 0 and first_row == 0 and document_lengths.size > 0 and stop > 0:
        boundaries[0, 0] = 0
        boundaries[0, 1] = 0
        boundary = np.int64(1)
    # Without an extra token a document that ends at the boundary holds it: shift the comparison.
    reach = np.int64(1) - np.int64(extra_token)
    token = boundary * np.int64(sequence_length)
    start = np.int64(first_token)
    for k in range(document_lengths.size):
        if boundary >= stop:
            break
        end = start + np.int64(document_lengths[k])
        # Written always and kept if it counts: most documents hold no boundary or one, and which
        # of the two cannot be predicted.
        row = np.uint64(boundary - first_boundary)
        boundaries[row, 0] = first_row + k
        boundaries[row, 1] = token - start
        kept = np.int64(token < end + reach)
        boundary += kept
        token += kept * sequence_length
        while token < end + reach and boundary < stop:
            row = np.uint64(boundary - first_boundary)
            boundaries[row, 0] = first_row + k
            boundaries[row, 1] = token - start
            boundary += 1
            token += sequence_length
        start = end
    return int(boundary)
