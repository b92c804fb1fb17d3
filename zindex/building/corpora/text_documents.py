"""The first stage of a corpus: texts to tokens, a run of parts of the source at a time."""

import multiprocessing
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.records.reading import Portion
from zindex.building.records.record_files import own_copy
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.codecs import Buffer
from zindex.store.objects import Place
from zindex.store.scratch import is_whole, read_note, write_note, write_streams
from zindex.text.sentences import SentenceSplitter
from zindex.text.text_checks import check_unicode
from zindex.text.text_encoder import TextEncoder

#: Bytes of tokens that a task holds before it writes them.
SEGMENT_NBYTES = 1 << 26
# Characters, and texts, that are encoded at a time.
_BATCH_LENGTH, _MAX_BATCH = 1 << 18, 512


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What decides the tokens beside the texts and the tokenizer."""

    #: Field with the text.
    column: str
    #: Dtype name of the tokens.
    token_dtype: str
    #: Id behind each document that has tokens; None: none.
    end_id: int | None = None
    #: Language whose rules cut documents into sentences; None: a document is one sequence.
    language: str | None = None
    #: Whether the tokenizer puts its own tokens around each text.
    special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """Consecutive documents in one file of streams: tokens, lengths, sequences of each document."""

    name: str
    num_tokens: int
    num_sequences: int
    num_documents: int

    def sizes(self, itemsize: int) -> tuple[int, int, int]:
        """Return the bytes of its streams."""
        return self.num_tokens * itemsize, 4 * self.num_sequences, 8 * self.num_documents

    def to_json(self) -> list[Any]:
        """Return the fields as JSON values."""
        return [self.name, self.num_tokens, self.num_sequences, self.num_documents]


class TextDocuments(WrappedFiles):
    """The documents of files of texts, which become tokens.

    Parameters
    ----------
    files, files_fingerprint
        See `WrappedFiles`.
    settings
        What becomes of a text.
    encoder
        Makes ids of texts.
    skip_damaged
        Whether samples without a text are left out and counted, or are an error.
    """

    def __init__(
        self,
        files: SampleFiles,
        files_fingerprint: str,
        *,
        settings: TextSettings,
        encoder: TextEncoder,
        skip_damaged: bool,
    ) -> None:
        super().__init__(files, files_fingerprint)
        self.settings = settings
        self.encoder = encoder
        self.skip_damaged = skip_damaged
        self._tokenizer = encoder.identity()
        self._splitter = None if settings.language is None else SentenceSplitter(settings.language)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if multiprocessing.parent_process() is not None:
            # One of many processes leaves the other cores to its neighbours.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self.encoder.identity() != self._tokenizer:
            raise FingerprintMismatchError(
                f"{self.encoder.path or self.encoder.tokenizer!r} must be the same tokenizer on "
                "all machines while tokens are made, here it is another one; put the same file "
                "there"
            )

    def identity(self) -> dict[str, Any]:
        """Return what decides the tokens beside the files, as JSON values."""
        settings = self.settings
        return {
            "tokenizer": self._tokenizer,
            "vocab_size": self.encoder.vocab_size(),
            "column": settings.column,
            "token_dtype": settings.token_dtype,
            "end_id": settings.end_id,
            "sentences": None if self._splitter is None else self._splitter.identity(),
            "special_tokens": settings.special_tokens,
        }

    def read_texts(self, part: int) -> Iterator[str]:
        """Yield the texts of a part; what has none is an error, or counted and left out."""
        column = self.settings.column
        for sample in self.files.read_part(part):
            try:
                text = sample.get(column)
                if not isinstance(text, str):
                    found = "is missing" if text is None else f"is of type {type(text).__name__}"
                    names = sorted(name for name in sample if not name.startswith("__"))[:8]
                    raise SourceError(
                        f"a document must have a text in {column!r}, which {found}; there are "
                        f"{', '.join(names) or 'no fields'}"
                    )
                check_unicode(text)
            except SourceError as error:
                if not self.skip_damaged:
                    raise SourceError(
                        f"{error}, in record {sample.get('__key__')} of {sample.get('__url__')}; "
                        "mend it, name the field with the text (--column), or leave out such "
                        "records with on_damage='skip' (--on-damage skip)"
                    ) from error
                self.num_refused += 1
                continue
            yield text

    def encode(self, texts: Sequence[str]) -> "EncodedTexts":
        """Return the tokens of documents.

        Raises
        ------
        ConfigError
            If an id does not fit the dtype.
        """
        settings = self.settings
        if self._splitter is None:
            pieces, counts = list(texts), [1] * len(texts)
        else:
            split = [self._splitter.split(text) for text in texts]
            pieces = [sentence for sentences in split for sentence in sentences]
            counts = list(map(len, split))
        ids = self.encoder.encode(pieces, special_tokens=settings.special_tokens)
        end = None if settings.end_id is None else np.array([settings.end_id], np.int64)
        runs, lengths, sequences, at = [], array("i"), array("q"), 0
        for count in counts:
            # As Megatron does: a sentence without tokens is none, nor is there an end without any.
            found = [run for run in ids[at : at + count] if len(run)]
            at += count
            lengths.extend(map(len, found))
            sequences.append(len(found))
            runs += found
            if found and end is not None:
                runs.append(end)
                lengths[-1] += 1
        flat = np.concatenate(runs) if runs else np.empty(0, np.int64)
        return EncodedTexts(_narrow(flat, settings.token_dtype), lengths, sequences)


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Tokens of documents, the length of each sequence, and the sequences of each document."""

    tokens: npt.NDArray[Any]
    lengths: "array[int]"
    sequences: "array[int]"


def _narrow(flat: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
    """Return ids in the dtype of the corpus, which must hold them."""
    most = int(np.iinfo(dtype).max)
    if flat.size and (int(flat.max()) > most or int(flat.min()) < 0):
        worst = int(flat.max()) if int(flat.max()) > most else int(flat.min())
        raise ConfigError(
            f"token ids must be from 0 to {most:,} to be stored as {dtype}, the tokenizer gives "
            f"{worst:,}; take token_dtype='int32' (--token-dtype int32)"
        )
    return flat.astype(dtype)


@dataclass(frozen=True, slots=True)
class EncodedPortion:
    """What a task has made of its parts of the source."""

    segments: tuple[EncodedSegment, ...]
    num_skipped: int


def encode_portion(source: TextDocuments, root: Place, portion: Portion) -> EncodedPortion:
    """Task: the tokens of some parts of the source as files of streams, unless they are there.

    Raises
    ------
    SourceError
        If a document is damaged and such ones are not to be skipped.
    """
    itemsize = np.dtype(source.settings.token_dtype).itemsize
    note = read_note(root, portion.name)
    if note is not None:
        known = tuple(EncodedSegment(*fields) for fields in note["segments"])
        if all(is_whole(root, item.name, item.sizes(itemsize)) for item in known):
            return EncodedPortion(known, note["num_skipped"])
    source = own_copy(source)  # type: ignore[assignment]
    before = source.num_skipped
    writer = _SegmentWriter(root, portion.name)
    for part in range(portion.start, portion.start + len(portion.urls)):
        batch: list[str] = []
        length = 0
        for text in source.read_texts(part):
            batch.append(text)
            length += len(text)
            if length >= _BATCH_LENGTH or len(batch) >= _MAX_BATCH:
                writer.add(source.encode(batch))
                batch, length = [], 0
        writer.add(source.encode(batch))
    writer.write()
    made = EncodedPortion(tuple(writer.segments), source.num_skipped - before)
    content = {
        "segments": [segment.to_json() for segment in made.segments],
        "num_skipped": made.num_skipped,
    }
    write_note(root, portion.name, content)
    return made


class _SegmentWriter:
    """Gathers tokens, and writes them whenever there are enough."""

    def __init__(self, root: Place, name: str) -> None:
        self.root = root
        self.name = name
        self.segments: list[EncodedSegment] = []
        self._clear()

    def _clear(self) -> None:
        self.tokens = bytearray()
        self.num_tokens = 0
        self.lengths, self.sequences = array("i"), array("q")

    def add(self, encoded: EncodedTexts) -> None:
        """Take some documents."""
        self.tokens += encoded.tokens.data if encoded.tokens.size else b""
        self.num_tokens += len(encoded.tokens)
        self.lengths += encoded.lengths
        self.sequences += encoded.sequences
        if len(self.tokens) >= SEGMENT_NBYTES:
            self.write()

    def write(self) -> None:
        """Write the documents that came in, if there are any."""
        if not self.sequences:
            return
        name = f"{self.name}-{len(self.segments):06d}"
        streams: list[Buffer] = [
            self.tokens,
            memoryview(self.lengths),
            memoryview(self.sequences),
        ]
        write_streams(self.root, name, streams)
        self.segments.append(
            EncodedSegment(name, self.num_tokens, len(self.lengths), len(self.sequences))
        )
        self._clear()
