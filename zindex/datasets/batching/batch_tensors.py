"""What all batches of text have: their memory, and the names, order and origin of their tensors."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batching.batch_memory import Shapes, allocate, allocate_arrays
from zindex.datasets.batching.batch_texts import Texts
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_masks import causal_mask

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
Tensors = dict[str, torch.Tensor]
#: The memory of tensors, by the same names.
Arrays = dict[str, AnyArray]

# Names of an item, in its order.
_ORDER = (
    "dataset_id",
    "tokens",
    "labels",
    "attention_mask",
    "loss_mask",
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
    "document_ids",
    "epoch",
    "sample_id",
)


class Origin(NamedTuple):
    """Where the samples of a batch come from, as far as their texts do not tell."""

    #: Shape (samples,), int16 or int32: the place of each one's dataset in the blend; None leaves
    #: it out of the items.
    dataset_ids: AnyArray | None
    #: Shape (samples,), int64: the epoch of its dataset that each one is of; None if nobody asks.
    epochs: Int64Array | None = None


def find_origin(
    datasets: Sequence[Any], which: Int64Array, texts: Texts, dataset_ids: AnyArray | None
) -> Origin:
    """Return where samples come from.

    Parameters
    ----------
    datasets
        The datasets.
    which
        Shape (samples,): the dataset of each sample.
    texts
        Their texts.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.
    """
    if not datasets[int(which[0])].config.with_provenance:
        return Origin(dataset_ids)
    samples, epochs = np.empty((2, len(which)), np.int64)
    samples[texts.rows] = texts.samples
    for number in set(which.tolist()):
        is_own = which == number
        epochs[is_own] = datasets[number]._find_epochs(samples[is_own])
    return Origin(dataset_ids, epochs)


def make_room(
    size: int,
    config: GPTDatasetConfig,
    dataset_ids: AnyArray | None,
    *,
    own_positions: bool,
    num_boundaries: int = 0,
) -> tuple[Tensors, Arrays]:
    """Return the tensors of a batch, and arrays to fill them through; only dataset ids are there.

    Parameters
    ----------
    size
        Samples.
    config
        The configuration of their datasets.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.
    own_positions
        Whether samples have positions of their own; plain ones are the same for all.
    num_boundaries
        Values of ``cu_seqlens``; 0 for none.
    """
    plane = size, config.sequence_length
    shapes: Shapes = {
        "tokens": (plane, torch.int64),
        "labels": (plane, torch.int64),
        "loss_mask": (plane, torch.float32),
        "position_ids": (plane if own_positions else (1, config.sequence_length), torch.int64),
    }
    if num_boundaries:
        shapes["cu_seqlens"] = ((size, num_boundaries), torch.int32)
        shapes["max_seqlen"] = ((size,), torch.int32)
    if dataset_ids is not None:
        shapes["dataset_id"] = ((size,), torch.from_numpy(dataset_ids).dtype)
    if config.with_provenance:
        shapes["document_ids"] = (plane, torch.int64)
        shapes["epoch"] = shapes["sample_id"] = ((size,), torch.int64)
    tensors, arrays = allocate_arrays(shapes)
    if dataset_ids is not None:
        arrays["dataset_id"][:] = dataset_ids
    return tensors, arrays


def fill_tokens(arrays: Arrays, text: AnyArray) -> None:
    """Fill in tokens, and as their labels the tokens after them; 0 where there is none.

    Parameters
    ----------
    arrays
        The memory of the batch.
    text
        Shape (samples, sequence_length + x).
    """
    tokens, labels = arrays["tokens"], arrays["labels"]
    num_labels = text.shape[1] - 1
    tokens[:] = text[:, : tokens.shape[1]]
    labels[:, :num_labels] = text[:, 1:]
    labels[:, num_labels:] = 0


def fill_boundaries(
    arrays: Arrays, rows: Int64Array, columns: Int64Array, offsets: Int64Array
) -> Int64Array:
    """Fill in where documents start, and return it for each token too.

    Parameters
    ----------
    arrays
        The memory of the batch.
    rows, columns
        Shape (documents,): the sample of each document, and its place among those in it.
    offsets
        Shape (documents,): token at which it starts; one behind the sample starts for no token.

    Returns
    -------
    starts
        Shape (samples, sequence_length): for each token the start of its document.
    """
    size, length = arrays["tokens"].shape
    starts = np.zeros((size, length), np.int64)
    boundaries = arrays["cu_seqlens"]
    boundaries.fill(length)
    boundaries[rows, columns] = np.minimum(offsets, length)
    arrays["max_seqlen"][:] = np.diff(boundaries, axis=1).max(axis=1)
    is_inside = offsets < length
    starts[rows[is_inside], offsets[is_inside]] = offsets[is_inside]
    return np.maximum.accumulate(starts, axis=1, out=starts)


def fill_provenance(arrays: Arrays, texts: Texts, epochs: Int64Array) -> None:
    """Fill in where samples and tokens come from; the documents of padding are -1.

    Parameters
    ----------
    arrays
        The memory of the batch.
    texts
        The samples.
    epochs
        Shape (samples,): the epoch of each.
    """
    arrays["sample_id"][texts.rows] = texts.samples
    arrays["epoch"][:] = epochs
    # As wide as the texts, which may hold a token that only serves as a label.
    size, width = texts.tokens.shape
    documents = np.full((size, width), -1, np.int64)
    firsts = texts.rows[texts.owners] * width + texts.offsets
    before = np.cumsum(texts.lengths) - texts.lengths
    places = np.repeat(firsts - before, texts.lengths) + np.arange(int(texts.lengths.sum()))
    documents.reshape(-1)[places] = np.repeat(texts.documents, texts.lengths)
    arrays["document_ids"][:] = documents[:, : arrays["document_ids"].shape[1]]


def plain_masks(size: int, length: int) -> torch.Tensor:
    """Return the plain causal mask of each sample: shape (size, 1, length, length).

    It is one tensor for all batches, which torch refuses to change as a whole as long as it is
    expanded. A batch of one sample has a copy: there it could be changed for all that follow.
    """
    mask = causal_mask(length, torch.device("cpu")).unsqueeze(0)
    if size != 1:
        return mask.expand(size, 1, length, length)
    return allocate({"mask": (tuple(mask.shape), torch.bool)})["mask"].copy_(mask)


def document_masks(starts: Int64Array) -> torch.Tensor:
    """Return causal masks that end at documents: shape (samples, 1, length, length).

    Parameters
    ----------
    starts
        Shape (samples, length): for each token the start of its document.
    """
    length = starts.shape[1]
    is_before = np.arange(length) < starts[:, None, :, None]
    return causal_mask(length, torch.device("cpu")) | torch.from_numpy(is_before)


def order_tensors(tensors: Tensors, config: GPTDatasetConfig) -> Tensors:
    """Return the tensors of a batch in the order of an item, plain positions for each sample."""
    size = len(tensors["tokens"])
    tensors["position_ids"] = tensors["position_ids"].expand(size, config.sequence_length)
    return {name: tensors[name] for name in _ORDER if name in tensors}
