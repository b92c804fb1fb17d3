"""What lies beside a tokenizer's file: the names of its special tokens, and its chat templates."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, StoreError
from zindex.store.identity import parse_json

_CONFIG, _TOKENS_MAP, _TEMPLATE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
#: What a chat template is called that has no other name.
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What a tokenizer says of itself beside its vocabulary."""

    #: Text of each special token that has a name, such as ``eos_token``.
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    #: Chat templates by name; that without one is called ``default``.
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def read_tokenizer_settings(file: Path) -> TokenizerSettings:
    """Return what lies beside a tokenizer's file; nothing where nothing is there.

    Parameters
    ----------
    file
        The ``tokenizer.json``.

    Raises
    ------
    ConfigError
        If a file beside it is damaged.
    """
    config = _read_object(file.parent / _CONFIG)
    given = _read_object(file.parent / _TOKENS_MAP) | config
    tokens = {
        name: text
        for name, value in given.items()
        if name.endswith("_token") and (text := _token_text(value)) is not None
    }
    templates = _read_templates(config.get("chat_template"), file.parent / _CONFIG)
    path = file.parent / _TEMPLATE
    if path.is_file():  # newer tokenizers have it beside their settings, and it counts
        templates[DEFAULT] = path.read_text("utf-8")
    return TokenizerSettings(tokens, templates)


def read_additional_tokens(file: Path) -> list[str]:
    """Return the special tokens without names that are listed beside a tokenizer's file.

    Raises
    ------
    ConfigError
        If a file beside it is damaged.
    """
    for name in (_CONFIG, _TOKENS_MAP):
        found = _read_object(file.parent / name).get("additional_special_tokens")
        if isinstance(found, list):
            return [text for value in found if (text := _token_text(value)) is not None]
    return []


def settings_of_object(tokenizer: Any) -> TokenizerSettings:
    """Return what a tokenizer object says: its ``chat_template`` and its special tokens."""
    tokens: dict[str, str] = {}
    found = getattr(tokenizer, "special_tokens_map", None)
    if isinstance(found, Mapping):
        tokens = {name: text for name, value in found.items() if (text := _token_text(value))}
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        named = {str(name): text for name, text in template.items() if isinstance(text, str)}
        return TokenizerSettings(tokens, named)
    return TokenizerSettings(tokens, {DEFAULT: template} if isinstance(template, str) else {})


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if it is not there."""
    if not path.is_file():
        return {}
    try:
        return parse_json(path.read_bytes(), str(path))
    except StoreError as error:
        raise ConfigError(
            f"{path} must hold a JSON object, as it lies beside a tokenizer: {error}; save the "
            "tokenizer again"
        ) from error


def _token_text(value: Any) -> str | None:
    """Return the text of a token as it is written in settings; None: it is none."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_templates(value: Any, path: Path) -> dict[str, str]:
    """Return chat templates as settings hold them: one text, or a list of named ones."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    named = value if isinstance(value, list) else [value]
    templates = {}
    for item in named:
        name = item.get("name") if isinstance(item, Mapping) else None
        text = item.get("template") if isinstance(item, Mapping) else None
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigError(
                f"chat_template of {path} must be a text, or a list of objects with name and "
                f"template, got {type(value).__name__}; save the tokenizer again"
            )
        templates[name] = text
    return templates
