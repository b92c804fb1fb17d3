"""Tokenizers of any kind give ids; those of files are pickled by their paths."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from zindex.errors import ConfigError
from zindex.text.text_encoder import TextEncoder


def make_tokenizer() -> Tokenizer:
    words = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "</s>": 4, "[PAD]": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_a_tokenizer_of_a_file(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(pad_id=5, length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        encoder = TextEncoder(path)
        found = encoder.encode(["a b c a", "x", ""])
        assert [ids.tolist() for ids in found] == [[1, 2, 3, 1], [0], []]
        assert encoder.find_id("</s>", "append_eod") == 4


def test_tokenizers_of_other_kinds() -> None:
    class Plain:
        eos_token_id = 9

        def encode(self, text: str) -> list[int]:
            return [len(text)]

        def convert_tokens_to_ids(self, token: str) -> int:
            return 8

    assert [ids.tolist() for ids in TextEncoder(Plain()).encode(["a", "bb"])] == [[1], [2]]
    assert TextEncoder(Plain()).find_id(True, "x") == 9
    assert TextEncoder(Plain()).find_id("</s>", "x") == 8
    assert TextEncoder(make_tokenizer()).encode(["b"])[0].tolist() == [2]
    assert TextEncoder(lambda text: np.array([3], np.uint16)).encode(["b"])[0].dtype == np.int64
    assert TextEncoder(lambda text: []).encode(["b"])[0].size == 0


def test_ids_that_users_give() -> None:
    encoder = TextEncoder(make_tokenizer())
    assert [encoder.find_id(number, "x") for number in (0, 5, np.int64(5))] == [0, 5, 5]
    for number in (-1, 6, 1 << 40, 1.0):
        with pytest.raises(ConfigError, match=r"^eod must be .* from 0 on, below 6, got .*; look"):
            encoder.find_id(number, "eod")  # type: ignore[arg-type]
    # Nobody knows the size, or it is less than the largest id.
    assert TextEncoder(lambda text: []).find_id(10**6, "x") == 10**6
    with pytest.raises(ConfigError, match=r"an id from 0 on, of the vocabulary, got -1; look it"):
        TextEncoder(lambda text: []).find_id(-1, "x")
    gaps = TextEncoder(Tokenizer(models.WordLevel({"[UNK]": 0, "a": 9}, unk_token="[UNK]")))
    assert gaps.find_id(9, "x") == 9
    with pytest.raises(ConfigError, match="below 2, got 8"):
        gaps.find_id(8, "x")


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is none at .*; nothing is downloaded: save it"):
        TextEncoder("meta-llama/Llama-2-7b")
    with pytest.raises(ConfigError, match="there is none at"):
        TextEncoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="must be a file of the tokenizers library"):
        TextEncoder(tmp_path)
    for found in (lambda text: text.split(), lambda text: 5, lambda text: [1.5]):
        with pytest.raises(ConfigError, match="a tokenizer must give a list of whole numbers"):
            TextEncoder(found).encode(["a b"])


def test_tokenizers_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="needs the tokenizers library; install tokenizers"):
        TextEncoder(tmp_path)
