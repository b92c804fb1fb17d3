"""Encode texts to records of tokens, and read their scratch files as a corpus."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Int8Array, Int32Array, Int64Array
from zindex.errors import ConfigError, FingerprintMismatchError, NotReadyError, SourceError
from zindex.ingest.corpora.corpus import JoinedCorpus
from zindex.ingest.records.read_partitions import FieldStreams, RecordStreams
from zindex.io.objects import Place
from zindex.sources.sample_files import SampleFiles, WrappedFiles
from zindex.store.records import KEY, URL
from zindex.store.scratch import read_note, read_stream, write_note
from zindex.text.sentences import SentenceSplitter
from zindex.text.text_checks import check_unicode
from zindex.text.text_encoder import TextEncoder

#: Fields of the records: the tokens of a document, and the lengths of its sequences.
TOKENS, LENGTHS = "tokens", "lengths"
# Characters, and texts, that are encoded at a time.
_BATCH_LENGTH, _MAX_BATCH = 1 << 18, 512


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Settings that decide the tokens, together with the texts and the tokenizer."""

    #: Field with the text.
    column: str
    #: Dtype name of the tokens.
    token_dtype: str
    #: Id appended to each document that has tokens; None: none.
    end_id: int | None = None
    #: Language whose rules split documents into sentences; None: a document is one sequence.
    language: str | None = None
    #: Whether the tokenizer adds its special tokens to each text.
    special_tokens: bool = False


class TextDocuments(WrappedFiles):
    """The documents of files of texts, to be encoded.

    Parameters
    ----------
    files, files_fingerprint
        See `WrappedFiles`.
    settings
        How texts are encoded.
    encoder
        The tokenizer.
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
            # Each of many processes gets one core; threads would contend for the others.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self.encoder.identity() != self._tokenizer:
            raise FingerprintMismatchError(
                f"{self.encoder.path or self.encoder.tokenizer!r} must be the same tokenizer on "
                "all machines while tokens are made, here it is another one; put the same file "
                "there"
            )

    def identity(self) -> dict[str, Any]:
        """Return what decides the tokens, other than the files, as JSON values."""
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

    def convert(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the record of each document: its tokens, and the lengths of its sequences.

        Raises
        ------
        SourceError
            If a sample has no text, unless damage is skipped.
        ConfigError
            If an id does not fit the dtype.
        """
        batch: list[dict[str, Any]] = []
        length = 0
        for sample in samples:
            text = self._read_text(sample)
            if text is None:
                continue
            batch.append(sample)
            length += len(text)
            if length >= _BATCH_LENGTH or len(batch) >= _MAX_BATCH:
                yield from self._encode(batch)
                batch, length = [], 0
        yield from self._encode(batch)

    def _read_text(self, sample: dict[str, Any]) -> str | None:
        """Return the text of a sample; one without is an error, or counted and None."""
        column = self.settings.column
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
                    f"{error}, in record {sample.get(KEY)} of {sample.get(URL)}; mend it, name the "
                    "field with the text (--column), or leave out such records with "
                    "on_damage='skip' (--on-damage skip)"
                ) from error
            self.num_refused += 1
            return None
        return text

    def _encode(self, batch: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records of some documents, encoded together."""
        settings = self.settings
        texts = [sample[settings.column] for sample in batch]
        if self._splitter is None:
            sentences, counts = texts, [1] * len(texts)
        else:
            split = [self._splitter.split(text) for text in texts]
            sentences = [sentence for found in split for sentence in found]
            counts = list(map(len, split))
        ids = iter(self.encoder.encode(sentences, special_tokens=settings.special_tokens))
        end = None if settings.end_id is None else np.array([settings.end_id], np.int64)
        tokens, lengths = [np.empty(0, np.int64)], list[list[int]]()
        for count in counts:
            # As Megatron does: sentences without tokens are dropped, and an end needs a sentence.
            found = [item for item in islice(ids, count) if len(item)]
            lengths.append(list(map(len, found)))
            tokens += found
            if found and end is not None:
                tokens.append(end)
                lengths[-1][-1] += 1
        flat, start = _narrow(np.concatenate(tokens), settings.token_dtype), 0
        all_sizes, row = np.array(list(chain.from_iterable(lengths)), np.int32), 0
        for sample, sizes in zip(batch, lengths, strict=True):
            stop, last = start + sum(sizes), row + len(sizes)
            values = {TOKENS: flat[start:stop], LENGTHS: all_sizes[row:last]}
            yield {KEY: sample[KEY], URL: sample[URL], **values}
            start, row = stop, last


def _narrow(flat: Int64Array, dtype: str) -> AnyArray:
    """Return ids in the dtype of the corpus, which must hold them."""
    most = int(np.iinfo(dtype).max)
    if flat.size and (int(flat.max()) > most or int(flat.min()) < 0):
        worst = int(flat.max()) if int(flat.max()) > most else int(flat.min())
        raise ConfigError(
            f"token ids must be from 0 to {most:,} to be stored as {dtype}, the tokenizer gives "
            f"{worst:,}; take token_dtype='int32' (--token-dtype int32)"
        )
    return flat.astype(dtype)


class _StreamCorpus:
    """One scratch file of documents as a corpus."""

    has_modes = False

    def __init__(self, root: Place, dtype: str, streams: RecordStreams) -> None:
        self.root = root
        self.prefix = streams.name
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        fields = {field.name: field for field in streams.fields}
        self.num_tokens = fields[TOKENS].num_values
        self.num_sequences = fields[LENGTHS].num_values
        self.num_documents = streams.num_records
        bases = streams.bases()
        # Byte offset and size of each stream: tokens, sequence lengths, sequences per document.
        self._streams = [
            (bases[name][kind], fields[name].sizes(streams.num_records)[kind])
            for name, kind in ((TOKENS, 0), (LENGTHS, 0), (LENGTHS, 1))
        ]

    def sequence_lengths(self, start: int, stop: int) -> Int32Array:
        return self._read(1, np.dtype(np.int32), start, stop)

    def sequence_pointers(self, start: int, stop: int) -> Int64Array:
        return _offsets(self.sequence_lengths(0, stop))[start:] * self.dtype.itemsize

    def document_indices(self, start: int, stop: int) -> Int64Array:
        return _offsets(self._read(2, np.dtype(np.int64), 0, stop))[start:]

    def sequence_modes(self, start: int, stop: int) -> Int8Array:
        """Return zeros: texts have no modes."""
        return np.zeros(stop - start, np.int8)

    def read_tokens(self, start: int, stop: int) -> AnyArray:
        return self._read(0, self.dtype, start, stop)

    def _read(self, stream: int, dtype: np.dtype[Any], start: int, stop: int) -> AnyArray:
        """Return elements ``[start, stop)`` of a stream."""
        out = np.empty(stop - start, dtype)
        if out.size:
            base, nbytes = self._streams[stream]
            first, raw = start * dtype.itemsize, out.view(np.uint8)
            read_stream(self.root, self.prefix, base, nbytes, first, raw)
        return out


class EncodedCorpus(JoinedCorpus):
    """The documents of all scratch files, in the order of the source.

    It pickles as a place and a tag, by which workers load its table: `save` that first.

    Parameters
    ----------
    root
        Place of the store, or the work folder of a pair.
    tag
        Name of the table among the scratch files.
    dtype
        Dtype of the tokens.
    streams
        The scratch files.
    """

    def __init__(self, root: Place, tag: str, dtype: str, streams: Sequence[RecordStreams]) -> None:
        empty = RecordStreams(
            "", 0, (), (FieldStreams(TOKENS, 0, 0, 0), FieldStreams(LENGTHS, 0, 0, 0))
        )
        parts = [_StreamCorpus(root, dtype, item) for item in streams or [empty]]
        super().__init__(parts, root.name, False)
        self.root = root
        self.tag = tag
        self.streams = streams

    def save(self) -> "EncodedCorpus":
        """Write the table that `load_corpus` reads, and return this corpus."""
        rows = [item.to_json() for item in self.streams]
        write_note(self.root, f"{self.tag}-corpus", {"dtype": self.dtype.name, "rows": rows})
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return load_corpus, (self.root, self.tag)


@lru_cache(maxsize=4)
def load_corpus(root: Place, tag: str) -> EncodedCorpus:
    """Return a corpus whose table was saved.

    Raises
    ------
    NotReadyError
        If there is no table, because another process has committed the corpus meanwhile.
    """
    note = read_note(root, f"{tag}-corpus")
    if note is None:
        raise NotReadyError(
            f"the tokens of {root} must be there until it is committed, they are gone; tokenize "
            "again",
            num_done=0,
            num_shards=1,
        )
    rows = map(RecordStreams.from_json, note["rows"])
    return EncodedCorpus(root, tag, note["dtype"], list(rows))


def _offsets(counts: AnyArray) -> Int64Array:
    """Return the sum of all counts before each."""
    stops: Int64Array = np.cumsum(counts, dtype=np.int64)
    stops -= counts
    return stops
