"""A pipe in place of a file that a user names is an error; a read of it would never end."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.running import time_limit
from zindex.cli.commands import _read_identifiers
from zindex.config import load_config
from zindex.datasets.mock_conversations import _read_lengths
from zindex.errors import ZindexError
from zindex.formats.keyed.h5_file import read_h5_shards
from zindex.megatron.prepare import parse_arguments
from zindex.streaming.configuration.yaml_tree import read_tree
from zindex.text.chat_template import open_template
from zindex.text.tokenizer_settings import TokenizerSettings, read_tokenizer_settings
from zindex.text.tokenizers.megatron_metadata import read_metadata
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer


def _parse(option: str) -> Callable[[Path], Any]:
    return lambda path: parse_arguments(["--seq-length", "4", option, str(path)])


def _read_settings(path: Path) -> Any:
    return read_tokenizer_settings(path.with_name("tokenizer.json"))


READERS: dict[str, Callable[[Path], Any]] = {
    "run.yaml": load_config,
    "mixture.yaml": read_tree,
    "keys.h5": read_h5_shards,
    "paths.txt": _parse("--data-args-path"),
    "paths.json": _parse("--per-split-data-args-path"),
    "identifiers.json": lambda path: _read_identifiers(str(path), ""),
    "lengths.csv": _read_lengths,
    "metadata.json": read_metadata,
    "tokenizer.json": open_text_tokenizer,
    "vocab.txt": open_text_tokenizer,
    "ranks.tiktoken": open_text_tokenizer,
    "pieces.model": open_text_tokenizer,
    "template": lambda path: open_template(str(path), TokenizerSettings()),
    "tokenizer_config.json": _read_settings,
    "special_tokens_map.json": _read_settings,
    "chat_template.jinja": _read_settings,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused(name: str, tmp_path: Path) -> None:
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    os.mkfifo(tmp_path / name)
    with time_limit(20), pytest.raises(ZindexError):
        READERS[name](tmp_path / name)
