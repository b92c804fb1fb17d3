"""The first stage of an import: a run of parts of the source, parsed once, to files of streams."""

from array import array
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from zindex.building.records.record_files import own_copy
from zindex.errors import SourceError
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.codecs import Buffer
from zindex.store.objects import Place
from zindex.store.records import KEY, URL, Form, check_fields, encode_numbers, encode_value
from zindex.store.scratch import is_whole, read_note, stored_nbytes, write_note, write_streams

#: Bytes of values that a task holds before it writes them.
SEGMENT_NBYTES = 1 << 25
#: Names of fields that a task remembers for messages.
MAX_NAMES = 256
# What a value takes beside its bytes: length and form.
_VALUE_NBYTES = 9


@dataclass(frozen=True, slots=True)
class Portion:
    """Consecutive parts of the source that one task reads."""

    #: What its files are called: the same for the same parts of the same source.
    name: str
    #: First part, and the number of the file that each part is of.
    start: int
    urls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the records beside the source."""

    #: Fields to keep; None: all.
    fields: tuple[str, ...] | None = None
    #: Dtype names of fields of numbers.
    dtypes: tuple[tuple[str, str], ...] = ()
    skip_damaged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "fields": None if self.fields is None else list(self.fields),
            "dtypes": dict(self.dtypes),
            "skip_damaged": self.skip_damaged,
        }


@dataclass(frozen=True, slots=True)
class FieldPart:
    """A field in the records of one segment."""

    name: str
    #: Bytes or numbers, and the bytes that they take.
    num_values: int
    nbytes: int
    #: Bit ``form`` is set for each form that occurs, that of a missing value too.
    forms: int

    def sizes(self, num_records: int) -> tuple[int, int, int]:
        """Return the bytes of its streams: values, lengths, forms."""
        return self.nbytes, 8 * num_records, num_records


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive records in one file of streams: of each field the values, lengths and forms."""

    name: str
    num_records: int
    #: Runs of records of one file: its number, and how many records.
    urls: tuple[tuple[int, int], ...]
    #: The key first, the others as they came up.
    fields: tuple[FieldPart, ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of all streams, in the order of the file."""
        return [size for field in self.fields for size in field.sizes(self.num_records)]

    def bases(self) -> dict[str, tuple[int, int, int]]:
        """Return where in the file the streams of each field begin."""
        places, place = {}, 0
        for field in self.fields:
            values, lengths, forms = map(stored_nbytes, field.sizes(self.num_records))
            places[field.name] = (place, place + values, place + values + lengths)
            place += values + lengths + forms
        return places


@dataclass(frozen=True, slots=True)
class PortionResult:
    """What a task found in its portion."""

    segments: tuple[Segment, ...]
    num_skipped: int
    #: Fields that some record has a value of, kept or not: `MAX_NAMES` at most.
    names: tuple[str, ...] = ()
    #: What the source itself counts, by the store's attribute for it.
    counts: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        rows = [
            [item.name, item.num_records, item.urls, [astuple(field) for field in item.fields]]
            for item in self.segments
        ]
        found = {"num_skipped": self.num_skipped, "counts": dict(self.counts)}
        return {"segments": rows, "names": self.names, **found}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "PortionResult":
        """Return the result that ``to_json`` wrote."""
        segments = tuple(
            Segment(
                name,
                num_records,
                tuple((number, count) for number, count in urls),
                tuple(FieldPart(*field) for field in fields),
            )
            for name, num_records, urls, fields in content["segments"]
        )
        counts = tuple(sorted(content.get("counts", {}).items()))
        return cls(segments, content["num_skipped"], tuple(content["names"]), counts)


def read_portion(
    source: SampleFiles, root: Place, portion: Portion, settings: Settings
) -> PortionResult:
    """Task: parse the records of a portion into files of streams, unless that is done already.

    Parameters
    ----------
    source
        The files.
    root
        Place of the store.
    portion, settings
        What to read, and how.

    Raises
    ------
    SourceError
        If a record is damaged and such ones are not to be skipped.
    ConfigError
        If the records have more fields than a store can have.
    """
    note = read_note(root, portion.name)
    if note is not None and "names" in note:
        result = PortionResult.from_json(note)
        if all(is_whole(root, item.name, item.sizes) for item in result.segments):
            return result
    source = own_copy(source)
    num_skipped, before = source.num_skipped, _counts(source)
    writer = _SegmentWriter(root, portion.name, settings)
    for part, number in enumerate(portion.urls, portion.start):
        for record in source.read_part(part):
            writer.add(record, number)
    writer.write()
    num_skipped = source.num_skipped - num_skipped + writer.num_skipped
    result = PortionResult(
        tuple(writer.segments),
        num_skipped,
        tuple(sorted(writer.names)),
        tuple((name, count - before[name]) for name, count in sorted(_counts(source).items())),
    )
    write_note(root, portion.name, result.to_json())
    return result


def _counts(source: SampleFiles) -> dict[str, int]:
    """Return what a source that makes records of its own has counted so far."""
    return source.counts if isinstance(source, WrappedFiles) else {}


class _Column:
    """The values of one field while records come in."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self.values = bytearray()
        self.lengths = array("q")
        self.forms = bytearray()

    def pad(self, num_records: int) -> None:
        """Say of the records up to a number that they lack the field."""
        missing = num_records - len(self.forms)
        self.forms += bytes(missing)
        self.lengths.frombytes(bytes(8 * missing))


class _SegmentWriter:
    """Gathers records, and writes them whenever there are enough."""

    def __init__(self, root: Place, name: str, settings: Settings) -> None:
        self.root = root
        self.name = name
        self.settings = settings
        self.dtypes: Mapping[str, np.dtype[Any]] = {
            name: np.dtype(dtype) for name, dtype in settings.dtypes
        }
        self.segments: list[Segment] = []
        self.num_skipped = 0
        self.names: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        self.columns = {KEY: _Column(None)}
        self.num_records = 0
        self.nbytes = 0
        self.urls: list[list[int]] = []

    def add(self, record: Mapping[str, Any], url_number: int) -> None:
        """Take one record of a file."""
        try:
            encoded = self._encode(record)
        except SourceError as error:
            if self.settings.skip_damaged:
                self.num_skipped += 1
                return
            other = "give it another dtype with dtypes (--dtype NAME=int64), " * bool(self.dtypes)
            raise SourceError(
                f"{error}, in record {record.get(KEY)!r} of {record.get(URL)}; mend it, {other}"
                "leave the field out, or leave out such records with on_damage='skip' "
                "(--on-damage skip)"
            ) from error
        for name in record.keys() - self.names:
            is_own = name not in (KEY, URL) and record[name] is not None
            if is_own and len(self.names) < MAX_NAMES:
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
        if self.urls and self.urls[-1][0] == url_number:
            self.urls[-1][1] += 1
        else:
            self.urls.append([url_number, 1])
        if self.nbytes >= SEGMENT_NBYTES:
            self.write()

    def _encode(self, record: Mapping[str, Any]) -> list[tuple[str, int, bytes, int]]:
        """Return name, form, bytes and number of values of all fields of a record to keep."""
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

    def write(self) -> None:
        """Write the records that came in, if there are any."""
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
            fields.append(FieldPart(name, num_values, len(column.values), forms))
        name = f"{self.name}-{len(self.segments):06d}"
        write_streams(self.root, name, streams)
        urls = tuple((number, count) for number, count in self.urls)
        self.segments.append(Segment(name, self.num_records, urls, tuple(fields)))
        self._clear()
