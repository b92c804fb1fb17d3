"""What a batch of GPT samples is made of: labels, masks, positions and provenance, all at once."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batch_memory import allocate_arrays
from zindex.datasets.batch_texts import Texts
from zindex.datasets.gpt_batches import read_texts
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_plain import read_plain
from zindex.datasets.gpt_shapes import finish_tensors, plain_masks, plan_shapes
from zindex.datasets.sample_batch import SampleBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.gpt_dataset import GPTDataset

Int64Array = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]


class Origin(NamedTuple):
    """Where the samples of a batch come from, as far as their texts do not tell."""

    #: Shape (samples,), int16 or int32: the place of each one's dataset in the blend; None leaves
    #: it out of the items.
    dataset_ids: AnyArray | None
    #: Shape (samples,): tokens of an epoch of its dataset; None if nobody asks.
    tokens_per_epoch: Int64Array | None


def make_tensors(
    texts: Texts, config: GPTDatasetConfig, pad: int, is_padding: BoolArray, origin: Origin
) -> dict[str, torch.Tensor]:
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
    is_packed = config.inter_document_masking
    has_mask = config.create_attention_mask and not is_packed
    own_mask = has_mask and bool(config.reset_attention_mask)
    own_positions = is_packed or bool(config.reset_position_ids)
    shapes = plan_shapes(size, config, origin.dataset_ids, own_positions=own_positions)
    tensors, arrays = allocate_arrays(shapes)
    if origin.dataset_ids is not None:
        arrays["dataset_id"][:] = origin.dataset_ids
    if config.with_provenance:
        _fill_provenance(arrays, texts, origin)
    text = _fill_up(texts, pad)
    _fill_labels(arrays, text, pad)
    if is_padding.any():
        arrays["loss_mask"][is_padding] = 0.0
    starts: AnyArray = np.zeros((1, 1), np.int64)
    if is_packed:
        starts = _fill_boundaries(texts, arrays["cu_seqlens"], arrays["max_seqlen"])
    if config.eod_mask_loss or own_mask or (own_positions and not is_packed):
        is_end = text[:, :length] == config.tokenizer.eod
        if config.eod_mask_loss:
            arrays["loss_mask"][is_end] = 0.0
        if not is_packed:
            starts = find_starts(is_end)
    positions = np.arange(length)
    np.subtract(positions, starts if own_positions else 0, out=arrays["position_ids"])
    if has_mask:
        mask = plain_masks(size, length)
        if own_mask:
            mask = mask | torch.from_numpy(positions < starts[:, None, :, None])
        tensors["attention_mask"] = mask
    return finish_tensors(tensors, config)


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
    origin = Origin(dataset_ids, None)
    if config.with_provenance:
        epochs = [datasets[i]._epochs.tokens_per_epoch for i in which.tolist()]
        origin = Origin(dataset_ids, np.array(epochs))
    return SampleBatch(make_tensors(texts, config, first._pad_token_id, is_padding, origin))


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


def _fill_labels(arrays: dict[str, AnyArray], text: AnyArray, pad: int) -> None:
    """Fill in tokens, labels and loss mask: padding counts nothing, and gets the id 0."""
    tokens, labels, loss_mask = arrays["tokens"], arrays["labels"], arrays["loss_mask"]
    length = tokens.shape[1]
    num_labels = text.shape[1] - 1
    tokens[:] = text[:, :length]
    labels[:, :num_labels] = text[:, 1:]
    loss_mask.fill(1.0)
    if num_labels < length:  # no extra token was drawn: the last one predicts nothing
        labels[:, -1] = 0
        loss_mask[:, -1] = 0.0
    if pad < 0 and text.dtype.kind == "u":
        return
    is_pad = text == pad
    if is_pad.any():
        tokens[is_pad[:, :length]] = 0
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


def _fill_boundaries(texts: Texts, boundaries: AnyArray, longest: AnyArray) -> Int64Array:
    """Fill in where the documents of each sample start; return it for each token too.

    The boundary before the token that only serves as a label is none. A padded sample's padding
    belongs to its last document.
    """
    size, length = boundaries.shape[0], boundaries.shape[1] - 1
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
    boundaries.fill(length)
    boundaries[texts.rows[owners], columns] = offsets
    longest[:] = np.diff(boundaries, axis=1).max(axis=1)
    starts = np.zeros((size, length), np.int64)
    starts[texts.rows[owners], offsets] = offsets
    return np.maximum.accumulate(starts, axis=1, out=starts)


def _fill_provenance(arrays: dict[str, AnyArray], texts: Texts, origin: Origin) -> None:
    """Fill in where samples and tokens come from; the documents of padding are -1."""
    length = arrays["tokens"].shape[1]
    arrays["sample_id"][texts.rows] = texts.samples
    arrays["epoch"][:] = arrays["sample_id"] * length // origin.tokens_per_epoch
    documents = arrays["document_ids"]
    of_tokens = np.repeat(texts.documents, texts.lengths)
    stops = np.cumsum(texts.num_tokens)
    columns = zip(texts.rows, stops - texts.num_tokens, texts.num_tokens, strict=True)
    for row, first, count in columns:
        filled = min(int(count), length)
        documents[row, :filled] = of_tokens[first : first + filled]
        documents[row, filled:] = -1
