"""Tokenizers of the tokenizers library: its files, byte pairs and WordPiece."""

import json
import pickle
from pathlib import Path

import pytest

from tests.text.small_tokenizer import save_tokenizer
from tests.text.tokenizers.vocabularies import PIECES, save_pieces
from zindex.errors import ConfigError
from zindex.text.tokenizers.rust_tokenizers import (
    BytePairTokenizer,
    HuggingFaceTokenizer,
    WordPieceTokenizer,
)


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
    assert tokenizer.ids_to_full_text(tokenizer.text_to_ids("a b<eod>")) == "a b<eod>"
    assert len(tokenizer.text_to_ids("a")) == 1


def test_arguments_take_precedence_over_the_folder(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = HuggingFaceTokenizer(
        tmp_path / "tokenizer.json",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        include_special_tokens=True,
    )
    assert tokenizer.special_tokens_map["eos_token"] == "<|im_end|>"
    assert "sep_token" not in tokenizer.special_tokens_map
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


def take_tokens(tokenizer: WordPieceTokenizer, text: str) -> list[str | None]:
    return [tokenizer.id_to_token(number) for number in tokenizer.text_to_ids(text)]


def test_words_become_pieces(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path))
    assert take_tokens(tokenizer, "Caf\u00e9s, UNABLE a\u4e2dx") == [
        *("cafe", "##s", ",", "un", "##able", "a", "\u4e2d", "[UNK]")
    ]
    assert tokenizer.text_to_ids("un[MASK]able") == [5, 4, 1]
    assert tokenizer.encode_batch(["a", ""]) == [[9], []]
    assert tokenizer.ids_to_text([2, 5, 6, 3]) == "[CLS] unable [SEP]"
    assert tokenizer.offsets(tokenizer.text_to_ids("un,  unable"), "un,  unable") == [0, 2, 5, 7]


def test_cased(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path), lower_case=False)
    assert take_tokens(tokenizer, "Caf\u00e9 cafe A") == ["Caf\u00e9", "cafe", "[UNK]"]


def test_ends_and_sentinels_get_the_next_ids(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path), vocab_extra_ids=2)
    size = len(PIECES)
    assert tokenizer.vocab_size == len(tokenizer) == size + 4
    assert tokenizer.special_id("bos_token") == size
    assert tokenizer.special_id("eos_token") == tokenizer.eod == size + 1
    assert tokenizer.tokens_to_ids(tokenizer.additional_special_tokens) == [size + 2, size + 3]
    assert list(tokenizer.inv_vocab) == list(range(size + 4))
    assert list(tokenizer.vocab) == [*PIECES, "[BOS]", "[EOS]", "<extra_id_0>", "<extra_id_1>"]
    assert tokenizer.text_to_ids("a<extra_id_1>") == [9, size + 3]
    assert tokenizer.special_id("cls_token") == 2


def test_it_pickles_with_what_was_added(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path), lower_case=False, vocab_extra_ids=1)
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokenizer.add_special_tokens(["<new>"])
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.vocab == tokenizer.vocab
    assert again.inv_vocab[again.eod] == "<end>"
    assert again.additional_special_tokens == ["<extra_id_0>", "<new>"]
    assert again.identity() == tokenizer.identity()
    assert WordPieceTokenizer(tmp_path / "vocab.txt").identity() != tokenizer.identity()


def test_bad_vocabularies_are_refused(tmp_path: Path) -> None:
    file = save_pieces(tmp_path)
    file.write_text("\n".join(["[PAD]", "a", "a"]))
    with pytest.raises(ConfigError, match="each piece once, 'a' is in lines 2 and 3; remove"):
        WordPieceTokenizer(file)
    file.write_text("\n".join(["[PAD]", "a"]))
    with pytest.raises(ConfigError, match=r"there is no \[UNK\]; is it the vocab.txt"):
        WordPieceTokenizer(file)
    with pytest.raises(ConfigError, match="must be a file, there is none at"):
        WordPieceTokenizer(tmp_path / "none.txt")
