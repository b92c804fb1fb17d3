"""Encode texts to records of tokens, and read their scratch files as a corpus."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import NotReadyError, SourceError
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.records.import_records import KINDS, RecordTable
from zindex.ingest.records.read_partitions import FieldStreams, ReadResult, RecordStreams, Settings
from zindex.ingest.spans import cut_span
from zindex.io.objects import Place
from zindex.sources.sample_files import SampleFiles
from zindex.store.records import KEY, URL, DocumentField, RecordField
from zindex.store.scratch import read_note, write_note
from zindex.text.encoded_files import EncodedFiles, fit_ids
from zindex.text.sentences import SentenceSplitter
from zindex.text.text_encoder import TextEncoder

#: Fields of the records: the tokens of a document, and the lengths of its sequences.
TOKENS, LENGTHS = "tokens", "lengths"
# Prefix of the fields kept of the source, so that none of them has these names.
_META = "source."
# Sentences of each document, and the ids of all.
_Encoded = tuple[list[int], Sequence[Int64Array]]
_JSON_TYPES = (str, int, float, bool, list, dict, bytes)


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Settings that determine the tokens, together with the texts and the tokenizer."""

    #: Field with the text.
    column: str
    #: Dtype name of the tokens.
    token_dtype: str
    #: Id prepended to each document; None prepends none.
    begin_id: int | None = None
    #: Id appended to each document that has tokens; None appends none.
    end_id: int | None = None
    #: Language whose rules split documents into sentences; None: a document is one sequence.
    language: str | None = None
    #: Whether the tokenizer adds its special tokens to each text.
    special_tokens: bool = False
    #: Fields of the source to keep for each document, where it has them.
    metadata: tuple[str, ...] = ()


class TextDocuments(EncodedFiles):
    """The documents of files of texts, to be encoded.

    Parameters
    ----------
    files, files_fingerprint, encoder, skip_damaged
        See `EncodedFiles`; samples without a text, or a list of its sentences, are damaged.
    settings
        How texts are encoded.
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
        super().__init__(files, files_fingerprint, encoder=encoder, skip_damaged=skip_damaged)
        self.settings = settings
        self._splitter = None if settings.language is None else SentenceSplitter(settings.language)

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the tokens, besides the files, as JSON values."""
        settings = asdict(self.settings)
        del settings["language"]  # the splitter's identity includes the language
        names = settings.pop("metadata")
        if names:
            settings["metadata"] = list(names)
        if settings["begin_id"] is None:  # as in the identity of earlier stores
            del settings["begin_id"]
        splitter = None if self._splitter is None else self._splitter.identity()
        return super().identity() | settings | {"sentences": splitter}

    def _draft(self, sample: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        column = self.settings.column
        text = sample.get(column)
        if isinstance(text, list) and all(isinstance(sentence, str) for sentence in text):
            return sample, text
        if not isinstance(text, str):
            found = "it is missing" if text is None else f"it is of type {type(text).__name__}"
            names = sorted(name for name in sample if not name.startswith("__"))[:8]
            raise SourceError(
                f"a document must have a text in the field {column!r} (--column), {found}; the "
                f"fields are {', '.join(names) or 'none'}"
            )
        return sample, [text]

    def _split(self, text: str | list[str]) -> list[str]:
        """Return the sentences of a text, which may be given, or the whole text."""
        if isinstance(text, list):
            return text
        return [text] if self._splitter is None else self._splitter.split(text)

    def _encode(self, batch: Sequence[dict[str, Any]]) -> _Encoded:
        """Return how many sentences each document has, and the ids of all."""
        settings = self.settings
        split = [self._split(sample[settings.column]) for sample in batch]
        sentences = list(chain.from_iterable(split))

        def encode(numbers: Sequence[int]) -> list[Int64Array]:
            own = [sentences[number] for number in numbers]
            return self.encoder.encode(own, special_tokens=settings.special_tokens)

        return list(map(len, split)), self._encode_once(sentences, encode)

    def _finish(
        self, batch: Sequence[dict[str, Any]], encoded: _Encoded
    ) -> Iterator[dict[str, Any]]:
        """Yield the records of some documents."""
        settings, counts, ids = self.settings, encoded[0], iter(encoded[1])
        begin, end = (
            None if number is None else np.array([number], np.int64)
            for number in (settings.begin_id, settings.end_id)
        )
        tokens, lengths = [np.empty(0, np.int64)], list[list[int]]()
        for count in counts:
            # As in Megatron: sentences without tokens are dropped, and an end token needs a
            # sentence.
            found = list(islice(ids, count))
            if found and begin is not None:
                found[0] = np.concatenate((begin, found[0]))
            found = [item for item in found if len(item)]
            lengths.append(list(map(len, found)))
            tokens += found
            if found and end is not None:
                tokens.append(end)
                lengths[-1][-1] += 1
        flat, start = fit_ids(np.concatenate(tokens), settings.token_dtype), 0
        all_sizes, row = np.array(list(chain.from_iterable(lengths)), np.int32), 0
        for sample, sizes in zip(batch, lengths, strict=True):
            stop, last = start + sum(sizes), row + len(sizes)
            values: dict[str, Any] = {TOKENS: flat[start:stop], LENGTHS: all_sizes[row:last]}
            for name in settings.metadata:
                value = sample.get(name)
                if value is not None and value != "":  # readers replace null by an empty text
                    values[_META + name] = value if isinstance(value, _JSON_TYPES) else str(value)
            yield {KEY: sample[KEY], URL: sample[URL], **values}
            start, row = stop, last


def text_records(token_dtype: str, metadata: Sequence[str] = ()) -> Settings:
    """Return how the records of texts, and the fields to keep of their source, are stored."""
    names = (TOKENS, LENGTHS, *(_META + name for name in metadata))
    return Settings(names, {TOKENS: token_dtype, LENGTHS: "int32"})


def encoded_corpus(
    root: Place,
    tag: str,
    token_dtype: str,
    streams: Sequence[RecordStreams],
    metadata: Sequence[str] = (),
) -> Corpus:
    """Return the documents of scratch files as a corpus, in the order of the source.

    Pickled as a location and a tag, with which workers load the table of scratch files.

    Parameters
    ----------
    root
        Location of the store, or the work folder of a pair.
    tag
        Name of the table, which is written here, next to the scratch files.
    token_dtype
        Dtype of the tokens.
    streams
        The scratch files.
    metadata
        Fields of the source to keep; those that no document has are omitted.
    """
    found = {field.name for item in streams for field in item.fields}
    kept = [name for name in metadata if _META + name in found]
    write_note(root, f"{tag}-corpus", {"dtype": token_dtype, "rows": streams, "metadata": kept})
    table = load_table(root, tag)
    _, tokens, lengths, *own = table.fields
    counts = lengths.num_values, table.num_records, tokens.num_values
    fields = tuple(map(_document_field, own))
    return Corpus(
        root.name,
        np.dtype(token_dtype),
        *counts,
        has_modes=False,
        read=partial(_read_encoded, root, tag),
        fields=fields,
    )


def _document_field(field: RecordField) -> DocumentField:
    """Return the stored field of documents for a field of the scratch files."""
    name = field.name.removeprefix(_META)
    return DocumentField(name, field.num_values, field.form, field.has_forms)


@lru_cache(maxsize=4)
def load_table(root: Place, tag: str) -> RecordTable:
    """Return the table of the scratch files of a corpus.

    Raises
    ------
    NotReadyError
        If it is missing, because another process has committed the corpus meanwhile.
    """
    note = read_note(root, f"{tag}-corpus")
    if note is None:
        raise NotReadyError(
            f"the tokens of {root} must be there until it is committed, they are gone; tokenize "
            "again",
            num_done=0,
            num_shards=1,
        )
    no_fields = FieldStreams(TOKENS, 0, 0, 0), FieldStreams(LENGTHS, 0, 0, 0)
    streams = [RecordStreams.from_json(row) for row in note["rows"]]
    result = ReadResult(tuple(streams) or (RecordStreams("", 0, (), no_fields),), 0)
    return RecordTable([result], text_records(note["dtype"], note.get("metadata", ())))


def _read_encoded(root: Place, tag: str, name: str, start: int, stop: int) -> AnyArray:
    """Return rows of an array of a token store from scratch files."""
    table = load_table(root, tag)
    _, tokens, lengths, *own = table.fields
    if name not in schema.TOKEN_ARRAYS:
        for field in own:
            arrays = _document_field(field).arrays(table.num_records)
            for (array, *_), kind in zip(arrays, KINDS, strict=False):
                if array.name == name:
                    return table.read(root, field, kind, start, stop)
    if name == schema.TOKENS.name:
        return table.read(root, tokens, "value", start, stop)
    if name == schema.SEQUENCE_LENGTH.name:
        return table.read(root, lengths, "value", start, stop)
    if name == schema.DOCUMENT_OFFSET.name:
        return table.read(root, lengths, "offset", start, stop)
    out = np.full(stop - start, tokens.num_values, np.int64)
    rows, bases = table.value_starts[LENGTHS], table.value_starts[TOKENS]
    for number, first, last, at in cut_span(rows, start, stop):
        sizes = table.read(root, lengths, "value", rows[number], rows[number] + last)
        offsets = np.cumsum(sizes, dtype=np.int64) - sizes + bases[number]
        out[at : at + last - first] = offsets[first:]
    return out
