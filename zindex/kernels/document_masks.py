"""Document ids, positions and target masks of the tokens of samples."""

from zindex.arrays import BoolArray, Int64Array
from zindex.kernels._jit import jit


@jit
def mark_documents(
    rows: Int64Array,
    offsets: Int64Array,
    lengths: Int64Array,
    document_ids: Int64Array,
    position_ids: Int64Array,
    has_target: BoolArray,
) -> None:
    """Write the document, the position in it, and the target mask of every token.

    Parameters
    ----------
    rows, offsets, lengths
        Shape (spans,), int64: document spans in the order of their samples: the sample, the offset
        in it, and the number of tokens. The last token may exceed the sample: it is a target only.
    document_ids, position_ids, has_target
        Shape (samples, tokens), int64, int64 and bool; filled: the number of the document within
        its sample, -1 without one; the position in the document, 0 without one; and whether the
        next token is of the same document.

    Examples
    --------
    >>> import numpy as np
    >>> masks = np.empty((1, 5), np.int64), np.empty((1, 5), np.int64), np.empty((1, 5), np.bool_)
    >>> mark_documents(np.array([0, 0]), np.array([0, 2]), np.array([2, 2]), *masks)
    >>> masks[0].tolist(), masks[1].tolist()
    ([[0, 0, 1, 1, -1]], [[0, 1, 0, 1, 0]])
    >>> masks[2].tolist()
    [[True, False, True, False, False]]
    """
    document_ids[:] = -1
    position_ids[:] = 0
    has_target[:] = False
    width = document_ids.shape[1]
    row, number = -1, 0
    for span in range(rows.size):
        if rows[span] != row:
            row, number = rows[span], 0
        offset, length = offsets[span], lengths[span]
        for k in range(min(length, width - offset)):
            document_ids[row, offset + k] = number
            position_ids[row, offset + k] = k
            has_target[row, offset + k] = k + 1 < length
        number += 1
