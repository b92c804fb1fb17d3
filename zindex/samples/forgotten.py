"""Leave forgotten documents out of samples: what remains moves together, padding follows."""

import numpy as np
import torch

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.samples.batch import Tensors
from zindex.samples.tensors import TextSettings

# Tensors with a value for each token, and that of padding.
_TOKEN_VALUES = {"tokens": 0, "labels": 0, "loss_mask": 0, "document_ids": -1}


def leave_out(
    tensors: Tensors,
    rows: Int64Array,
    is_out: BoolArray,
    is_label_out: BoolArray,
    settings: TextSettings,
) -> None:
    """Leave tokens out of samples of a batch, in place.

    Parameters
    ----------
    tensors
        The tensors of the batch, as of a GPT or a packed item.
    rows
        Shape (samples,): the samples of the batch to change.
    is_out
        Shape (samples, sequence_length): inputs to leave out, and padding.
    is_label_out
        Same shape: labels to leave out, whose inputs may remain.
    settings
        Settings of the samples.

    Notes
    -----
    Law: an input that remains keeps its label and its weight in the loss, unless its label is left
    out: then it predicts nothing. No pair of an input and a label is new. The order of inputs is
    unchanged; positions and boundaries are those of the remaining tokens, and padding is a document
    of its own.
    """
    length = is_out.shape[1]
    order = np.argsort(is_out, axis=1, kind="stable")
    num_kept = length - np.count_nonzero(is_out, axis=1)[:, None]
    columns = np.arange(length)
    is_tail = columns >= num_kept
    _set(tensors, "labels", rows, is_label_out)
    _set(tensors, "loss_mask", rows, is_label_out)
    for name, padding in _TOKEN_VALUES.items():
        if name in tensors:
            values = tensors[name].numpy()
            moved = np.take_along_axis(values[rows], order, axis=1)
            moved[is_tail] = padding
            values[rows] = moved
    if settings.own_positions:
        positions = tensors["position_ids"].numpy()
        moved = np.take_along_axis(positions[rows], order, axis=1)
        positions[rows] = np.where(is_tail, columns - num_kept, moved)
    if settings.num_boundaries:
        _move_boundaries(tensors, rows, is_out)
    if settings.has_masks and (settings.own_masks or settings.num_boundaries):
        _move_masks(tensors["attention_mask"], rows, order, is_tail)


def _set(tensors: Tensors, name: str, rows: Int64Array, where: BoolArray) -> None:
    """Set values of some rows of a tensor to 0."""
    values = tensors[name].numpy()
    values[rows] = np.where(where, 0, values[rows])


def _move_boundaries(tensors: Tensors, rows: Int64Array, is_out: BoolArray) -> None:
    """Move the boundaries of documents to those of the remaining tokens."""
    boundaries, longest = tensors["cu_seqlens"].numpy(), tensors["max_seqlen"].numpy()
    length = is_out.shape[1]
    before = np.zeros((len(rows), length + 1), np.int64)
    np.cumsum(~is_out, axis=1, out=before[:, 1:])
    for row, counts in zip(rows.tolist(), before, strict=True):
        kept: AnyArray = np.unique(np.append(counts[boundaries[row]], length))
        boundaries[row] = length
        boundaries[row, : len(kept)] = kept
        longest[row] = np.diff(kept).max()


def _move_masks(
    mask: torch.Tensor, rows: Int64Array, order: Int64Array, is_tail: BoolArray
) -> None:
    """Move the masks of each sample, True where masked; padding sees padding only."""
    values = mask.numpy()
    own = np.take_along_axis(values[rows, 0], order[:, :, None], axis=1)
    own = np.take_along_axis(own, order[:, None, :], axis=2)
    own = np.where(is_tail[:, :, None], ~is_tail[:, None, :], own)
    values[rows, 0] = own | np.triu(np.ones(own.shape[1:], np.bool_), 1)
