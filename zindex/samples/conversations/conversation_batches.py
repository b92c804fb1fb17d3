"""Encode conversations as ids and targets, and make batches of rows of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, SourceError
from zindex.samples.batch import BatchRequest, SampleBatch, Shapes, allocate_arrays
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser
from zindex.text.loss_masks import DialogueCutter
from zindex.text.text_checks import check_unicode
from zindex.text.text_encoder import TextEncoder
from zindex.text.tokenizers.base import find_token
from zindex.text.tokenizers.text_tokenizer import TextTokenizer

#: Label of tokens that the loss ignores.
IGNORE_INDEX = -100


class Encoded(NamedTuple):
    """A conversation as ids, and for each of them the target id or `IGNORE_INDEX`."""

    #: Shape (tokens,), int64.
    tokens: Int64Array
    #: Shape (tokens,), int64.
    targets: Int64Array


class ChatTokens:
    """Encodes conversations by a chat template and marks the assistant's targets.

    It encodes like ``zindex tokenize --for sft``, sample by sample.

    Parameters
    ----------
    tokenizer
        One of zindex's tokenizers with a chat template.

    Raises
    ------
    ConfigError
        If it is not one of zindex's, or has no template.
    """

    def __init__(self, tokenizer: Any) -> None:
        library = getattr(tokenizer, "_tokenizer", tokenizer)
        template = getattr(tokenizer, "chat_template", None)
        if not isinstance(library, TextTokenizer) or template is None:
            raise ConfigError(
                "conversations need a tokenizer with tokenize_conversation, or one that zindex "
                f"opens and that has a chat template, got {type(tokenizer).__name__}; give it one "
                "of the two"
            )
        self._encoder = TextEncoder(library)
        chat = ChatTemplate(template, special_tokens=library.special_tokens_map)
        self._parser = ConversationParser()
        self._cutter = DialogueCutter(chat, ends=self._encoder.special_texts())

    def encode(self, messages: list[dict[str, Any]]) -> Encoded:
        """Return a conversation as ids and targets.

        Raises
        ------
        SourceError
            If it has no targets, a message has no content or content other than text, or the
            template rejects it.
        """
        dialogue = self._parser.read_dialogue({"messages": messages})
        masked = self._cutter.cut(dialogue)
        check_unicode(masked.text)
        [(ids, is_trained)] = self._encoder.encode_spans([masked.text], [False], [masked.spans])
        return Encoded(ids, np.where(is_trained, ids, IGNORE_INDEX))


class PadIds(NamedTuple):
    """Padding ids of a row."""

    #: Input: an id with an embedding.
    token: int
    #: Label: the tokenizer's own, which may be negative.
    label: int
    #: Whether the label occurs only in padding.
    is_own: bool


def find_pad_ids(tokenizer: Any) -> PadIds:
    """Return the pad ids of a tokenizer: its end of document if it has no other.

    Raises
    ------
    ConfigError
        If it has no end of document.
    """
    if tokenizer.eod is None:
        raise ConfigError(
            f"conversations need a tokenizer with an end of document, {type(tokenizer).__name__} "
            "says that its eod is None; give it one"
        )
    eod, pad = int(tokenizer.eod), find_token(tokenizer, "pad")
    if pad is None:
        return PadIds(eod, eod, is_own=False)
    return PadIds(eod if pad < 0 else pad, pad, is_own=pad != eod)


@contextmanager
def naming_record(number: int, path: str | None) -> Iterator[None]:
    """Add the record to error messages."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"record {number} of {path}: {error}") from error


def make_conversation_batch(wanted: BatchRequest) -> SampleBatch:
    """Return samples of SFT datasets."""
    config = wanted.first.config
    size, length = len(wanted.which), int(config.sequence_length)
    plane = size, length
    shapes: Shapes = {
        "tokens": (plane, torch.int64),
        "labels": (plane, torch.int64),
        "loss_mask": (plane, torch.float32),
        "position_ids": (plane, torch.int64),
    }
    if wanted.first._has_boundaries:
        # Without padding there may be one more: every token, and the rest.
        num_bounds = length + 1 + (not wanted.first._pads_boundaries)
        shapes["cu_seqlens"] = ((size, num_bounds), torch.int32)
        shapes["max_seqlen"] = ((size,), torch.int32)
    tensors, arrays = allocate_arrays(shapes, wanted.dataset_ids)
    pad = find_pad_ids(config.tokenizer)
    num_boundaries = np.zeros(size, np.int64)
    for number in dict.fromkeys(wanted.which.tolist()):
        rows = np.flatnonzero(wanted.which == number)
        dataset = wanted.datasets[number]
        numbers = dataset._find_records(wanted.positions[rows])
        records = dataset._read_records(numbers)
        for row, name, record in zip(rows.tolist(), numbers, records, strict=True):
            with naming_record(name, dataset.dataset_path):
                num_boundaries[row] = _fill_row(dataset, record, pad, arrays, row)
    arrays["loss_mask"][wanted.is_padding] = 0.0
    batch = SampleBatch(tensors)
    if wanted.first._pads_boundaries or not wanted.first._has_boundaries:
        return batch
    items = list(batch)
    for item, count in zip(items, num_boundaries.tolist(), strict=True):
        item["cu_seqlens"] = item["cu_seqlens"][:count]
    return SampleBatch.of_items(items)


def _fill_row(dataset: Any, record: Any, pad: PadIds, arrays: dict[str, AnyArray], row: int) -> int:
    """Fill one row of a batch with the conversations of a record; return how many bounds they have.

    Law: tokens that do not fit are truncated. The last label of a full row is padding, or a label
    that the dataset keeps. Padding belongs to the preceding conversation; positions in it follow
    those of the last tokens. Source: Megatron-LM, ``SFTDataset.__getitem__``.
    """
    length = arrays["tokens"].shape[1]
    # One more token than inputs, for the last label.
    tokens = np.full(length + 1, pad.token, np.int64)
    targets = np.full(length + 1, pad.label, np.int64)
    is_counted = np.zeros(length + 1, np.bool_)
    divisor = dataset.padding_divisor
    starts: list[int] = []
    firsts: list[int] = []
    size = 0
    for encoded in dataset._encode(record):
        count = len(encoded.tokens)
        starts.append(size)
        if not count:
            continue
        fits = min(count, length + dataset._num_kept_labels - size)
        tokens[size : size + fits] = encoded.tokens[:fits]
        targets[size : size + fits] = encoded.targets[:fits]
        is_counted[size : size + fits] = True
        firsts.append(size)
        size += -(-count // divisor) * divisor
        if size > length:
            break
    if not firsts:
        raise SourceError(
            "a record must give tokens, this one gives none; remove it or fix the tokenizer's "
            "chat template"
        )
    is_counted &= targets != IGNORE_INDEX
    if pad.is_own:
        is_counted &= targets != pad.label
    arrays["tokens"][row] = tokens[:-1]
    arrays["labels"][row] = targets[1:]
    arrays["loss_mask"][row] = is_counted[1:]
    arrays["position_ids"][row] = np.arange(length)
    if "cu_seqlens" in arrays:
        arrays["position_ids"][row] -= np.repeat(firsts, np.diff([*firsts, length]))
        # A fixed number of boundaries, so that samples can be stacked.
        bounds = arrays["cu_seqlens"][row]
        bounds[:] = length
        bounds[: len(starts)] = starts[: len(bounds)]
        arrays["max_seqlen"][row] = np.diff([*starts, length]).max()
    return len(starts) + 1


def end_conversation(encoded: Encoded, eod: int) -> Encoded:
    """Return a conversation with the end of document, a target, unless it ends with it."""
    tokens = encoded.tokens
    is_done = not len(tokens) or tokens[-1] == eod
    return encoded if is_done else end_within(encoded, eod, len(tokens) + 1)


def end_within(encoded: Encoded, eod: int, length: int) -> Encoded:
    """Return a conversation of at most so many tokens, the last one the end of document."""
    return Encoded(*(np.append(ids[: length - 1], eod) for ids in encoded))


def as_ids(values: Any) -> Int64Array:
    """Return ids as an array, from a tensor, an array or a list."""
    if isinstance(values, torch.Tensor):
        values = values.cpu().numpy()
    return np.asarray(values, np.int64).reshape(-1)
