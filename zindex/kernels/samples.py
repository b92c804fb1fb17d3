"""The sample index by chunks: lengths of documents, and the sample boundaries in them.

Documents are in `document_index` order. The plan decides the number of rows and the last row of a
partial sample.
"""

from typing import Any

import numpy as np

from zindex.arrays import IntegerArray
from zindex.kernels._jit import jit, prefetch

#: Documents between the prefetch of a length and its use.
_AHEAD = 128


@jit
def gather_lengths(
    lengths: IntegerArray, documents: IntegerArray, base: int, out: IntegerArray
) -> None:
    """Write the length of each document, in the given order.

    Parameters
    ----------
    lengths
        Shape (range,), int32, tokens: lengths of documents ``base``, ``base + 1``, ...
    documents
        Shape (documents,), int32 or int64: document ids in the range, in any order.
    base
        Id of the first document of ``lengths``.
    out
        Shape (documents,), int32 or int64, tokens; filled.

    Notes
    -----
    Law: ``lengths[documents - base]``. Cost: O(documents), a few nanoseconds each in any order,
    because cache lines are prefetched.

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
    """Write the sample boundaries in a range of documents; return the next one to write.

    Parameters
    ----------
    document_lengths
        Shape (documents,), int32 or int64, tokens, each >= 0: consecutive rows of
        `document_index`.
    first_row
        Row of the first of them in `document_index`.
    first_token
        Tokens of all earlier rows.
    sequence_length
        Tokens per sample, > 0.
    extra_token
        1 if samples overlap by one token (Megatron's ``add_extra_token_to_sequence``), else 0.
    boundaries
        Shape (boundaries, 2), int32 or int64: (row in `document_index`, token offset in that
        document) of boundaries ``first_boundary``, ``first_boundary + 1``, ...; filled from
        ``next_boundary`` up to the returned one, whose row, if any, is undefined.
    first_boundary
        Boundary of ``boundaries[0]``.
    next_boundary
        First boundary not written by an earlier call; >= ``first_boundary`` and not before this
        range.

    Returns
    -------
    next_boundary
        First boundary not yet written, in a later range or a later array.

    Notes
    -----
    Boundary k > 0 is at token ``p = k * sequence_length``. With an extra token, its document is the
    first that ends after p; without one, the first that ends at or after p, so its offset may equal
    the document's length. Boundary 0 is always (0, 0).

    Law: independent of the division of documents into ranges. Cost: O(documents +
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
    # Without an extra token, a document that ends at the boundary contains it.
    reach = np.int64(1) - np.int64(extra_token)
    token = boundary * np.int64(sequence_length)
    start = np.int64(first_token)
    for k in range(document_lengths.size):
        if boundary >= stop:
            break
        end = start + np.int64(document_lengths[k])
        # Branch-free: always written, and kept if valid. Most documents have no boundary or one,
        # unpredictably.
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
