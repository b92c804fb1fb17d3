"""Read special tokens and chat templates from the settings in a tokenizer's folder."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, StoreError, StoreNotFoundError
from zindex.io.files import read_file, read_text
from zindex.store.commit import parse_json

_CONFIG, _TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
#: Files of settings in the folder of a ``tokenizer.json``.
SETTINGS_FILES = (_CONFIG, _TOKENS_MAP, _TEMPLATE)
#: Name of an unnamed chat template.
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Settings of a tokenizer besides its vocabulary."""

    #: Text of each named special token, such as ``eos_token``.
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    #: Chat templates by name; an unnamed one is called ``default``.
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    #: Special tokens without names.
    additional_tokens: Sequence[str] = ()

    @property
    def default_template(self) -> str | None:
        """The unnamed chat template, or None."""
        return self.chat_templates.get(DEFAULT)


def read_tokenizer_settings(file: Path) -> TokenizerSettings:
    """Return the settings in the folder of a tokenizer's file; empty ones if it has none.

    Parameters
    ----------
    file
        The ``tokenizer.json``.

    Raises
    ------
    ConfigError
        If a file of settings is damaged.
    """
    config = _read_object(file.parent / _CONFIG)
    tokens_map = _read_object(file.parent / _TOKENS_MAP)
    tokens = {
        name: text
        for name, value in (tokens_map | config).items()
        if name.endswith("_token") and (text := _token_text(value)) is not None
    }
    lists = (found.get("additional_special_tokens") for found in (config, tokens_map))
    listed = next((found for found in lists if isinstance(found, list)), [])
    additional = tuple(text for value in listed if (text := _token_text(value)) is not None)
    templates = _read_templates(config.get("chat_template"), file.parent / _CONFIG)
    with suppress(StoreNotFoundError):  # of newer tokenizers; takes precedence
        templates[DEFAULT] = read_text(file.parent / _TEMPLATE)
    return TokenizerSettings(tokens, templates, additional)


def settings_of_object(tokenizer: Any) -> TokenizerSettings:
    """Return the settings of a tokenizer object: its ``chat_template`` and special tokens."""
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
    """Return the JSON object of a file; an empty one if there is no file."""
    try:
        return parse_json(read_file(path), str(path))
    except StoreNotFoundError:
        return {}
    except StoreError as error:
        raise ConfigError(
            f"{path} must hold a JSON object with settings of a tokenizer: {error}; save the "
            "tokenizer again"
        ) from error


def _token_text(value: Any) -> str | None:
    """Return the text of a token in settings; None if it is not a token."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_templates(value: Any, path: Path) -> dict[str, str]:
    """Return the chat templates of settings: one text, or a list of named ones."""
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
