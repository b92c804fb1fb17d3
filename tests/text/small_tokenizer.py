"""A tokenizer that tests can read: a token for each byte, and some special ones."""

import json
from pathlib import Path
from typing import Any

from examples.guide_files import SPECIAL, make_tokenizer

__all__ = ["SPECIAL", "make_tokenizer", "read_ids", "save_tokenizer"]


def save_tokenizer(folder: Path, **config: Any) -> Path:
    """Write the tokenizer and its settings to a folder; return that."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    known = {"eos_token": "<eod>", "bos_token": {"content": "<bod>"}} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    return folder


def read_ids(ids: Any) -> str:
    """Return the text of ids, with special tokens."""
    text: str = make_tokenizer().decode([int(i) for i in ids], skip_special_tokens=False)
    return text
