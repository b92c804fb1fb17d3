"""A tokenizer that tests can read: a token for each byte, and some special ones."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<|im_start|>", "<|im_end|>", "<eod>", "<bod>")


def make_tokenizer() -> Tokenizer:
    """Return the tokenizer: by itself it puts <bod> before each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<bod> $A", None, [("<bod>", tokenizer.token_to_id("<bod>"))]
    )
    return tokenizer


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
