"""What a batch of GPT samples is made of: labels, masks, positions and boundaries, all at once."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.batch_tensors import (
    Arrays,
    Origin,
    Tensors,
    document_masks,
    fill_boundaries,
    fill_provenance,
    fill_tokens,
    find_origin,
    make_room,
    order_tensors,
    plain_masks,
)
from zindex.datasets.batching.batch_texts import Texts
from zindex.datasets.batching.gpt_batches import read_texts
from zindex.datasets.batching.gpt_plain import read_plain
from zindex.datasets.batching.sample_batch import SampleBatch
from zindex.datasets.gpt_config import GPTDatasetConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.gpt_dataset import GPTDataset

Int64Array = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]


def make_batch(
    datasets: "Sequence[GPTDataset]",
    which: Int64Array,
    positions: Int64Array,
    is_padding: BoolArray,
    dataset_ids: AnyArray | None,
) -> SampleBatch:
    """Return samples of datasets of one configuration.

    Parameters
    ----------
    datasets
        The datasets.
    which, positions
        Shape (samples,): the dataset of each sample, and its position there from the start.
    is_padding
        Shape (samples,): samples that only fill up the batch.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.
    """
    plain = read_plain(datasets, which, positions, is_padding, dataset_ids)
    if plain is not None:
        return SampleBatch(plain)
    first = datasets[int(which[0])]
    config = first.config
    width = config.sequence_length + int(config.add_extra_token_to_sequence)
    texts = read_texts(datasets, which, positions, width)
    origin = find_origin(datasets, which, texts, dataset_ids)
    return SampleBatch(make_tensors(texts, config, first._pad_token_id, is_padding, origin))


def make_tensors(
    texts: Texts, config: GPTDatasetConfig, pad: int, is_padding: BoolArray, origin: Origin
) -> Tensors:
    """Return the tensors of a batch.

    Parameters
    ----------
    texts
        The tokens of its samples.
    config
        The configuration of their datasets.
    pad
        Id of the pad token.
    is_padding
        Shape (samples,): samples that only fill up the batch, and count nothing in the loss.
    origin
        Where the samples come from.

    Returns
    -------
    tensors
        By the names of a GPT item, in its order, each with the samples in front. Plain positions
        and the plain causal mask are one tensor, expanded over the samples.
    """
    size, length = len(texts.rows), config.sequence_length
    has_boundaries = config.inter_document_masking
    tensors, arrays = make_room(
        size,
        config,
        origin.dataset_ids,
        own_positions=config.own_positions,
        num_boundaries=length + 1 if has_boundaries else 0,
    )
    if origin.epochs is not None:
        fill_provenance(arrays, texts, origin.epochs)
    text = _fill_up(texts, pad)
    fill_tokens(arrays, text)
    _fill_loss_mask(arrays, text, pad)
    if is_padding.any():
        arrays["loss_mask"][is_padding] = 0.0
    starts: AnyArray = np.zeros((1, 1), np.int64)
    if has_boundaries:
        starts = _fill_boundaries(arrays, texts)
    if config.depends_on_eod:
        is_end = text[:, :length] == config.tokenizer.eod
        if config.eod_mask_loss:
            arrays["loss_mask"][is_end] = 0.0
        if not has_boundaries:
            starts = find_starts(is_end)
    positions = np.arange(length)
    np.subtract(positions, starts if config.own_positions else 0, out=arrays["position_ids"])
    if config.has_masks:
        own = config.own_masks
        tensors["attention_mask"] = document_masks(starts) if own else plain_masks(size, length)
    return order_tensors(tensors, config)


def _fill_up(texts: Texts, pad: int) -> AnyArray:
    """Return the tokens of samples, with padding after those that are too short."""
    width = texts.tokens.shape[1]
    short = np.flatnonzero(texts.num_tokens < width)
    if not short.size:
        return texts.tokens
    text = texts.tokens.astype(np.int64)
    for i in short.tolist():
        text[texts.rows[i], texts.num_tokens[i] :] = pad
    return text


def _fill_loss_mask(arrays: Arrays, text: AnyArray, pad: int) -> None:
    """Fill in the loss mask: padding counts nothing, and gets the id 0 everywhere."""
    tokens, labels, loss_mask = arrays["tokens"], arrays["labels"], arrays["loss_mask"]
    num_labels = text.shape[1] - 1
    loss_mask[:, :num_labels] = 1.0
    loss_mask[:, num_labels:] = 0.0  # no extra token was drawn: the last one predicts nothing
    if pad < 0 and text.dtype.kind == "u":
        return
    is_pad = text == pad
    if is_pad.any():
        tokens[is_pad[:, : tokens.shape[1]]] = 0
        labels[:, :num_labels][is_pad[:, 1:]] = 0
        loss_mask[:, :num_labels][is_pad[:, 1:]] = 0.0


def find_starts(is_end: BoolArray) -> Int64Array:
    """Return, for each token, the position at which its document starts.

    Parameters
    ----------
    is_end
        Shape (samples, tokens): tokens that end a document, which they belong to.

    Returns
    -------
    starts
        Shape (samples, tokens), int64.
    """
    starts = np.zeros(is_end.shape, np.int64)
    after = np.arange(1, is_end.shape[1])
    np.multiply(is_end[:, :-1], after, out=starts[:, 1:])
    return np.maximum.accumulate(starts, axis=1, out=starts)


def _fill_boundaries(arrays: Arrays, texts: Texts) -> Int64Array:
    """Fill in where the documents of each sample start; return it for each token too.

    The boundary before the token that only serves as a label is none. A padded sample's padding
    belongs to its last document.
    """
    length = arrays["tokens"].shape[1]
    extra = texts.tokens.shape[1] - length
    is_start = texts.offsets < (texts.num_tokens - extra)[texts.owners]
    is_start[texts.first_parts] = True
    # More boundaries than fit come from empty documents only.
    counts = np.add.reduceat(is_start, texts.first_parts, dtype=np.int64)
    if int(counts.max()) > length:
        crowded = (counts > length)[texts.owners]
        is_start &= ~crowded | (texts.lengths > 0)
        counts = np.add.reduceat(is_start, texts.first_parts, dtype=np.int64)
    offsets, owners = texts.offsets[is_start], texts.owners[is_start]
    columns = np.arange(len(offsets)) - (np.cumsum(counts) - counts)[owners]
    return fill_boundaries(arrays, texts.rows[owners], columns, offsets)
