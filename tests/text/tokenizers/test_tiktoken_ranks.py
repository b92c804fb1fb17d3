"""tiktoken's vocabularies: Megatron's list and plain ranks."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.text.tokenizers.vocabularies import save_rank_list, save_ranks
from zindex.errors import ConfigError
from zindex.text.tokenizers.tiktoken_ranks import TikTokenTokenizer


def test_megatron_list(tmp_path: Path) -> None:
    file, count = save_rank_list(tmp_path)
    special = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>", "<x>"]
    settings: Any = {"num_special_tokens": 10, "vocab_size": count + 10}
    tokenizer = TikTokenTokenizer(file, special, **settings)
    assert tokenizer.text_to_ids("the</s>") == [10 + 257, 2]
    ids = tokenizer.text_to_ids("the<SPECIAL_9>")
    assert [tokenizer.id_to_token(number) for number in ids] == ["the", "<SPECIAL_9>"]
    assert tokenizer.ids_to_text(tokenizer.text_to_ids("\u4e2d \u00e9")) == "\u4e2d \u00e9"
    assert tokenizer.special_id("pad_token") == 4
    assert tokenizer.eod == 2
    assert tokenizer.tokens_to_ids(tokenizer.additional_special_tokens) == [3, 4, 5, 6, 7]
    assert len(tokenizer.vocab) == tokenizer.vocab_size == count + 10
    assert list(tokenizer.inv_vocab) == list(range(count + 10))
    assert tokenizer.id_to_token(10 + 0xFF) == "\\xff"
    assert tokenizer.id_to_token(10**6) is None
    assert tokenizer.offsets(tokenizer.text_to_ids("a the"), "a the") == [0, 1]
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.text_to_ids("a the</s>") == tokenizer.text_to_ids("a the</s>")
    assert again.identity() == tokenizer.identity()


def test_plain_ranks(tmp_path: Path) -> None:
    file = save_ranks(tmp_path)
    with pytest.raises(ConfigError, match="must come with a pattern, for ranks do not say how tex"):
        TikTokenTokenizer(file)
    tokenizer = TikTokenTokenizer(file, ["<|endoftext|>"], pattern="gpt2")
    assert tokenizer.text_to_ids("the<|endoftext|>") == [257, 263]
    assert (tokenizer.eod, tokenizer.vocab_size) == (263, 264)
    assert TikTokenTokenizer(save_ranks(tmp_path, "cl100k_base.tiktoken")).text_to_ids("the") == [
        257
    ]
    assert TikTokenTokenizer(file, pattern=r"\w|\W").text_to_ids("th") == [116, 104]
    with pytest.raises(ConfigError, match=r"an expression that the library takes, got '\[': "):
        TikTokenTokenizer(file, pattern="[")


def test_damaged_vocabularies(tmp_path: Path) -> None:
    file, count = save_rank_list(tmp_path)
    settings: Any = {"num_special_tokens": 10, "vocab_size": count + 10}
    with pytest.raises(ConfigError, match=r"must have 262,134 tokens .*, it has 263; give its voc"):
        TikTokenTokenizer(file, num_special_tokens=10, vocab_size=1 << 18)
    with pytest.raises(ConfigError, match="must be at most 10 different texts with <unk>, <s>"):
        TikTokenTokenizer(file, ["<s>"], **settings)
    rows = json.loads(file.read_text())
    rows[5], rows[6] = rows[6], rows[5]
    file.write_text(json.dumps(rows))
    with pytest.raises(ConfigError, match=r"at its rank, entry 5 is b'\\x06' of rank 6; save"):
        TikTokenTokenizer(file, **settings)
    file.write_text('[{"rank": 0}]')
    with pytest.raises(
        ConfigError, match=r"a JSON list of rank, token_bytes and token_str: KeyErr"
    ):
        TikTokenTokenizer(file, **settings)
    plain = save_ranks(tmp_path)
    plain.write_text("YQ== 0\nYg==\n")
    with pytest.raises(ConfigError, match="line 2 is b'Yg=='; save the tokenizer again"):
        TikTokenTokenizer(plain, pattern="gpt2")
    plain.write_text("YQ== 0\nYg== 0\n")
    with pytest.raises(ConfigError, match="must have ranks, each once, it has 2 tokens; save"):
        TikTokenTokenizer(plain, pattern="gpt2")
