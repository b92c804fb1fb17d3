"""Metadata of Megatron's tokenizers: the file next to a tokenizer that names its library."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, check_choice
from zindex.io.local import read_file, write_once
from zindex.text.tokenizers.open_tokenizer import WITHOUT_FILES

_METADATA_FILE = "tokenizer_metadata.json"
_MODEL_TYPES = ("default", "gpt", "mamba", "bert", "t5")


def write_metadata(
    tokenizer_path: str | os.PathLike[str],
    tokenizer_library: str,
    model_type: str | None = None,
    tokenizer_class: type | None = None,
    chat_template: str | None = None,
    overwrite: bool = False,
    metadata_path: str | os.PathLike[str] | None = None,
) -> None:
    """Write the metadata of a tokenizer, which `from_pretrained` reads.

    Parameters
    ----------
    tokenizer_path
        Its file or folder.
    tokenizer_library
        The library that reads it.
    model_type
        ``"gpt"``, ``"bert"``, ``"t5"``, ``"mamba"`` or ``"default"``. None means ``"default"``,
        unless a class is given.
    tokenizer_class
        Megatron's custom class of the tokenizer.
    chat_template
        Its chat template.
    overwrite
        Whether to overwrite existing metadata.
    metadata_path
        Where to write; None uses ``tokenizer_metadata.json`` in the tokenizer's folder.

    Raises
    ------
    ConfigError
        If there is no such tokenizer, library or model type, or the metadata exist.
    """
    if not os.path.exists(tokenizer_path):
        raise ConfigError(
            f"tokenizer_path must be a tokenizer, there is none at {os.fspath(tokenizer_path)};"
            " save it there first"
        )
    libraries = ("sentencepiece", "huggingface", "megatron", "tiktoken", *WITHOUT_FILES)
    check_choice("tokenizer_library", tokenizer_library, libraries)
    if model_type is None and tokenizer_class is None:
        model_type = "default"
    if model_type is not None:
        check_choice("model_type", model_type, _MODEL_TYPES)
    path = metadata_beside(tokenizer_path) if metadata_path is None else Path(metadata_path)
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists; pass overwrite=True to replace it")
    metadata = {
        "library": tokenizer_library,
        "class_name": tokenizer_class.__name__ if tokenizer_class else None,
        "class_path": tokenizer_class.__module__ if tokenizer_class else None,
        "model_type": model_type,
        "chat_template": chat_template,
    }
    write_once(path, [json.dumps(metadata).encode()], replace=True)


def resolve_megatron(
    path: str | None, options: Mapping[str, Any]
) -> tuple[str, str | None, dict[str, Any]]:
    """Return the file, the type and the options of a Megatron tokenizer by name.

    Parameters
    ----------
    path
        The name, such as ``BertWordPieceCase``, which Megatron's library accepts instead of a path.
    options
        Its arguments, with the ``vocab_file``.

    Raises
    ------
    ConfigError
        If there is no such name, or no file.
    """
    given = dict(options)
    vocab = given.pop("vocab_file", None)
    given.pop("include_special_tokens", None)  # these tokenizers add none
    known = ("BertWordPieceLowerCase", "BertWordPieceCase", "GPT2BPETokenizer")
    check_choice("a tokenizer of the library megatron", path, known)
    if vocab is None:
        raise ConfigError(
            f"{path} must have a vocab_file, got none; nothing is downloaded: save it first and "
            "pass its path"
        )
    if path != "GPT2BPETokenizer":
        given.pop("merges_file", None)
    return os.fspath(vocab), path, given


def metadata_beside(tokenizer_path: str | os.PathLike[str]) -> Path:
    """Return the path of the metadata of a tokenizer's file or folder."""
    path = Path(tokenizer_path)
    return (path if path.is_dir() else path.parent) / _METADATA_FILE


def read_metadata(file: Path) -> dict[str, Any]:
    """Return the metadata of a file.

    Raises
    ------
    ConfigError
        If it is missing, or not a JSON object.
    """
    try:
        found = json.loads(read_file(file))
    except FileNotFoundError:
        raise ConfigError(
            f"metadata of a tokenizer must be there, there is no {file}; write them with "
            "write_metadata"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} must hold the metadata of a tokenizer as JSON: {error}; write them again"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{file} must hold a JSON object, it is of type {type(found).__name__}; write it again"
        )
    return found
