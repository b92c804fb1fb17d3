"""Measure the length of a sample, and its unit."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zindex.errors import SourceError
from zindex.text.text_encoder import TextEncoder, TokenizerLike

#: Returns the tokens of a sample; only `TextLength` may return None for a sample without text.
LengthOf = Callable[[Any], int | None]

_TOKEN = int | np.integer | str
# Fields that are measured; the first one that a sample has.
_FIELDS = ("tokens", "input_ids", "token_ids", "txt", "text", "caption", "data")


class TextLength:
    """A ``length_of`` for raw samples, which tokenises their texts.

    Parameters
    ----------
    tokenizer
        See `zindex.text.text_encoder.TextEncoder`.
    fields
        Names of the text field; the first one that a sample has is used.

    Raises
    ------
    ConfigError
        If the tokenizer is invalid.

    Examples
    --------
    >>> TextLength(lambda text: [*text.encode()], fields=["caption"])({"caption": "grün"})
    5
    """

    def __init__(
        self, tokenizer: TokenizerLike, *, fields: Sequence[str] = ("text", "txt", "caption")
    ) -> None:
        self.encoder = TextEncoder(tokenizer)
        self.fields = tuple(fields)

    def __call__(self, sample: Any) -> int | None:
        """Return the tokens of a sample, or None if it has no text.

        A sample that already has tokens is not tokenised again.
        """
        fields = _fields_of(sample)
        found = _count_tokens(fields)
        if found is not None:
            return found
        text = next((fields[name] for name in self.fields if fields.get(name) is not None), None)
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        if not isinstance(text, str):
            return None
        return len(self.encoder.encode([text])[0])


def measure(sample: Any, name: str, length_of: LengthOf | None = None) -> tuple[int, str]:
    """Return the length of a sample, and its unit.

    The unit is ``"tokens"``, ``"characters"`` or ``"bytes"``; a sample without any of these has
    length 0 and unit ``"samples"``.

    Parameters
    ----------
    sample
        A sample of a source.
    name
        Name of the source, for messages.
    length_of
        Returns the tokens of a sample; by default its fields are searched.

    Raises
    ------
    SourceError
        If ``length_of`` returns no length.
    """
    if length_of is not None:
        length = length_of(sample)
        if length is None and isinstance(length_of, TextLength):
            return 0, "samples"
        return _check(length, name), "tokens"
    fields = _fields_of(sample)
    found = _count_tokens(fields)
    if found is not None:
        return found, "tokens"
    for field in _FIELDS:
        value = fields.get(field)
        if isinstance(value, str):
            return len(value), "characters"
        if isinstance(value, bytes):
            return len(value), "bytes"
    return 0, "samples"


def _fields_of(sample: Any) -> dict[str, Any]:
    return sample if isinstance(sample, dict) else {"data": sample}


def _count_tokens(fields: dict[str, Any]) -> int | None:
    """Return the length of the first field of tokens; None without any."""
    for name in _FIELDS:
        value = fields.get(name)
        if value is None or isinstance(value, (str, bytes)):
            continue
        mask = fields.get(f"{name}_mask")
        if mask is not None:
            return int(np.count_nonzero(np.asarray(mask)))
        # Other items, such as an image with its class, are not tokens.
        if isinstance(value, list | tuple) and isinstance(next(iter(value), 0), _TOKEN):
            return len(value)
        if hasattr(value, "shape") and "int" in str(getattr(value, "dtype", "")):
            return int(math.prod(value.shape))
    return None


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
