"""Reject texts with invalid Unicode and, optionally, with special tokens."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from zindex.errors import ConfigError, SourceError


def check_unicode(text: str) -> None:
    """Raise for a text that tokenizers cannot encode.

    Raises
    ------
    SourceError
        If it has a lone surrogate, which JSON can represent but UTF-8 cannot.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"a text must be Unicode without lone surrogates, character {error.start:,} of this "
            f"one is {text[error.start]!a}"
        ) from error


class SpecialTexts:
    """Finds the texts of special tokens in users' texts.

    Parameters
    ----------
    texts
        All special tokens.

    Raises
    ------
    ConfigError
        If there are none.
    """

    def __init__(self, texts: Collection[str]) -> None:
        known = sorted(filter(None, texts), key=len, reverse=True)
        if not known:
            raise ConfigError(
                "special_in_text='refuse' (--special-in-text refuse) needs a tokenizer that lists "
                "its special tokens, this one lists none; give its tokenizer.json, or take 'parse'"
            )
        self._pattern = re.compile("|".join(map(re.escape, known)))

    def check(self, value: Any) -> None:
        """Raise for JSON values with a special token in a text.

        Raises
        ------
        SourceError
            If there is one.
        """
        left = [value]
        while left:
            item = left.pop()
            if isinstance(item, Mapping):
                left += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                left += item
            elif isinstance(item, str) and (found := self._pattern.search(item)):
                raise SourceError(
                    "a text must not hold special tokens with special_in_text='refuse' "
                    f"(--special-in-text refuse), this one has {found[0]!r} at character "
                    f"{found.start():,}"
                )
