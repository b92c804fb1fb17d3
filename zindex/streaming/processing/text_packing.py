"""Texts packed into sequences of one length."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from zindex.errors import ConfigError, SourceError
from zindex.store.identity import fingerprint
from zindex.text.text_encoder import TextEncoder, TokenizerLike

Int64Array = npt.NDArray[np.int64]
Sample = dict[str, Any]
#: What becomes of the tokens that fill no sequence at the end: filled up, or left out.
Tail = Literal["pad", "drop"]


class TextPacking:
    """Joins the tokens of texts, in their order, and cuts them into sequences of one length.

    A process function: it is called on an iterator of samples, and yields what it still holds when
    that ends. A sequence is named after the text in which it is complete, and the how many-th of
    that text it is: ``"<key>@<k>"``.

    Parameters
    ----------
    sequence_length
        Tokens per sequence.
    tokenizer
        See `zindex.text.text_encoder.TextEncoder`.
    field
        Name of the text in a sample.
    append_eod
        Id or text of a token that goes behind each text; True for the tokenizer's own.
    overlap
        1: a sequence begins with the last label of the one before, so that every token but the
        first is a label once. 0: sequences share nothing, and their first tokens are no labels.
    tail
        ``"pad"`` fills up the last sequence, with weight 0 in the loss; ``"drop"`` leaves it out.
    pad_id
        Id to fill up with, in tokens and labels.
    attention_mask
        Whether samples have a mask of shape (1, sequence_length, sequence_length), bool, True
        where a token must not look: it costs the square of the length.
    batch_size
        Texts that are tokenised together; it does not change what comes out.

    Raises
    ------
    ConfigError
        If an argument is out of range, or the tokenizer is none.

    Notes
    -----
    Samples have ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids``
    (int64), all of shape (sequence_length,), ``__url__`` and ``__key__``. A single token that is
    left at the end has no label, so it makes no sample.
    """

    def __init__(
        self,
        sequence_length: int,
        tokenizer: TokenizerLike,
        *,
        field: str = "text",
        append_eod: bool | int | str = False,
        overlap: Literal[0, 1] = 0,
        tail: Tail = "pad",
        pad_id: int = 0,
        attention_mask: bool = False,
        batch_size: int = 64,
    ) -> None:
        for name, value in (("sequence_length", sequence_length), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number from 1 on, got {value!r}")
        if overlap not in (0, 1):
            raise ConfigError(f"overlap must be 0 or 1 tokens, got {overlap!r}")
        if tail not in get_args(Tail):
            raise ConfigError(f"tail must be 'pad' or 'drop', got {tail!r}")
        self.sequence_length = sequence_length
        self.encoder = TextEncoder(tokenizer)
        self.field = field
        self.eod = self.encoder.find_id(append_eod, "append_eod")
        self.overlap = overlap
        self.tail = tail
        self.pad_id = pad_id
        self.attention_mask = attention_mask
        self.batch_size = batch_size

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of what decides the sequences that texts become."""
        names = ("sequence_length", "field", "eod", "overlap", "tail", "pad_id")
        settings = {name: getattr(self, name) for name in names}
        return fingerprint(settings | {"tokenizer": self.encoder.identity()})

    def __call__(self, source: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
        """Yield the sequences of samples.

        Raises
        ------
        SourceError
            If a sample has no text under the field's name.
        """
        length, step = self.sequence_length + 1, self.sequence_length + 1 - self.overlap
        held = np.empty(0, np.int64)
        last: tuple[Any, Any, int] = (None, None, 0)
        lines = iter(source)
        while batch := list(islice(lines, self.batch_size)):
            texts = self._encode([self._take_text(sample) for sample in batch])
            ends = len(held) + np.cumsum([len(ids) for ids in texts])
            stream = np.concatenate([held, *texts])
            starts = np.arange(0, len(stream) - length + 1, step)
            # The text in which each sequence is complete.
            rows = np.searchsorted(ends, starts + length).tolist()
            last = (batch[-1].get("__url__"), batch[-1].get("__key__"), 0)
            row_before, number = -1, 0
            for start, row in zip(starts.tolist(), rows, strict=True):
                number = number + 1 if row == row_before else 0
                row_before = row
                sample = batch[row]
                place = (sample.get("__url__"), sample.get("__key__"), number)
                if row == len(batch) - 1:
                    last = (*place[:2], number + 1)
                yield self._make(stream[start : start + length], length, place)
            held = stream[len(starts) * step :].copy()
        if len(held) > 1 and self.tail == "pad":
            filled = np.full(length, self.pad_id, np.int64)
            filled[: len(held)] = held
            yield self._make(filled, len(held), last)

    def _take_text(self, sample: Mapping[str, Any]) -> str:
        """Return the text of a sample."""
        text = sample.get(self.field)
        if isinstance(text, bytes):
            try:
                return text.decode()
            except UnicodeDecodeError as error:
                raise SourceError(f"{_where(sample)} must hold text in UTF-8: {error}") from error
        if not isinstance(text, str):
            raise SourceError(
                f"{_where(sample)} must have a text under {self.field!r}, it has "
                f"{sorted(map(str, sample)) if text is None else type(text).__name__}; name the "
                "field that holds it"
            )
        return text

    def _encode(self, texts: list[str]) -> list[Int64Array]:
        """Return the tokens of texts, with the end of a document behind each if it is wanted."""
        encoded = self.encoder.encode(texts)
        if self.eod is None:
            return encoded
        return [np.append(ids, self.eod) for ids in encoded]

    def _make(self, block: Int64Array, num_tokens: int, place: tuple[Any, Any, int]) -> Sample:
        """Return the sample of a sequence and its last label, of which the first tokens count."""
        length = self.sequence_length
        loss_mask = torch.ones(length)
        loss_mask[num_tokens - 1 :] = 0
        sample: Sample = {
            # Copies: who changes labels in place must not change tokens.
            "tokens": torch.from_numpy(block[:-1].copy()),
            "labels": torch.from_numpy(block[1:].copy()),
            "loss_mask": loss_mask,
            "position_ids": torch.arange(length),
        }
        if self.attention_mask:
            places = np.arange(length)
            sample["attention_mask"] = torch.from_numpy(places[None, :, None] < places)
        url, key, number = place
        sample["__url__"], sample["__key__"] = url, f"{key}@{number}"
        return sample


class TextJonslProcessFnBuilder(TextPacking):
    """`TextPacking` under upstream's name and arguments: sequences that share nothing, with masks.

    Parameters
    ----------
    max_sequence_length, tokenizer_name
        ``sequence_length`` and ``tokenizer`` of `TextPacking`; the name is a path.
    field, append_eod, overlap, tail, pad_id, attention_mask, batch_size
        As there.
    """

    def __init__(
        self,
        max_sequence_length: int,
        tokenizer_name: TokenizerLike,
        *,
        field: str = "text",
        append_eod: bool | int | str = False,
        overlap: Literal[0, 1] = 0,
        tail: Tail = "pad",
        pad_id: int = 0,
        attention_mask: bool = True,
        batch_size: int = 64,
    ) -> None:
        super().__init__(
            max_sequence_length,
            tokenizer_name,
            field=field,
            append_eod=append_eod,
            overlap=overlap,
            tail=tail,
            pad_id=pad_id,
            attention_mask=attention_mask,
            batch_size=batch_size,
        )


def _where(sample: Mapping[str, Any]) -> str:
    """Return the place of a sample, for messages."""
    return f"sample {sample.get('__key__')!r} of {sample.get('__url__')}"
