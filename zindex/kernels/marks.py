"""Where the documents of samples lie: numbers and positions of their tokens, and which count."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zindex.kernels._jit import jit

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int64Array: TypeAlias = npt.NDArray[np.int64]


@jit
def mark_documents(
    rows: Int64Array,
    offsets: Int64Array,
    lengths: Int64Array,
    document_ids: Int64Array,
    position_ids: Int64Array,
    has_target: BoolArray,
) -> None:
    """Say of every token of samples in which document it is, where, and whether it has a target.

    Parameters
    ----------
    rows, offsets, lengths
        Shape (parts,), int64: runs of documents, in the order of their samples: the sample, its
        place there, and its tokens. A last token may lie behind the sample, where it is a target
        alone.
    document_ids, position_ids, has_target
        Shape (samples, tokens), int64, int64 and bool, written to: the number of the document
        within its sample, -1 where there is none; the place in the document, 0 where there is none;
        and whether the token after it is of the same document.

    Examples
    --------
    >>> marks = np.empty((1, 5), np.int64), np.empty((1, 5), np.int64), np.empty((1, 5), np.bool_)
    >>> mark_documents(np.array([0, 0]), np.array([0, 2]), np.array([2, 2]), *marks)
    >>> marks[0].tolist(), marks[1].tolist()
    ([[0, 0, 1, 1, -1]], [[0, 1, 0, 1, 0]])
    >>> marks[2].tolist()
    [[True, False, True, False, False]]
    """
    document_ids[:] = -1
    position_ids[:] = 0
    has_target[:] = False
    width = document_ids.shape[1]
    row, number = -1, 0
    for part in range(rows.size):
        if rows[part] != row:
            row, number = rows[part], 0
        offset, length = offsets[part], lengths[part]
        for k in range(min(length, width - offset)):
            document_ids[row, offset + k] = number
            position_ids[row, offset + k] = k
            has_target[row, offset + k] = k + 1 < length
        number += 1
