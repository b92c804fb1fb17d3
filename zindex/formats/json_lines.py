"""Split a stream of bytes into lines, and parse the JSON object of each.

``orjson`` parses if it is installed (the extra ``streaming``), and ``json`` parses what it rejects,
so both accept the same lines. ``NaN`` and ``Infinity`` are not JSON. `loads` alone differs in two
ways: with ``orjson`` integers of more than 64 bits become floats, and for a repeated name the last
value wins; `parse_object` preserves the former and rejects the latter.
"""

import json
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from zindex.errors import SourceError
from zindex.io.decompression import DamageError


def decode_with_json(line: bytes | memoryview) -> Any:
    """Return the value of a line of UTF-8, parsed by the standard library."""
    return json.loads(
        str(line, "utf-8"), parse_constant=_refuse, object_pairs_hook=_without_repeats
    )


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON, write null")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise for repeated names, which are ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object repeats the name {again[:40]!r}")
    return found


loads: Callable[[bytes | memoryview], Any]
try:
    from orjson import loads
except ImportError:  # pragma: no cover
    loads = decode_with_json

#: Maximum bytes of a line.
MAX_LINE_NBYTES = 1 << 30
# Larger numbers may be integers of more than 64 bits.
_EXACT = 2.0**63
_MAX_NESTED = 500

#: Offset of the first of some adjacent lines, and the lines.
Batch = tuple[int, list[bytes]]

# Between lines that are parsed together: a number that no file has at the borders of its values.
_BORDER = (1 << 48) + secrets.randbits(48)
_BORDER_BYTES = b",%d," % _BORDER

#: Mean bytes of lines up to which parsing them together saves more time than copying them takes.
MAX_JOINED_NBYTES = 1024

__all__ = [
    "MAX_JOINED_NBYTES",
    "MAX_LINE_NBYTES",
    "Batch",
    "cut_lines",
    "hold_blank_end",
    "loads",
    "parse_lines",
    "parse_object",
    "parse_text",
    "too_long",
]


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the object in a line, the same with any installed parser.

    ``orjson`` is used for lines that the standard library parses equally: those without integers of
    more than 64 bits, without repeated names, and without nesting so deep that one of the parsers
    fails.

    Raises
    ------
    SourceError
        If it contains none, with the reason only; the caller adds the file.
    """
    value = None
    if loads is not decode_with_json:
        with suppress(ValueError, RecursionError):
            value = loads(line)
        # Each name is followed by these two characters, unless all are followed by a blank; within
        # texts the quote is escaped.
        num_names, count = _count_names(value), line.count(b'":')
        if num_names not in (count, count - line.count(b'\\":') if count > num_names else -1):
            value = None
    if value is None:
        value = _parse_slowly(line)
    return _check_object(value)


def parse_lines(lines: Sequence[bytes | memoryview]) -> list[Any] | None:
    """Return the values of lines as `loads` does, short ones parsed together: in less time.

    Returns
    -------
    values
        None if a line does not hold exactly one value, also if it would together with the next one.

    Examples
    --------
    >>> parse_lines([b'{"a": 1}', b"2"])
    [{'a': 1}, 2]
    >>> parse_lines([b"1, 2", b"[3", b"4]"]) is None
    True
    """
    if sum(map(len, lines)) <= MAX_JOINED_NBYTES * len(lines):
        return _split_values(_BORDER_BYTES.join(lines), len(lines))
    try:
        return [*map(loads, lines)]
    except (ValueError, RecursionError):
        return None


def parse_text(text: bytes, num_lines: int) -> list[Any] | None:
    """Return the values of the lines of a text, all parsed together; see `parse_lines`.

    Parameters
    ----------
    text
        The lines. The last one may have no line break.
    num_lines
        Their number.
    """
    return _split_values(text.removesuffix(b"\n").replace(b"\n", _BORDER_BYTES), num_lines)


def _split_values(text: bytes, num_values: int) -> list[Any] | None:
    """Return values with borders between them; None if one of them is not a single value."""
    try:
        values = loads(b"[%b]" % text)
    except (ValueError, RecursionError):
        return None
    borders = values[1::2]
    # All borders are values of their own, so one value is between any two of them.
    if len(values) != 2 * num_values - 1 or borders.count(_BORDER) != len(borders):
        return None
    found: list[Any] = values[::2]
    return found


def _check_object(value: Any) -> dict[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise SourceError(f"there must be a JSON object, it is of type {type(value).__name__}")
    return value


def _count_names(value: Any) -> int:
    """Return the number of names in an object and nested ones; -1 if parsers may disagree on it."""
    if type(value) is not dict:
        return 0
    count, depth, level = 0, 0, [value]
    while level:
        depth, inner = depth + 1, []
        for item in level:
            count += len(item) if type(item) is dict else 0
            values = item.values() if type(item) is dict else item
            kinds = set(map(type, values))
            if float in kinds and any(type(x) is float and abs(x) >= _EXACT for x in values):
                return -1
            if dict in kinds or list in kinds:
                inner += [x for x in values if type(x) in (dict, list)]
        if depth > _MAX_NESTED:
            return -1
        level = inner
    return count


def _parse_slowly(line: bytes) -> Any:
    """Return the value of a line, parsed by the standard library; SourceError states the reason."""
    if not line.strip():
        raise SourceError("there is a blank line")
    try:
        return decode_with_json(line)
    except RecursionError:
        raise SourceError("there is JSON that is nested too deeply") from None
    except ValueError as error:
        reason: object = error
        if isinstance(error, json.JSONDecodeError):  # its column counts from 1, as in editors
            reason = f"{error.msg} at column {error.colno:,}"
        raise SourceError(f"there is no JSON: {reason}") from None


def cut_lines(chunks: Iterable[bytes], offset: int = 0, stop: int | None = None) -> Iterator[Batch]:
    """Yield the lines of a stream in batches, with the offset of the first line of each batch.

    Parameters
    ----------
    chunks
        Contents, in order, from the start of a line.
    offset
        Offset of the first byte in the file.
    stop
        Omit lines that start at or after this byte; None keeps all.

    Raises
    ------
    DamageError
        If a line is longer than `MAX_LINE_NBYTES`.
    """
    if stop is not None and offset >= stop:
        return
    carry: list[bytes] = []
    carry_nbytes = 0
    for chunk in chunks:
        # Split first, then join, so that only the ends of a large chunk are copied again.
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            carry.append(chunk)
            carry_nbytes += len(chunk)
            if carry_nbytes > MAX_LINE_NBYTES:
                raise too_long(offset)
            continue
        rest = lines.pop()
        after = offset + carry_nbytes + len(chunk) - len(rest)
        if carry_nbytes:
            lines[0] = b"".join((*carry, lines[0]))
        if stop is not None and after >= stop:
            starts = accumulate((len(line) + 1 for line in lines), initial=offset)
            yield offset, [line for line, start in zip(lines, starts, strict=False) if start < stop]
            return
        yield offset, lines
        offset, carry, carry_nbytes = after, [rest], len(rest)
    if carry_nbytes:
        yield offset, [b"".join(carry)]


def too_long(offset: int) -> DamageError:
    """Return the error for a line that is longer than `MAX_LINE_NBYTES`."""
    return DamageError(f"a line begins that has more than {MAX_LINE_NBYTES:,} bytes", offset)


def hold_blank_end(batches: Iterable[Batch]) -> Generator[Batch, None, Batch | None]:
    """Yield batches of lines without the blank lines at their end, which are returned.

    Parameters
    ----------
    batches
        Of `cut_lines`.

    Returns
    -------
    held
        The blank lines; None without any.
    """
    held: list[bytes] = []
    start = 0
    for first, lines in batches:
        stop = len(lines)
        while stop and not lines[stop - 1].strip():
            stop -= 1
        if not stop:
            start = start if held else first
            held += lines
            continue
        if held:
            yield start, held
        yield first, lines if stop == len(lines) else lines[:stop]
        held = lines[stop:]
        start = first + sum(map(len, lines[:stop])) + stop if held else 0
    return (start, held) if held else None
