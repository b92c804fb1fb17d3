"""How long one sample is, and in what that is counted."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from zindex.errors import SourceError

#: Returns how long a sample is, in tokens.
LengthOf = Callable[[Any], int]

# Fields whose length is the sample's, the first one that is there.
_FIELDS = ("tokens", "input_ids", "token_ids", "txt", "text", "caption", "data")


def measure(sample: Any, name: str, length_of: LengthOf | None = None) -> tuple[int, str]:
    """Return the length of a sample, and its unit: ``"tokens"``, ``"characters"`` or ``"bytes"``.

    Parameters
    ----------
    sample
        A sample of a source.
    name
        The source, for messages.
    length_of
        Returns the tokens of a sample; without it they are looked for.

    Raises
    ------
    SourceError
        If the sample has no length.
    """
    if length_of is not None:
        return _check(length_of(sample), name), "tokens"
    fields = sample if isinstance(sample, dict) else {"data": sample}
    for field in _FIELDS:
        value = fields.get(field)
        if value is None:
            continue
        mask = fields.get(f"{field}_mask")
        if mask is not None:
            return int(np.count_nonzero(np.asarray(mask))), "tokens"
        if isinstance(value, str):
            return len(value), "characters"
        if isinstance(value, bytes):
            return len(value), "bytes"
        if isinstance(value, list | tuple):
            return len(value), "tokens"
        if hasattr(value, "shape"):
            return math.prod(value.shape), "tokens"
    raise SourceError(
        f"samples of {name!r} must have one of the fields {', '.join(_FIELDS[:-1])} to be counted, "
        f"got {sorted(map(str, fields))}; give length_of, which returns the tokens of a sample"
    )


def _check(length: Any, name: str) -> int:
    try:
        number = operator.index(length)
    except TypeError:
        number = -1
    if number < 0:
        raise SourceError(
            f"length_of must return a whole number of tokens >= 0, got {length!r} for a sample of "
            f"{name!r}; count its tokens there"
        )
    return number
