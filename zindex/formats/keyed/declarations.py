"""What keyed files declare of themselves, checked: names of keys, dtypes, and where items begin."""

from typing import Any

import numpy as np

from zindex.errors import SourceError
from zindex.formats.keyed.shards import Int64Array

#: Names of numpy's dtypes that keyed files may hold.
DTYPES = frozenset(
    {
        "bool",
        *(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)),
        *(f"float{width}" for width in (16, 32, 64)),
    }
)
# A key with ``.bin`` behind it must be a file name, which may have 255 bytes on most systems.
_MAX_KEY_NBYTES = 200


def check_key(key: str, *, where: str) -> None:
    """Raise SourceError if a key cannot be the name of a file: it might lead elsewhere."""
    is_name = key not in {"", ".", ".."} and not any(sign in key for sign in "/\\\0")
    # What is no text in UTF-8 has "?" in the place of each such sign, all the same for its length.
    is_text = key.encode("utf-8", "replace").decode() == key
    if not is_name or not is_text or len(key.encode("utf-8", "replace")) > _MAX_KEY_NBYTES:
        shown = key if len(key) <= _MAX_KEY_NBYTES else f"{key[:40]}..."
        raise SourceError(
            f"a key must be the name of a file, of 1 to {_MAX_KEY_NBYTES} bytes of UTF-8 and "
            f"without slashes, got {shown!r} in {where}; rename it"
        )


def parse_dtype(name: object, *, where: str) -> str:
    """Return numpy's name of a dtype that is named with or without ``torch.``.

    Raises
    ------
    SourceError
        If it is none of `DTYPES`.
    """
    plain = name.removeprefix("torch.") if isinstance(name, str) else ""
    if plain in DTYPES:
        return plain
    advice = (
        "numpy has no such numbers, so store them as float32"
        if plain == "bfloat16"
        else "convert the values to one of these"
    )
    raise SourceError(
        f"values must have one of the dtypes {', '.join(sorted(DTYPES))}, got {name!r} in "
        f"{where}; {advice}"
    )


def parse_offsets(offsets: object, *, stop: int, where: str) -> Int64Array:
    """Return where items begin, and where the last one ends, of a list of whole numbers.

    Parameters
    ----------
    offsets
        What stands in the file.
    stop
        What the last one must be: the number of values, or of items.
    where
        File and key, for messages.

    Returns
    -------
    offset
        Shape (items + 1,), int64, from 0 to ``stop``, ascending.

    Raises
    ------
    SourceError
        If it is no such list.
    """
    if not isinstance(offsets, list) or set(map(type, offsets)) - {int}:
        raise SourceError(
            f"offsets must be a list of whole numbers, {where} has {_shorten(offsets)}; write the "
            "file again"
        )
    try:
        offset = np.array(offsets, np.int64)
    except OverflowError:
        offset = np.array([-1])
    fault = _find_fault(offset, stop)
    if fault:
        raise SourceError(
            f"offsets must ascend from 0 to {stop:,}, {where} has {fault}; write the file again"
        )
    return offset


def _find_fault(offset: Int64Array, stop: int) -> str:
    """Return what is wrong with offsets, or nothing."""
    if len(offset) == 0:
        return "none"
    descents = np.flatnonzero(np.diff(offset) < 0)
    if len(descents):
        row = int(descents[0])
        return f"{offset[row + 1]:,} after {offset[row]:,} at place {row + 1:,}"
    if offset[0] != 0 or offset[-1] != stop:
        return f"offsets from {offset[0]:,} to {offset[-1]:,}"
    return ""


def _shorten(value: Any) -> str:
    """Return a value as text that fits into a message."""
    if isinstance(value, list):
        for item in value:
            if type(item) is not int:
                return f"{type(item).__name__} {str(item)[:40]!r} among them"
    return f"{type(value).__name__} {str(value)[:40]!r}"
