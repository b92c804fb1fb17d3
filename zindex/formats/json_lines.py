"""Lines of JSON objects: parsed fast where that can be, and cut out of a stream of bytes.

``orjson`` parses when it is installed (the extra ``streaming``), and ``json`` what it refuses, so
that both accept the same lines, ``NaN`` and ``Infinity`` included. They differ in one way: whole
numbers that need more than 64 bits become floats with ``orjson`` and stay exact without. Where an
object repeats a name, the last value wins.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zindex.errors import SourceError
from zindex.formats.damage import Damage


def decode_with_json(line: bytes) -> Any:
    """Return the value of a line as the standard library reads text, never other encodings."""
    return json.loads(line.decode())


loads: Callable[[bytes], Any]
try:
    from orjson import loads
except ImportError:  # pragma: no cover
    loads = decode_with_json

#: Bytes of the longest line that is read.
MAX_LINE_NBYTES = 1 << 28

__all__ = [
    "MAX_LINE_NBYTES",
    "cut_lines",
    "decode_with_json",
    "loads",
    "parse_object",
    "parse_slowly",
]


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises
    ------
    SourceError
        If it holds none, with the reason alone; the caller knows the file.
    """
    try:
        value = loads(line)
    except (ValueError, RecursionError):
        value = parse_slowly(line)
    if not isinstance(value, dict):
        raise SourceError(f"there must be a JSON object, it is of type {type(value).__name__}")
    return value


def parse_slowly(line: bytes) -> Any:
    """Return the value of a line as the standard library reads it.

    Raises
    ------
    SourceError
        If the line is blank, no JSON, or nested too deeply.
    """
    if not line.strip():
        raise SourceError("there is a blank line")
    try:
        return decode_with_json(line)
    except RecursionError:
        raise SourceError("there is JSON that is nested too deeply") from None
    except ValueError as error:
        raise SourceError(f"there is no JSON: {_explain(error)}") from None


def _explain(error: ValueError) -> str:
    """Return why a line is no JSON; its column counts from 1, as editors do."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno:,}"
    return str(error)


def cut_lines(
    chunks: Iterable[bytes], offset: int = 0, stop: int | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of a stream, many at a time, with the offset of the first of them.

    Parameters
    ----------
    chunks
        Contents, in order, from the start of a line.
    offset
        Of the first byte, in the file.
    stop
        Lines that begin at or after this byte are left out; None: none.

    Raises
    ------
    Damage
        If a line is longer than `MAX_LINE_NBYTES`.
    """
    if stop is not None and offset >= stop:
        return
    carry: list[bytes] = []
    carry_nbytes = 0
    for chunk in chunks:
        # Cut first and joined then: of a large chunk only the ends are copied once more.
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            carry.append(chunk)
            carry_nbytes += len(chunk)
            if carry_nbytes > MAX_LINE_NBYTES:
                raise Damage(f"a line begins that has more than {MAX_LINE_NBYTES:,} bytes", offset)
            continue
        begun = lines.pop()
        after = offset + carry_nbytes + len(chunk) - len(begun)
        if carry_nbytes:
            lines[0] = b"".join((*carry, lines[0]))
        if stop is not None and after >= stop:
            at = offset
            for number, line in enumerate(lines):
                if at >= stop:
                    del lines[number:]
                    break
                at += len(line) + 1
            yield offset, lines
            return
        yield offset, lines
        offset, carry, carry_nbytes = after, [begun], len(begun)
    if carry_nbytes:
        yield offset, [b"".join(carry)]
