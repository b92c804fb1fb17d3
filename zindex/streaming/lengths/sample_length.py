"""How long one sample is, and in what that is counted."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from zindex.errors import SourceError
from zindex.text.text_encoder import TextEncoder, TokenizerLike

#: Returns how long a sample is, in tokens; only a `TextLength` may find that it has no length.
LengthOf = Callable[[Any], int | None]

# Fields whose length is the sample's, the first one that is there.
_FIELDS = ("tokens", "input_ids", "token_ids", "txt", "text", "caption", "data")


class TextLength:
    """Counts the tokens of raw samples, whose texts are not tokenised yet; a ``length_of``.

    Parameters
    ----------
    tokenizer
        See `zindex.text.text_encoder.TextEncoder`.
    fields
        Names of the text, the first one that a sample has is taken.

    Raises
    ------
    ConfigError
        If the tokenizer is none.

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

        One that has tokens already is not tokenised again.
        """
        fields = _fields_of(sample)
        found = next(_find_tokens(fields), None)
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

    That is ``"tokens"``, ``"characters"`` or ``"bytes"``; the length is 0 and the unit
    ``"samples"`` where nothing of a sample is known to be one of these.

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
        If ``length_of`` returns what is no length.
    """
    if length_of is not None:
        length = length_of(sample)
        if length is None and isinstance(length_of, TextLength):
            return 0, "samples"
        return _check(length, name), "tokens"
    fields = _fields_of(sample)
    found = next(_find_tokens(fields), None)
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


def _find_tokens(fields: dict[str, Any]) -> Iterator[int]:
    """Yield the lengths of all fields that hold tokens."""
    for name in _FIELDS:
        value = fields.get(name)
        if value is None or isinstance(value, (str, bytes)):
            continue
        mask = fields.get(f"{name}_mask")
        if mask is not None:
            yield int(np.count_nonzero(np.asarray(mask)))
        elif isinstance(value, list | tuple):
            # Other items, such as an image beside its class, are no tokens.
            if all(isinstance(item, int | np.integer | str) for item in value[:1]):
                yield len(value)
        elif hasattr(value, "shape") and "int" in str(getattr(value, "dtype", "")):
            yield math.prod(value.shape)


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
