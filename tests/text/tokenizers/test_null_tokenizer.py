"""Ids written as text, and bytes."""

import pickle

import pytest

from zindex.errors import ConfigError
from zindex.text.tokenizers.null_tokenizer import ByteLevelTokenizer, NullTokenizer


def test_numbers() -> None:
    tokenizer = NullTokenizer(10)
    assert tokenizer.encode_batch(["1 10", ""]) == [[1, 10], []]
    assert tokenizer.ids_to_text([1, 10]) == "1 10"
    assert tokenizer.offsets([1, 10, 2], "1 10 2") == [0, 2, 5]
    assert list(tokenizer.vocab.items())[-1] == ("10", 10)
    assert tokenizer.special_id("mask_token") == -1
    assert tokenizer.special_id("pad_token") is None
    assert pickle.loads(pickle.dumps(tokenizer)).vocab_size == 11
    for text in ("1 x", "11", "-1", "\u0663"):
        with pytest.raises(ConfigError, match="must be ids from 0 to 10 with blanks between, got"):
            tokenizer.text_to_ids(text)
    with pytest.raises(ConfigError, match="vocab_size of a NullTokenizer must be at least 1, got"):
        NullTokenizer(0)


def test_bytes() -> None:
    tokenizer = ByteLevelTokenizer(["<a>", "<b>"], vocab_size=300)
    assert tokenizer.vocab_size == 302
    assert tokenizer.text_to_ids("h\u00e9") == [104, 195, 169]
    assert tokenizer.ids_to_text([104, 195, 169, 301, 32]) == "h\u00e9"
    assert tokenizer.ids_to_full_text([104, 195, 169, 300, 32, 301]) == "h\u00e9<b><a>"
    assert tokenizer.tokens_to_ids(["<a>", "<b>", "h"]) == [301, 300, 104]
    assert [tokenizer.id_to_token(number) for number in (300, 104)] == ["<b>", "h"]
    assert tokenizer.offsets([104, 195, 169], "h\u00e9") == [0, 1, 1]
    assert (tokenizer.eod, tokenizer.special_id("pad_token")) == (0, 1)
    assert list(tokenizer.vocab)[-2:] == ["<b>", "<a>"]
    assert pickle.loads(pickle.dumps(tokenizer)).vocab == tokenizer.vocab
    with pytest.raises(ConfigError, match="at least 256, for every byte, got 10; raise it"):
        ByteLevelTokenizer(vocab_size=10)
