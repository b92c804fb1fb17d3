"""Read the records of a JSON file by number: one per line, or one array."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import SourceError, StoreNotFoundError, check_number
from zindex.formats.json_lines import parse_object
from zindex.store.rows import Spans, read_many
from zindex.store.tokens import FlatFile

_BLOCK_NBYTES = 1 << 24
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The largest byte among space, tab and line breaks.
_SPACE = ord(" ")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Lines:
    """The lines of a file as byte spans."""

    #: Shape (lines,), bytes.
    starts: Int64Array
    #: Shape (lines,), bytes; excludes line breaks.
    stops: Int64Array
    #: Bytes of the file.
    nbytes: int
    #: Whether the file is one JSON array, whose lines are meaningless.
    is_array: bool


# The splits of a dataset share one search for line breaks.
_known: "WeakValueDictionary[tuple[str, int, int], _Lines]" = WeakValueDictionary()


class JsonRecords:
    """The objects of a JSON file by number, parsed lazily.

    Opening searches the file for line breaks, once per process and file, and keeps 16 bytes per
    line; the lines of a batch are read in one call. A JSON array is parsed completely at the first
    read in each process. It pickles as the spans of its lines, without records.

    Parameters
    ----------
    path
        An uncompressed file; blank lines are skipped.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    SourceError
        If it is neither lines of objects nor an array of them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._lines = _find_lines(self.path)
        self._reader = FlatFile(self.path, self._lines.nbytes, np.uint8)

    def __len__(self) -> int:
        return len(self._values if self._lines.is_array else self._lines.starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one record; IndexError if there is none of this number."""
        return self.read_many([index])[0]

    def read_many(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return records, read together.

        Parameters
        ----------
        indices
            Their numbers, from the end if negative.

        Raises
        ------
        IndexError
            If there is no such record.
        SourceError
            If one of them is not a JSON object.
        """
        numbers = [check_number(index, len(self), "a record", self.path) for index in indices]
        if self._lines.is_array:
            return [self._check(self._values[number], number) for number in numbers]
        starts, stops = self._lines.starts[numbers], self._lines.stops[numbers]
        [content] = read_many([Spans(self._reader, starts, stops)])
        ends = np.cumsum(stops - starts).tolist()
        text = content.tobytes()
        return [
            self._parse(text[start:stop], number)
            for start, stop, number in zip([0, *ends], ends, numbers, strict=False)
        ]

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the object of a line."""
        try:
            return parse_object(line)
        except SourceError as error:
            raise SourceError(
                f"record {number} of {self.path} must be a JSON object, at byte "
                f"{int(self._lines.starts[number])} {error}; fix or remove the line"
            ) from error

    def _check(self, value: Any, number: int) -> dict[str, Any]:
        """Return an element of the array; raise unless it is an object."""
        if isinstance(value, dict):
            return value
        raise SourceError(
            f"record {number} of {self.path} must be a JSON object, it is of type "
            f"{type(value).__name__}; fix or remove it"
        )

    @cached_property
    def _values(self) -> list[Any]:
        """The elements of the array."""
        with open(self.path, "rb") as file:
            content = file.read()
        try:
            values = json.loads(content.removeprefix(_BYTE_ORDER_MARK))
        except ValueError as error:
            raise SourceError(
                f"{self.path} must be a JSON array of objects, as it begins with [, but: {error}; "
                "fix the file"
            ) from error
        return list(values)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_values"}


def _find_lines(path: str) -> _Lines:
    """Return the lines of a file, shared by all its open records."""
    if not os.path.isfile(path):
        raise StoreNotFoundError(
            f"{path} must be a file of JSON records, there is none; check the path"
        )
    status = os.stat(path)
    key = (os.path.realpath(path), status.st_size, status.st_mtime_ns)
    lines = _known.get(key)
    if lines is None:
        lines = _known[key] = _search(path)
    return lines


def _search(path: str) -> _Lines:
    """Return the lines of a file."""
    breaks, spaced, nbytes, begun = [], [], 0, b""
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_NBYTES):
            begun = begun or block.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1]
            content = np.frombuffer(block, np.uint8)
            found = np.flatnonzero(content == ord("\n"))
            breaks.append(found + nbytes)
            begins = np.append(0, found + 1)
            begins = begins[begins < len(block)]
            spaced.append(begins[content[begins] <= _SPACE] + nbytes)
            nbytes += len(block)
    if begun not in (b"{", b"[", b""):
        raise SourceError(
            f"{path} must hold JSON objects, one a line, or an array of them, but begins with "
            f"{begun!r}; decompress it if it is compressed"
        )
    if begun != b"{":
        none = np.empty(0, np.int64)
        return _Lines(none, none, nbytes, begun == b"[")
    stops = np.concatenate([*breaks, [nbytes]])
    starts = np.concatenate([[0], stops[:-1] + 1])
    with open(path, "rb") as file:
        if file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK:
            starts[0] = len(_BYTE_ORDER_MARK)
        is_kept = starts < stops
        for line in _find_spaced(starts, np.concatenate(spaced)):
            file.seek(starts[line])
            is_kept[line] = bool(file.read(stops[line] - starts[line]).strip())
    return _Lines(starts[is_kept], stops[is_kept], nbytes, is_array=False)


def _find_spaced(starts: Int64Array, spaced: Int64Array) -> list[int]:
    """Return the lines that may be blank: the first, and those that start with white space."""
    lines = np.searchsorted(starts, spaced)
    # Blocks of the file may begin within a line.
    lines = lines[starts.take(lines, mode="clip") == spaced]
    return [0, *lines.tolist()]
