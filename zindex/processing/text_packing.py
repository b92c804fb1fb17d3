"""Process functions that pack texts into sequences of one length."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.errors import SourceError, check_choice
from zindex.plan.settings import check_whole
from zindex.plan.tail import Tail, TailName, parse_tail
from zindex.processing.renaming import rename_parameters
from zindex.store.commit import fingerprint
from zindex.text.text_encoder import TextEncoder, TokenizerLike

Sample = dict[str, Any]


class _Text(NamedTuple):
    """A text in a buffer of tokens."""

    sample: Mapping[str, Any]
    #: Where its first token is, below 0 if that is in an earlier sequence, and where it ends.
    first: int
    stop: int
    #: Tokens of the first sequence of all that no later one adds to its start.
    shift: int

    def name_sequence(self, stop: int, step: int) -> tuple[Any, Any, int]:
        """Return the url and key of the text, and the number of a sequence that ends in it."""
        number = (stop - self.first - self.shift - 1) // step
        return self.sample.get("__url__"), self.sample.get("__key__"), number


class TextPacking:
    """Process function that concatenates the tokens of texts and splits them into sequences.

    The key of a sequence is ``"<key>@<k>"``: the key of the text in which the sequence ends, and
    its number among the sequences that end in this text.

    Parameters
    ----------
    sequence_length
        Tokens per sequence.
    tokenizer
        See `zindex.text.text_encoder.TextEncoder`.
    field
        Name of the text field.
    append_eod
        Id or text of a token to append to each text; True for the tokenizer's own.
    overlap
        1: a sequence starts with the last label of the previous one, so that every token except the
        first is a label once. 0: sequences are disjoint, and their first tokens are not labels.
    tail
        ``"pad"`` pads the last sequence, with weight 0 in the loss; ``"drop_last"`` (or ``"drop"``)
        drops it; see `zindex.plan.tail.Tail`.
    pad_id
        Id of padding, in tokens and labels.
    attention_mask
        Whether samples have a mask, bool, shape (1, sequence_length, sequence_length), True where
        attention is masked. Its size is quadratic in the length.
    batch_size
        Texts to tokenise together; has no effect on the output.

    Raises
    ------
    ConfigError
        If an argument or the tokenizer is invalid.

    Notes
    -----
    Samples have ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids``
    (int64), all of shape (sequence_length,), ``__url__`` and ``__key__``. A single remaining token
    has no label and gives no sample.
    """

    def __init__(
        self,
        sequence_length: int,
        tokenizer: TokenizerLike,
        *,
        field: str = "text",
        append_eod: bool | int | str = False,
        overlap: Literal[0, 1] = 0,
        tail: Tail | TailName = Tail.PAD,
        pad_id: int = 0,
        attention_mask: bool = False,
        batch_size: int = 64,
    ) -> None:
        self.sequence_length = check_whole("sequence_length", sequence_length, 1)
        self.batch_size = check_whole("batch_size", batch_size, 1)
        check_choice("overlap", overlap, (0, 1))
        self.encoder = TextEncoder(tokenizer)
        self.field = field
        self.eod = self.encoder.find_id(append_eod, "append_eod")
        self.overlap = overlap
        self.tail = parse_tail(tail, (Tail.PAD, Tail.DROP_LAST))
        self.pad_id = pad_id
        self.attention_mask = attention_mask

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the settings that determine the sequences."""
        names = ("sequence_length", "field", "eod", "overlap", "pad_id")
        settings = {name: getattr(self, name) for name in names}
        settings |= {"tail": self.tail.fingerprint_name, "tokenizer": self.encoder.identity()}
        return fingerprint(settings)

    def __call__(self, source: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
        """Yield the sequences of samples.

        Raises
        ------
        SourceError
            If a sample has no text in the field.
        """
        return (sequence for sequence, _, _ in self.pack((sample, 0) for sample in source))

    def pack(
        self, source: Iterable[tuple[Mapping[str, Any], int]]
    ) -> Iterator[tuple[Sample, int, int]]:
        """Yield the sequences of samples, each with the place where the next one starts.

        Streams call this once for all files, so that sequences continue across files, and resume
        at that place.

        Parameters
        ----------
        source
            Samples, each with the number of its tokens that earlier sequences have.

        Yields
        ------
        sequence
            As of a call.
        num_done
            Samples of which all tokens are in this sequence or an earlier one.
        num_tokens
            Tokens of the next sample that are.

        Raises
        ------
        SourceError
            If a sample has no text in the field.
        """
        length, step = self.sequence_length + 1, self.sequence_length + 1 - self.overlap
        held = np.empty(0, np.int64)
        rows: list[_Text] = []  # those that have tokens in `held`
        num_done, is_first = 0, True
        lines = iter(source)
        while batch := list(islice(lines, self.batch_size)):
            texts = self.encoder.encode([self._take_text(sample) for sample, _ in batch])
            if self.eod is not None:
                texts = [np.append(ids, self.eod) for ids in texts]
            skips = [max(0, begun - self.overlap) for _, begun in batch]
            texts = [ids[skip:] for ids, skip in zip(texts, skips, strict=True)]
            end = len(held)
            for ids, (sample, begun), skip in zip(texts, batch, skips, strict=True):
                shift = self.overlap if is_first and not begun else 0
                rows.append(_Text(sample, end - skip, end + len(ids), shift))
                end, is_first = end + len(ids), is_first and not len(ids)
            stream = np.concatenate([held, *texts])
            starts = np.arange(0, len(stream) - length + 1, step)
            ends = np.array([text.stop for text in rows])
            # The text in which each sequence ends, and the one in which the next one starts.
            last = np.searchsorted(ends, starts + length).tolist()
            following = np.searchsorted(ends, starts + step, side="right").tolist()
            for start, row, after in zip(starts.tolist(), last, following, strict=True):
                place = rows[row].name_sequence(start + length, step)
                made = self._make(stream[start : start + length], length, place)
                begun = 0
                if after < len(rows):
                    begun = start + step + self.overlap - rows[after].first
                yield made, num_done + after, begun
            moved = len(starts) * step
            held = stream[moved:].copy()
            left = following[-1] if following else int(np.searchsorted(ends, 0, side="right"))
            num_done += left
            rows = [
                text._replace(first=text.first - moved, stop=text.stop - moved)
                for text in rows[left:]
            ]
        if len(held) > 1 and self.tail is Tail.PAD:
            filled = np.full(length, self.pad_id, np.int64)
            filled[: len(held)] = held
            place = rows[-1].name_sequence(length, step)
            yield self._make(filled, len(held), place), num_done + len(rows), 0

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

    def _make(self, block: Int64Array, num_tokens: int, place: tuple[Any, Any, int]) -> Sample:
        """Return the sample of a sequence and its last label; only the first tokens are real."""
        length = self.sequence_length
        loss_mask = torch.ones(length)
        loss_mask[num_tokens - 1 :] = 0
        sample: Sample = {
            # Copies, because changing labels in place must not change tokens.
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
    """`TextPacking` under upstream's name and arguments: disjoint sequences, with masks.

    Parameters
    ----------
    max_sequence_length, tokenizer_name
        ``sequence_length`` and ``tokenizer`` of `TextPacking`; the name is a path.
    field, append_eod, overlap, tail, pad_id, attention_mask, batch_size
        As for `TextPacking`.
    """

    __init__ = rename_parameters(
        TextPacking.__init__,
        {"sequence_length": "max_sequence_length", "tokenizer": "tokenizer_name"},
        attention_mask=True,
    )


def _where(sample: Mapping[str, Any]) -> str:
    """Return the location of a sample, for messages."""
    return f"sample {sample.get('__key__')!r} of {sample.get('__url__')}"
