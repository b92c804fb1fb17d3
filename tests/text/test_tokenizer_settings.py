"""Settings in a tokenizer's folder are found in every format."""

import json
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.text.tokenizer_settings import (
    TokenizerSettings,
    read_tokenizer_settings,
    settings_of_object,
)


def save(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def test_empty_folders(tmp_path: Path) -> None:
    assert read_tokenizer_settings(tmp_path / "tokenizer.json") == TokenizerSettings({}, {})


def test_special_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    save(tmp_path, "special_tokens_map.json", {"eos_token": "old", "pad_token": "<pad>"})
    config = {"eos_token": {"content": "</s>"}, "bos_token": None, "add_bos_token": True}
    save(tmp_path, "tokenizer_config.json", config)
    found = read_tokenizer_settings(tmp_path / "tokenizer.json")
    assert found.special_tokens == {"eos_token": "</s>", "pad_token": "<pad>"}
    assert found.chat_templates == {}


def test_templates(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    save(tmp_path, "tokenizer_config.json", {"chat_template": "one"})
    assert read_tokenizer_settings(file).chat_templates == {"default": "one"}
    named = [{"name": "default", "template": "one"}, {"name": "rag", "template": "two"}]
    save(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert read_tokenizer_settings(file).chat_templates == {"default": "one", "rag": "two"}
    save(tmp_path, "chat_template.jinja", "three")
    assert read_tokenizer_settings(file).chat_templates == {"default": "three", "rag": "two"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"tokenizer_config\.json must hold a JSON object with settings of a tok"),
        ("{", r"tokenizer_config\.json must hold a JSON object with settings of a tok"),
        ('{"chat_template": 5}', "must be a text, or a list of objects with name and template, go"),
        ('{"chat_template": [{"name": "x"}]}', "with name and template, got list; save the token"),
    ],
)
def test_damage(content: str, message: str, tmp_path: Path) -> None:
    save(tmp_path, "tokenizer_config.json", content)
    with pytest.raises(ConfigError, match=message):
        read_tokenizer_settings(tmp_path / "tokenizer.json")


def test_settings_of_objects() -> None:
    class Tokenizer:
        special_tokens_map = {"eos_token": "</s>", "additional_special_tokens": ["x"]}  # noqa: RUF012
        chat_template: Any = "one"

    expected = TokenizerSettings({"eos_token": "</s>"}, {"default": "one"})
    assert settings_of_object(Tokenizer()) == expected
    Tokenizer.chat_template = {"rag": "two", "broken": 5}
    assert settings_of_object(Tokenizer()).chat_templates == {"rag": "two"}
    assert settings_of_object(str.split) == TokenizerSettings({}, {})
