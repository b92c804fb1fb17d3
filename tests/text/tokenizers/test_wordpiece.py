"""WordPiece: words, cases, special tokens, sentinels."""

import pickle
from pathlib import Path

import pytest

from tests.text.tokenizers.vocabularies import PIECES, save_pieces
from zindex.errors import ConfigError
from zindex.text.tokenizers.wordpiece import WordPieceTokenizer


def test_words_become_pieces(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path))
    assert tokenizer.text_to_tokens("Caf\u00e9s, UNABLE a\u4e2dx") == [
        *("cafe", "##s", ",", "un", "##able", "a", "\u4e2d", "[UNK]")
    ]
    assert tokenizer.text_to_ids("un[MASK]able") == [5, 4, 1]
    assert tokenizer.encode_batch(["a", ""]) == [[9], []]
    assert tokenizer.ids_to_text([2, 5, 6, 3]) == "[CLS] unable [SEP]"
    assert tokenizer.tokens_to_text(["un", "##able"]) == "unable"
    assert tokenizer.offsets(tokenizer.text_to_ids("un,  unable"), "un,  unable") == [0, 2, 5, 7]


def test_cased(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path), lower_case=False)
    assert tokenizer.text_to_tokens("Caf\u00e9 cafe A") == ["Caf\u00e9", "cafe", "[UNK]"]


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
