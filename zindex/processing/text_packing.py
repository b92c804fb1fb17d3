"""Process functions that pack texts into sequences of one length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, SourceError, check_choice, check_whole
from zindex.plan.packing import LongDocuments, PackingRules
from zindex.plan.tail import Tail, TailName, parse_tail
from zindex.processing.document_window import (
    DocumentWindow,
    PackedText,
    Piece,
    mark_documents,
)
from zindex.processing.renaming import rename_parameters
from zindex.samples.tensors import document_masks
from zindex.store.commit import fingerprint
from zindex.text.text_encoder import TextEncoder, TokenizerLike

Sample = dict[str, Any]
#: Whether sequences mark the documents that they hold, or hold whole ones.
Documents = Literal["ignore", "mark", "pack"]
#: Largest window: sources that give no sequence in so many epochs are found to be empty.
_MAX_WINDOW = 1000
# Default of `whole_nbytes`: what each worker packs in some seconds. Above, one sequence of each of
# twenty workers that is half full is a percent of all.
_WHOLE_SEQUENCES, _TOKEN_NBYTES, _MAX_WHOLE = 1024, 4, 32 << 20


class Sequences(NamedTuple):
    """A sequence, and where the next one starts."""

    sample: Sample
    #: Texts of which all tokens are in this sequence or an earlier one, or in the window.
    num_done: int
    #: Tokens of the next text that are in this sequence or an earlier one.
    num_tokens: int = 0
    #: Place of the first document; None unless documents are packed whole.
    place: Any = None
    #: Place and number of each piece in the window, in the order of reading.
    held: Sequence[tuple[Any, int]] = ()


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
    """Process function that packs the tokens of texts into sequences of one length.

    By default texts are concatenated, and split into sequences. The key of a sequence is
    ``"<key>@<k>"``: the key of the text in which the sequence ends, and its number among the
    sequences that end in this text; of whole documents, the key of the first one and the number of
    its piece.

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
        drops it unless it is full, with ``documents="pack"`` too, where the last sequence has what
        is left over; see `zindex.plan.tail.Tail`.
    pad_id
        Id of padding, in tokens and labels.
    attention_mask
        Whether samples have a mask, bool, shape (1, sequence_length, sequence_length), True where
        attention is masked. Its size is quadratic in the length.
    batch_size
        Texts to tokenise together; has no effect on the output.
    documents
        ``"ignore"``: sequences of concatenated texts. ``"mark"``: likewise, with the fields of
        documents below, positions that restart at 0 in each document, and no label in another
        document than its token. ``"pack"``: whole documents packed by best fit and padded, marked
        likewise.
    window
        Documents to choose from with ``"pack"``, at most 1,000. A state has their numbers.
    max_documents, long_documents
        Of ``"pack"``, as in runs: most documents of a sequence, and whether a longer document is
        ``"split"``, cut by ``"truncate"`` or left out by ``"drop"``; see
        `zindex.plan.packing.PackingRules`. Pieces of a split document overlap by ``overlap``.
    whole_nbytes
        In a finite `MergedDataset`, files with samples of at most so many bytes are packed as a
        whole: each loader worker reads and packs all of them and takes every n-th sequence, so that
        one sequence of an epoch is not full, instead of one of each worker. By default 4 bytes for
        each token of 1,024 sequences, at most 32 MiB; 0 never does.

    Raises
    ------
    ConfigError
        If an argument or the tokenizer is invalid.

    Notes
    -----
    Samples have ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids``
    (int64), all of shape (sequence_length,), ``__url__`` and ``__key__``. A single remaining token
    has no label and gives no sample.

    With marked documents there are also ``document_ids`` (int64, the number of the document in the
    sequence, -1 in padding), ``cu_seqlens`` (int32, where documents start, then padding if there is
    any, filled up with sequence_length to ``sequence_length + 1`` values, or ``max_documents + 2``
    with ``"pack"``) and ``max_seqlen`` (int32), and an ``attention_mask`` ends at documents.

    Source: best fit as of `zindex.kernels.packing.pack_documents`, again whenever less than half of
    the window is left. The sequence of the oldest document is next, the emptiest one waits.
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
        documents: Documents = "ignore",
        window: int = 256,
        max_documents: int = 256,
        long_documents: LongDocuments = "split",
        whole_nbytes: int | None = None,
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
        check_choice("documents", documents, get_args(Documents))
        self.documents = documents
        self.window = check_whole("window", window, 1)
        self.rules = PackingRules(max_documents, long_documents)
        if self.window > _MAX_WINDOW:
            raise ConfigError(
                f"window must be at most {_MAX_WINDOW:,} documents, got {window:,}; states hold "
                "their numbers"
            )
        if whole_nbytes is None:
            whole_nbytes = min(_WHOLE_SEQUENCES * _TOKEN_NBYTES * sequence_length, _MAX_WHOLE)
        self.whole_nbytes = check_whole("whole_nbytes", whole_nbytes, 0)

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the settings that determine the sequences."""
        names = ("sequence_length", "field", "eod", "overlap", "pad_id")
        settings = {name: getattr(self, name) for name in names}
        settings |= {"tail": self.tail.fingerprint_name, "tokenizer": self.encoder.identity()}
        if self.documents != "ignore":
            settings["documents"] = self.documents
        if self.documents == "pack":
            settings |= {"window": self.window, **asdict(self.rules)}
        return fingerprint(settings)

    def __call__(self, source: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
        """Yield the sequences of samples.

        Raises
        ------
        SourceError
            If a sample has no text in the field.
        """
        return (made.sample for made in self.pack(map(PackedText, source)))

    def pack(
        self, source: Iterable[PackedText], held: Iterable[PackedText] = ()
    ) -> Iterator[Sequences]:
        """Yield the sequences of texts, each with the place where the next one starts.

        Streams call this once for all files, so that sequences continue across files, and resume
        at that place.

        Parameters
        ----------
        source
            Texts to read.
        held
            Texts that have been read, of which pieces are in the window.

        Raises
        ------
        SourceError
            If a sample has no text in the field.
        ConfigError
            If there are such pieces, but documents are not packed whole.
        """
        if self.documents == "pack":
            return self._fit(source, held)
        if any(True for _ in held):
            raise ConfigError(
                "a state with held documents needs documents='pack', as it was saved with, got "
                f"{self.documents!r}; take that back"
            )
        return self._concatenate(source)

    def _fit(self, source: Iterable[PackedText], held: Iterable[PackedText]) -> Iterator[Sequences]:
        """Yield sequences of whole documents, and of pieces of long ones."""
        window = DocumentWindow(self.sequence_length + 1, self.overlap, self.rules, self.window)
        for text, ids in self._encode(held):
            window.add(text, ids)
        num_done, rest = 0, self._encode(source)

        def fill(window: DocumentWindow) -> None:
            nonlocal num_done
            while not window.is_full and (found := next(rest, None)) is not None:
                window.add(*found)
                num_done += 1

        for pieces in window.sequences(fill):
            if self.tail is Tail.DROP_LAST and window.is_empty:
                fill(window)
                num_tokens = sum(len(piece.tokens) for piece in pieces)
                if window.is_empty and num_tokens <= self.sequence_length:
                    return
            made = self._join(pieces)
            yield Sequences(made, num_done, 0, pieces[0].place, window.places())

    def _encode(self, texts: Iterable[PackedText]) -> Iterator[tuple[PackedText, Int64Array]]:
        """Yield texts and their tokens."""
        rest = iter(texts)
        while batch := list(islice(rest, self.batch_size)):
            ids = self.encoder.encode([self._take_text(text.sample) for text in batch])
            if self.eod is not None:
                ids = [np.append(one, self.eod) for one in ids]
            yield from zip(batch, ids, strict=True)

    def _join(self, pieces: Sequence[Piece]) -> Sample:
        """Return the sequence of some pieces of documents."""
        block = np.full(self.sequence_length + 1, self.pad_id, np.int64)
        tokens = np.concatenate([piece.tokens for piece in pieces])
        block[: len(tokens)] = tokens
        offsets = np.cumsum([0, *(len(piece.tokens) for piece in pieces)])
        first = pieces[0]
        place = first.url, first.key, first.number
        return self._make(block, len(tokens), place, offsets[:-1], self.rules.max_documents + 2)

    def _concatenate(self, source: Iterable[PackedText]) -> Iterator[Sequences]:
        """Yield sequences of concatenated texts."""
        length, step = self.sequence_length + 1, self.sequence_length + 1 - self.overlap
        held = np.empty(0, np.int64)
        rows: list[_Text] = []  # those that have tokens in `held`
        num_done, is_first = 0, True
        lines = self._encode(source)
        while batch := list(islice(lines, self.batch_size)):
            skips = [max(0, text.num_tokens - self.overlap) for text, _ in batch]
            texts = [ids[skip:] for (_, ids), skip in zip(batch, skips, strict=True)]
            end = len(held)
            for ids, (text, _), skip in zip(texts, batch, skips, strict=True):
                shift = self.overlap if is_first and not text.num_tokens else 0
                rows.append(_Text(text.sample, end - skip, end + len(ids), shift))
                end, is_first = end + len(ids), is_first and not len(ids)
            stream = np.concatenate([held, *texts])
            starts = np.arange(0, len(stream) - length + 1, step)
            ends = np.array([text.stop for text in rows])
            # The text in which each sequence ends, and the one in which the next one starts.
            last = np.searchsorted(ends, starts + length).tolist()
            following = np.searchsorted(ends, starts + step, side="right").tolist()
            for start, row, after in zip(starts.tolist(), last, following, strict=True):
                place = rows[row].name_sequence(start + length, step)
                block, borders = stream[start : start + length], ends - start
                made = self._make(block, length, place, borders, length)
                begun = 0
                if after < len(rows):
                    begun = start + step + self.overlap - rows[after].first
                yield Sequences(made, num_done + after, begun)
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
            borders = np.array([text.stop for text in rows])
            made = self._make(filled, len(held), place, borders, length)
            yield Sequences(made, num_done + len(rows))

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

    def _make(
        self,
        block: Int64Array,
        num_tokens: int,
        place: tuple[Any, Any, int],
        borders: Int64Array,
        num_boundaries: int,
    ) -> Sample:
        """Return the sample of a sequence and its last label; only the first tokens are real.

        Parameters
        ----------
        block
            Shape (sequence_length + 1,): the tokens.
        num_tokens
            How many of them are real.
        place
            Url, key and number of the sequence.
        borders
            Where documents start, ascending; those outside of the sequence are ignored.
        num_boundaries
            Values of ``cu_seqlens``.
        """
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
        if self.documents != "ignore":
            inside = borders[(borders > 0) & (borders < num_tokens)]
            starts = mark_documents(sample, inside, num_tokens, num_boundaries)
            if self.attention_mask:
                sample["attention_mask"] = document_masks(starts)[0]
        elif self.attention_mask:
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
