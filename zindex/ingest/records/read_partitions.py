"""The task of an import: parse a partition of the source once, into scratch files of streams."""

import copy
from array import array
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zindex.errors import SourceError
from zindex.io.objects import Place
from zindex.sources.damage_log import DamageLog
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.codecs import Buffer
from zindex.store.records import KEY, URL, Form, check_fields, encode_numbers, encode_value
from zindex.store.scratch import is_whole, read_note, stored_nbytes, write_note, write_streams
from zindex.text.encoded_files import EncodedFiles

Files = TypeVar("Files", bound=SampleFiles)

#: Bytes of values that a task buffers before it writes them.
BUFFER_NBYTES = 1 << 25
#: Maximum field names that a task reports, for messages.
MAX_NAMES = 256
_OWN_NAMES = frozenset((KEY, URL))
# Bytes of the length and the form of a value.
_VALUE_NBYTES = 9


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive parts of the source that one task reads."""

    #: Prefix of its scratch files: equal for the same parts of the same source.
    name: str
    #: First part, and the number of the file of each part.
    start: int
    urls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that determine the records, together with the source."""

    #: Fields to keep; None keeps all.
    fields: Sequence[str] | None = None
    #: Dtype names of fields of numbers.
    dtypes: Mapping[str, str] = field(default_factory=dict)
    skip_damaged: bool = False


class FieldStreams(NamedTuple):
    """The streams of one field in one scratch file: values, lengths, forms."""

    name: str
    #: Number of values, bytes or numbers, and their bytes.
    num_values: int
    nbytes: int
    #: Bit ``form`` is set for each form that occurs, including that of a missing value.
    forms: int

    def sizes(self, num_records: int) -> tuple[int, int, int]:
        """Return the bytes of each stream."""
        return self.nbytes, 8 * num_records, num_records


class RecordStreams(NamedTuple):
    """Consecutive records in one scratch file, with three streams per field."""

    name: str
    num_records: int
    #: The number of each source file and how many consecutive records it has.
    urls: tuple[tuple[int, int], ...]
    #: The key first, the others in the order of their first record.
    fields: tuple[FieldStreams, ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of all streams, in file order."""
        return [size for field in self.fields for size in field.sizes(self.num_records)]

    def bases(self) -> dict[str, Sequence[int]]:
        """Return the byte offsets of the three streams of each field."""
        offsets = list(accumulate(map(stored_nbytes, self.sizes), initial=0))
        return {field.name: offsets[3 * i : 3 * i + 3] for i, field in enumerate(self.fields)}

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> "RecordStreams":
        """Return the streams that were written as JSON values."""
        name, num_records, urls, fields = row
        return cls(
            name, num_records, tuple(map(tuple, urls)), tuple(map(FieldStreams._make, fields))
        )


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The scratch files of one partition."""

    streams: tuple[RecordStreams, ...]
    num_skipped: int
    #: Fields with a value in some record, kept or not: `MAX_NAMES` at most.
    names: tuple[str, ...] = ()
    #: Counters of the source itself, by the name of the store's attribute.
    counts: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        found = {"num_skipped": self.num_skipped, "counts": dict(self.counts)}
        return {"segments": self.streams, "names": self.names, **found}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ReadResult":
        """Return the result that ``to_json`` wrote."""
        streams = tuple(map(RecordStreams.from_json, content["segments"]))
        counts = tuple(sorted(content.get("counts", {}).items()))
        return cls(streams, content["num_skipped"], tuple(content["names"]), counts)


def own_copy(source: Files) -> Files:
    """Return the same files with separate counters of damage and separate caches.

    The threads of a worker share their arguments.
    """
    own = copy.copy(source)
    if isinstance(own, WrappedFiles):
        own.files = own_copy(own.files)
        return own
    for name, value in vars(source).items():
        if isinstance(value, DamageLog):
            setattr(own, name, copy.copy(value))
        elif isinstance(value, dict):
            setattr(own, name, {key: copy.copy(item) for key, item in value.items()})
    return own


def try_first(source: WrappedFiles) -> None:
    """Convert the first record, so that wrong settings fail before anything is written.

    Sources that encode texts keep its ids for their copies in this process.
    """
    trial = own_copy(source)
    if isinstance(trial, EncodedFiles):
        trial.is_trial = True
    opened: Any = trial.files.read_part(0)
    with closing(opened) as samples:
        any(list(trial.convert([sample])) for sample in samples)


def read_partition(
    source: SampleFiles, root: Place, partition: Partition, settings: Settings
) -> ReadResult:
    """Task: parse a partition into scratch files, unless already done.

    Parameters
    ----------
    source
        The files.
    root
        Location of the store.
    partition, settings
        The parts to read, and how.

    Raises
    ------
    SourceError
        If a record is damaged and damage is not skipped.
    ConfigError
        If the records have more fields than a store can have.
    """
    note = read_note(root, partition.name)
    if note is not None and "names" in note:
        result = ReadResult.from_json(note)
        if all(is_whole(root, item.name, item.sizes) for item in result.streams):
            return result
    source = own_copy(source)
    num_skipped, counts = source.num_skipped, _counts(source)
    writer = _RecordWriter(root, partition.name, settings)
    for part, number in enumerate(partition.urls, partition.start):
        for record in source.read_part(part):
            writer.add(record, number)
    writer.flush()
    num_skipped = source.num_skipped - num_skipped + writer.num_skipped
    result = ReadResult(
        tuple(writer.streams),
        num_skipped,
        tuple(sorted(writer.names - _OWN_NAMES)),
        tuple((name, x - counts.get(name, 0)) for name, x in sorted(_counts(source).items())),
    )
    write_note(root, partition.name, result.to_json())
    return result


def _counts(source: SampleFiles) -> dict[str, int]:
    """Return the counters of a source that converts records."""
    return source.counts if isinstance(source, WrappedFiles) else {}


class _Column:
    """The buffered values of one field."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self.values = bytearray()
        self.lengths = array("q")
        self.forms = bytearray()

    def pad(self, num_records: int) -> None:
        """Append missing values up to a number of records."""
        missing = num_records - len(self.forms)
        self.forms += bytes(missing)
        self.lengths.frombytes(bytes(8 * missing))


class _RecordWriter:
    """Buffers records and writes them to a scratch file when there are enough."""

    def __init__(self, root: Place, name: str, settings: Settings) -> None:
        self.root, self.name, self.settings = root, name, settings
        self.dtypes: Mapping[str, np.dtype[Any]] = {
            name: np.dtype(dtype) for name, dtype in settings.dtypes.items()
        }
        self.streams: list[RecordStreams] = []
        self.num_skipped = 0
        self.names = set(_OWN_NAMES)
        self._clear()

    def _clear(self) -> None:
        self.columns = {KEY: _Column(None)}
        self.num_records = 0
        self.nbytes = 0
        self.url_numbers = array("q")

    def add(self, record: Mapping[str, Any], url_number: int) -> None:
        """Buffer one record of a file."""
        try:
            encoded = self._encode(record)
        except SourceError as error:
            if self.settings.skip_damaged:
                self.num_skipped += 1
                return
            other = "give it another dtype with dtypes (--dtype NAME=int64), " * bool(self.dtypes)
            raise SourceError(
                f"{error}, in record {record.get(KEY)!r} of {record.get(URL)}; fix it, {other}"
                "leave the field out, or leave out such records with on_damage='skip' "
                "(--on-damage skip)"
            ) from error
        for name in record.keys() - self.names:
            if record[name] is not None and len(self.names) < MAX_NAMES + len(_OWN_NAMES):
                self.names.add(name)
        for name, form, content, length in encoded:
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = _Column(self.dtypes.get(name))
                check_fields([name for name in self.columns if name != KEY])
            if len(column.forms) < self.num_records:
                column.pad(self.num_records)
            column.values += content
            column.lengths.append(length)
            column.forms.append(form)
            self.nbytes += len(content) + _VALUE_NBYTES
        self.num_records += 1
        self.url_numbers.append(url_number)
        if self.nbytes >= BUFFER_NBYTES:
            self.flush()

    def _encode(self, record: Mapping[str, Any]) -> list[tuple[str, int, bytes, int]]:
        """Return name, form, bytes and number of values of each field to keep."""
        if KEY not in record:
            raise SourceError(f"each record must have a {KEY}, got {sorted(record)[:5]}")
        _, key = encode_value(str(record[KEY]))
        encoded = [(KEY, int(Form.TEXT), key, len(key))]
        names = record if self.settings.fields is None else self.settings.fields
        for name in names:
            if name in (KEY, URL) or name not in record:
                continue
            value, dtype = record[name], self.dtypes.get(name)
            try:
                if dtype is None:
                    form, content = encode_value(value)
                    encoded.append((name, form, content, len(content)))
                elif value is not None and not (isinstance(value, str) and value == ""):
                    content = encode_numbers(value, dtype)
                    length = len(content) // dtype.itemsize
                    encoded.append((name, int(Form.NUMBERS), content, length))
            except SourceError as error:
                raise SourceError(f"{error}, in field {name!r}") from error
        return encoded

    def flush(self) -> None:
        """Write the buffered records, if there are any."""
        if not self.num_records:
            return
        streams: list[Buffer] = []
        fields = []
        for name, column in self.columns.items():
            column.pad(self.num_records)
            streams += (column.values, memoryview(column.lengths), column.forms)
            itemsize = 1 if column.dtype is None else column.dtype.itemsize
            forms = sum(1 << form for form in set(column.forms))
            num_values = len(column.values) // itemsize
            fields.append(FieldStreams(name, num_values, len(column.values), forms))
        name = f"{self.name}-{len(self.streams):06d}"
        write_streams(self.root, name, streams)
        urls = tuple((number, len(list(same))) for number, same in groupby(self.url_numbers))
        self.streams.append(RecordStreams(name, self.num_records, urls, tuple(fields)))
        self._clear()
