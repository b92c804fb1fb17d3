"""SentencePiece models: pieces, special tokens, sentinels."""

import pickle
from pathlib import Path

import pytest

from tests.text.tokenizers.vocabularies import save_sentence_pieces
from zindex.errors import ConfigError
from zindex.text.tokenizers.sentence_pieces import SentencePieceTokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sentence_pieces(tmp_path_factory.mktemp("model"))


def test_texts_and_ids(model: Path) -> None:
    tokenizer = SentencePieceTokenizer(model)
    ids = tokenizer.text_to_ids("the quick fox")
    assert tokenizer.ids_to_text(ids) == "the quick fox"
    tokens = [tokenizer.id_to_token(number) for number in ids]
    assert str(tokens[0]).startswith("\u2581")
    assert tokenizer.tokens_to_ids(map(str, tokens)) == ids
    assert tokenizer.vocab_size == len(tokenizer.vocab) == 45
    assert tokenizer.special_tokens_map == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    assert (tokenizer.eod, tokenizer.special_id("pad_token")) == (2, 3)
    assert tokenizer.token_to_id("no such piece") is None
    assert tokenizer.token_to_id("<unk>") == 0
    assert tokenizer.id_to_token(45) is None


def test_special_tokens_are_found_in_texts(model: Path) -> None:
    tokenizer = SentencePieceTokenizer(model, {"mask_token": "<M>"}, vocab_extra_ids=2)
    assert tokenizer.vocab_size == 48
    assert tokenizer.special_id("mask_token") == 45
    assert tokenizer.additional_special_tokens == ["<extra_id_0>", "<extra_id_1>"]
    ids = tokenizer.text_to_ids("the<M>fox<extra_id_1>")
    assert [number for number in ids if number >= 45] == [45, 47]
    assert tokenizer.ids_to_text(ids) == "the <M> fox <extra_id_1>"
    assert tokenizer.ids_to_text([1, *tokenizer.text_to_ids("the"), 2]) == "the"
    full = tokenizer.ids_to_full_text([1, *tokenizer.text_to_ids("the"), 2, 45, 0])
    assert full == "<s>the</s><M><unk>"
    assert tokenizer.inv_vocab[47] == tokenizer.id_to_token(47) == "<extra_id_1>"
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.text_to_ids("the<M>fox<extra_id_1>") == ids
    # One that the model has keeps its id.
    assert SentencePieceTokenizer(model, ["</s>"]).text_to_ids("the</s>")[-1] == 2


def test_invalid_models(tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(b"\0nothing")
    with pytest.raises(ConfigError, match=r"must be a SentencePiece model: .*; save the tokenizer"):
        SentencePieceTokenizer(tmp_path / "x.model")
