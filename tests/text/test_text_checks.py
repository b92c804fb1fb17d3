"""Texts that no tokenizer takes, and special tokens that users write."""

import pytest

from zindex.errors import ConfigError, SourceError
from zindex.text.text_checks import SpecialTexts, check_unicode


def test_lone_surrogates() -> None:
    for text in ("", "abc", "née \U0001f600"):
        check_unicode(text)
    with pytest.raises(SourceError, match=r"character 2 of this one is '\\ud800'"):
        check_unicode("é-\ud800b")


def test_special_tokens_are_found_in_any_value() -> None:
    special = SpecialTexts(["<|im|>", "<|im|>x", "", "[.]"])
    special.check([{"role": "a", "content": ["<|im|", 1, None, {"b": "[x]"}]}, None])
    message = r"this one has '<\|im\|>x' at character 1$"
    for value in ("é<|im|>x", [{"content": ({"a": "é<|im|>x"},)}], {"é<|im|>x": 1}):
        with pytest.raises(SourceError, match=message):
            special.check(value)
    with pytest.raises(SourceError, match=r"this one has '\[\.\]' at character 0"):
        special.check("[.]")
    with pytest.raises(ConfigError, match=r"needs a tokenizer that lists its special tokens, this"):
        SpecialTexts([])
