"""Split a stream of bytes into lines, and parse the JSON object of each.

``orjson`` parses if it is installed (the extra ``streaming``), and ``json`` parses what it refuses,
so both accept the same lines, also with ``NaN`` and ``Infinity``. They differ in one way: integers
of more than 64 bits become floats with ``orjson`` and stay exact without. If an object repeats a
name, the last value wins.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any

from zindex.errors import SourceError
from zindex.io.decompression import DamageError


def decode_with_json(line: bytes) -> Any:
    """Return the value of a line of UTF-8, parsed by the standard library."""
    return json.loads(line.decode())


loads: Callable[[bytes], Any]
try:
    from orjson import loads
except ImportError:  # pragma: no cover
    loads = decode_with_json

#: Bytes of the longest line that is read.
MAX_LINE_NBYTES = 1 << 28
# Maps every digit to a 0 and all else to a blank: long runs of digits are then found fast.
_MARK_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_NUMBER = b"0" * 19
_MAX_NESTED = 500

__all__ = ["MAX_LINE_NBYTES", "cut_lines", "loads", "parse_exactly", "parse_object"]


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises
    ------
    SourceError
        If it holds none, with the reason only; the caller adds the file.
    """
    try:
        value = loads(line)
    except (ValueError, RecursionError):
        value = _parse_slowly(line)
    return _check_object(value)


def parse_exactly(line: bytes) -> dict[str, Any]:
    """Return the object that a line holds, the same with any installed parser.

    ``orjson`` is used for lines that the standard library parses alike: those without integers of
    more than 64 bits, and without nesting so deep that one of the parsers gives up.

    Raises
    ------
    SourceError
        As of `parse_object`.
    """
    value = None
    if loads is not decode_with_json and _LONG_NUMBER not in line.translate(_MARK_DIGITS):
        with suppress(ValueError, RecursionError):
            value = loads(line)
    # Few lines have enough brackets, be they in texts or not.
    may_be_deep = line.count(b"[") + line.count(b"{") > _MAX_NESTED
    if value is None or (may_be_deep and _is_deep(value)):
        value = _parse_slowly(line)
    return _check_object(value)


def _check_object(value: Any) -> dict[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise SourceError(f"there must be a JSON object, it is of type {type(value).__name__}")
    return value


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested so deeply that parsers may disagree on it."""
    level, depth = [value], 0
    while level and depth <= _MAX_NESTED:
        inner = (item.values() if type(item) is dict else item for item in level)
        level = [item for items in inner for item in items if type(item) in (dict, list)]
        depth += 1
    return depth > _MAX_NESTED


def _parse_slowly(line: bytes) -> Any:
    """Return the value of a line, parsed by the standard library; SourceError says why not."""
    if not line.strip():
        raise SourceError("there is a blank line")
    try:
        return decode_with_json(line)
    except RecursionError:
        raise SourceError("there is JSON that is nested too deeply") from None
    except ValueError as error:
        reason: object = error
        if isinstance(error, json.JSONDecodeError):  # its column counts from 1, as editors do
            reason = f"{error.msg} at column {error.colno:,}"
        raise SourceError(f"there is no JSON: {reason}") from None


def cut_lines(
    chunks: Iterable[bytes], offset: int = 0, stop: int | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of a stream in batches, with the offset of the first line of each batch.

    Parameters
    ----------
    chunks
        Contents, in order, from the start of a line.
    offset
        Offset of the first byte in the file.
    stop
        Lines that begin at or after this byte are left out; None keeps all.

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
        # Split first, then join: only the ends of a large chunk are copied once more.
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            carry.append(chunk)
            carry_nbytes += len(chunk)
            if carry_nbytes > MAX_LINE_NBYTES:
                raise DamageError(
                    f"a line begins that has more than {MAX_LINE_NBYTES:,} bytes", offset
                )
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
