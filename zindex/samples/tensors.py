"""Make the tensors of a batch of text: tokens, labels, masks, positions and boundaries."""

from typing import NamedTuple

import numpy as np
import torch

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.errors import ConfigError
from zindex.samples.batch import Arrays, Shapes, Tensors, allocate_arrays
from zindex.samples.masks import causal_mask
from zindex.samples.texts import Texts

# The first names of an item; the others are in the order of `make_room`.
_FIRST = ("dataset_id", "tokens", "labels", "attention_mask")


class TextSettings(NamedTuple):
    """The settings of a GPT dataset that decide the tensors of its samples."""

    #: Tokens of a sample, and 1 if an extra token is drawn for the last label, else 0.
    sequence_length: int
    extra: int
    #: Id of padding; -1 if the tokenizer's is missing or ambiguous.
    pad: int
    #: Id of the end of a document; None if not needed.
    eod: int | None
    eod_mask_loss: bool
    #: Whether items have an attention mask.
    has_masks: bool
    #: Whether each attention mask ends at the documents of its sample.
    own_masks: bool
    #: Whether positions restart with each document.
    own_positions: bool
    #: Values of ``cu_seqlens``; 0 without boundaries of documents.
    num_boundaries: int
    with_provenance: bool
    #: Ids of the vocabulary; None if the tokens are known to have no others.
    num_ids: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether items depend on their tokens and documents only through padding."""
        return self.eod is None and not (self.num_boundaries or self.with_provenance)

    @property
    def depends_on_text(self) -> bool:
        """Whether the tensors of a sample can be made quickly from its tokens alone."""
        return not (self.own_masks or self.num_boundaries or self.with_provenance)


def make_room(
    size: int, settings: TextSettings, dataset_ids: AnyArray | None
) -> tuple[Tensors, Arrays]:
    """Return the uninitialised tensors of a batch with its dataset ids, and arrays to fill them.

    Parameters
    ----------
    size
        Number of samples.
    settings
        Settings of their datasets.
    dataset_ids
        Shape (samples,): ``dataset_id`` of the items; None omits it.
    """
    length = settings.sequence_length
    plane = size, length
    shapes: Shapes = {
        "tokens": (plane, torch.int64),
        "labels": (plane, torch.int64),
        "loss_mask": (plane, torch.float32),
        "position_ids": (plane if settings.own_positions else (1, length), torch.int64),
    }
    if settings.num_boundaries:
        shapes["cu_seqlens"] = ((size, settings.num_boundaries), torch.int32)
        shapes["max_seqlen"] = ((size,), torch.int32)
    if settings.with_provenance:
        shapes["document_ids"] = (plane, torch.int64)
        shapes["epoch"] = shapes["sample_id"] = ((size,), torch.int64)
    return allocate_arrays(shapes, dataset_ids)


def check_ids(tokens: AnyArray, labels: AnyArray, num_ids: int | None) -> None:
    """Check that the tokens of samples, including the label of the last one, are in the vocabulary.

    Raises
    ------
    ConfigError
        If a token is not.
    """
    if num_ids is None or not tokens.size:
        return
    highest = max(int(tokens.max()), int(labels[..., -1].max()))
    if highest >= num_ids:
        raise ConfigError(
            f"tokens must be ids of the tokenizer, below {num_ids:,}, a sample has {highest:,}; "
            "give the tokenizer that the corpus was made with"
        )


def finish_tensors(tensors: Tensors, arrays: Arrays, settings: TextSettings) -> Tensors:
    """Return the checked tensors of a batch in the order of an item.

    Plain positions are expanded over the samples.
    """
    check_ids(arrays["tokens"], arrays["labels"], settings.num_ids)
    size = len(tensors["tokens"])
    tensors["position_ids"] = tensors["position_ids"].expand(size, -1)
    return {name: tensors[name] for name in _FIRST if name in tensors} | tensors


def plain_masks(size: int, length: int, *, share: bool = False) -> torch.Tensor:
    """Return the plain causal mask of each sample: shape (size, 1, length, length).

    All batches share one expanded tensor, on which torch rejects in-place operations. A batch of
    one sample gets a copy unless ``share`` is set, because torch would allow them there.
    """
    mask = causal_mask(length, torch.device("cpu")).unsqueeze(0)
    if size != 1 or share:
        return mask.expand(size, 1, length, length)
    return allocate_arrays({"mask": (tuple(mask.shape), torch.bool)})[0]["mask"].copy_(mask)


def document_masks(starts: Int64Array) -> torch.Tensor:
    """Return causal masks that end at documents: shape (samples, 1, length, length).

    Parameters
    ----------
    starts
        Shape (samples, length): position at which each token's document starts.
    """
    length = starts.shape[1]
    is_before = np.arange(length) < starts[:, None, :, None]
    return causal_mask(length, torch.device("cpu")) | torch.from_numpy(is_before)


def fill_tokens(arrays: Arrays, text: AnyArray) -> None:
    """Fill in tokens and, as labels, the next tokens; 0 if there is none.

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
    """Fill in the boundaries of documents, and return where each token's document starts.

    Parameters
    ----------
    arrays
        The memory of the batch.
    rows, columns
        Shape (documents,): the sample of each document, and its rank among the sample's documents.
    offsets
        Shape (documents,): token at which it starts; documents after the sample have no tokens.

    Returns
    -------
    starts
        Shape (samples, sequence_length), int64.
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
    """Fill in the provenance of samples and tokens; ``document_ids`` of padding are -1.

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
    # As wide as the texts, which may hold an additional token for the last label.
    size, width = texts.tokens.shape
    documents = np.full((size, width), -1, np.int64)
    firsts = texts.rows[texts.owners] * width + texts.offsets
    before = np.cumsum(texts.lengths) - texts.lengths
    places = np.repeat(firsts - before, texts.lengths) + np.arange(int(texts.lengths.sum()))
    documents.reshape(-1)[places] = np.repeat(texts.documents, texts.lengths)
    arrays["document_ids"][:] = documents[:, : arrays["document_ids"].shape[1]]


def make_text_tensors(
    texts: Texts,
    settings: TextSettings,
    is_padding: BoolArray,
    dataset_ids: AnyArray | None,
    epochs: Int64Array | None,
    *,
    share_mask: bool = False,
) -> Tensors:
    """Return the tensors of a batch of GPT samples.

    Parameters
    ----------
    texts
        The tokens of the samples.
    settings
        Settings of their datasets.
    is_padding
        Shape (samples,): padding samples, with a loss mask of zeros.
    dataset_ids
        Shape (samples,): ``dataset_id`` of the items; None omits it.
    epochs
        Shape (samples,): epoch of each sample; needed with provenance only.
    share_mask
        Whether a single sample may share its plain mask with others.

    Returns
    -------
    tensors
        By the names of a GPT item, in its order, each with the samples along the first dimension.
        Plain positions and the plain causal mask are expanded over the samples.
    """
    size, length = len(texts.rows), settings.sequence_length
    tensors, arrays = make_room(size, settings, dataset_ids)
    if epochs is not None:
        fill_provenance(arrays, texts, epochs)
    text = pad_texts(texts, settings.pad)
    fill_tokens(arrays, text)
    _fill_loss_mask(arrays, text, settings.pad)
    if is_padding.any():
        arrays["loss_mask"][is_padding] = 0.0
    starts: AnyArray = np.zeros((1, 1), np.int64)
    if settings.num_boundaries:
        starts = _fill_boundaries(arrays, texts)
    if settings.eod is not None:
        is_end = text[:, :length] == settings.eod
        if settings.eod_mask_loss:
            arrays["loss_mask"][is_end] = 0.0
        if not settings.num_boundaries:
            starts = find_starts(is_end)
    positions = np.arange(length)
    np.subtract(positions, starts if settings.own_positions else 0, out=arrays["position_ids"])
    if settings.own_masks:
        tensors["attention_mask"] = document_masks(starts)
    elif settings.has_masks:
        tensors["attention_mask"] = plain_masks(size, length, share=share_mask)
    return finish_tensors(tensors, arrays, settings)


def pad_texts(texts: Texts, pad: int) -> AnyArray:
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
    """Fill in the loss mask, 0 in padding, and set padding tokens and labels to 0."""
    tokens, labels, loss_mask = arrays["tokens"], arrays["labels"], arrays["loss_mask"]
    num_labels = text.shape[1] - 1
    loss_mask[:, :num_labels] = 1.0
    loss_mask[:, num_labels:] = 0.0  # without an extra token, the last one predicts nothing
    if pad < 0 and text.dtype.kind == "u":
        return
    is_pad = text == pad
    if is_pad.any():
        tokens[is_pad[:, : tokens.shape[1]]] = 0
        labels[:, :num_labels][is_pad[:, 1:]] = 0
        loss_mask[:, :num_labels][is_pad[:, 1:]] = 0.0


def find_starts(is_end: BoolArray) -> Int64Array:
    """Return the position at which each token's document starts: shape (samples, tokens), int64.

    Parameters
    ----------
    is_end
        Shape (samples, tokens): tokens that end a document, and belong to it.
    """
    starts = np.zeros(is_end.shape, np.int64)
    after = np.arange(1, is_end.shape[1])
    np.multiply(is_end[:, :-1], after, out=starts[:, 1:])
    return np.maximum.accumulate(starts, axis=1, out=starts)


def _fill_boundaries(arrays: Arrays, texts: Texts) -> Int64Array:
    """Fill in where the documents of each sample start, and return it for each token too.

    A document whose first token is only a label has no boundary. Padding belongs to the last
    document of its sample.
    """
    length = arrays["tokens"].shape[1]
    extra = texts.tokens.shape[1] - length
    is_start = texts.offsets < (texts.num_tokens - extra)[texts.owners]
    is_start[texts.first_parts] = True
    # Only empty documents can make more boundaries than fit.
    counts = np.add.reduceat(is_start, texts.first_parts, dtype=np.int64)
    if int(counts.max()) > length:
        crowded = (counts > length)[texts.owners]
        is_start &= ~crowded | (texts.lengths > 0)
        counts = np.add.reduceat(is_start, texts.first_parts, dtype=np.int64)
    offsets, owners = texts.offsets[is_start], texts.owners[is_start]
    columns = np.arange(len(offsets)) - (np.cumsum(counts) - counts)[owners]
    return fill_boundaries(arrays, texts.rows[owners], columns, offsets)
