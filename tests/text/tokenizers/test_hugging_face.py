"""The tokenizers library's files, and GPT-2's byte pairs."""

import json
import pickle
from pathlib import Path

import pytest

from tests.text.small_tokenizer import save_tokenizer
from zindex.errors import ConfigError
from zindex.text.tokenizers.hugging_face import BytePairTokenizer, HuggingFaceTokenizer


def test_special_tokens_of_the_folder(tmp_path: Path) -> None:
    save_tokenizer(
        tmp_path, additional_special_tokens=["<|im_end|>"], chat_template="{{ messages }}"
    )
    tokenizer = HuggingFaceTokenizer(tmp_path)
    assert tokenizer.text_to_ids("a<eod>")[-1] == tokenizer.eod == tokenizer.special_id("sep_token")
    assert tokenizer.special_id("bos_token") == tokenizer.special_id("cls_token") == 259
    assert tokenizer.special_id("pad_token") is None
    assert tokenizer.additional_special_tokens == ["<|im_end|>"]
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.encode_batch(["a"], add_special_tokens=True)[0][0] == 259
    assert tokenizer.ids_to_text(tokenizer.text_to_ids("a b<eod>")) == "a b"
    assert len(tokenizer.text_to_ids("a")) == 1


def test_arguments_come_before_the_folder(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = HuggingFaceTokenizer(
        tmp_path / "tokenizer.json",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        include_special_tokens=True,
    )
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert "sep_token" not in tokenizer.special_tokens
    assert tokenizer.special_id("pad_token") == tokenizer.vocab_size - 1 == 260
    assert tokenizer.text_to_ids("a")[0] == 259
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.text_to_ids("a<pad>") == tokenizer.text_to_ids("a<pad>")
    assert again.identity() == tokenizer.identity()


def test_byte_pairs(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<|endoftext|>": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        tokenizer = BytePairTokenizer(path)
        assert tokenizer.text_to_ids("ab a<|endoftext|>") == [2, 3, 0, 4]
    assert tokenizer.eod == 4
    assert tokenizer.ids_to_text([2, 3, 0]) == "ab a"
    assert pickle.loads(pickle.dumps(tokenizer)).vocab == vocab
    (tmp_path / "other.txt").write_text("#version: 0.2\nx y\n")
    with pytest.raises(ConfigError, match="must be a vocabulary and its merges: "):
        BytePairTokenizer(tmp_path, tmp_path / "other.txt")
    with pytest.raises(ConfigError, match="the merges of byte pairs must be a file, there is none"):
        BytePairTokenizer(tmp_path, tmp_path / "none.txt")
