"""Validate the declarations of keyed files: keys, dtypes and offsets."""

from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import SourceError

#: Names of numpy's dtypes that keyed files may hold.
DTYPES = frozenset(
    {
        "bool",
        *(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)),
        *(f"float{width}" for width in (16, 32, 64)),
    }
)
# ``<key>.bin`` must be a file name, which may have 255 bytes on most systems.
_MAX_KEY_NBYTES = 200


def check_key(key: str, *, where: str) -> None:
    """Raise SourceError if a key cannot be a file name: it might lead out of the folder."""
    is_name = key not in {"", ".", ".."} and not any(sign in key for sign in "/\\\0")
    # Characters that are not UTF-8 are replaced by "?", which keeps the length.
    is_text = key.encode("utf-8", "replace").decode() == key
    if not is_name or not is_text or len(key.encode("utf-8", "replace")) > _MAX_KEY_NBYTES:
        shown = key if len(key) <= _MAX_KEY_NBYTES else f"{key[:40]}..."
        raise SourceError(
            f"a key must be the name of a file, of 1 to {_MAX_KEY_NBYTES} bytes of UTF-8 and "
            f"without slashes, got {shown!r} in {where}; rename it"
        )


def parse_dtype(name: object, *, where: str) -> str:
    """Return numpy's name of a dtype given with or without ``torch.``.

    Raises
    ------
    SourceError
        If it is not one of `DTYPES`.
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
    """Parse a list of offsets.

    Parameters
    ----------
    offsets
        The value in the file.
    stop
        Required last offset: the number of values, or of items.
    where
        File and key, for messages.

    Returns
    -------
    offset
        Shape (items + 1,), int64, from 0 to ``stop``, ascending.

    Raises
    ------
    SourceError
        If it is not a list of ascending integers from 0 to ``stop``.
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
    """Return the fault of offsets, or an empty text."""
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
    """Return a value as short text for a message."""
    if isinstance(value, list):
        for item in value:
            if type(item) is not int:
                return f"{type(item).__name__} {str(item)[:40]!r} among them"
    return f"{type(value).__name__} {str(value)[:40]!r}"
