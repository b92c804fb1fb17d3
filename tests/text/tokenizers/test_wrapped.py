"""Tokenizer objects of other libraries give the ids, texts and special tokens of their files."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.text.small_tokenizer import make_tokenizer, save_tokenizer
from tests.text.tokenizers.vocabularies import save_ranks, save_sentence_pieces
from zindex.errors import ConfigError
from zindex.text.text_encoder import TextEncoder
from zindex.text.tokenizers.base import find_token
from zindex.text.tokenizers.null_tokenizer import NullTokenizer
from zindex.text.tokenizers.open_tokenizer import as_tokenizer, open_text_tokenizer
from zindex.text.tokenizers.text_tokenizer import TextTokenizer
from zindex.text.tokenizers.wrapped import wrap_tokenizer


class Slow:
    """A slow tokenizer with the methods that transformers documents."""

    special_tokens_map = {"eos_token": "<eod>", "pad_token": "<pad>"}  # noqa: RUF012
    all_special_tokens = ["<eod>", "<pad>", "<tool>"]  # noqa: RUF012
    chat_template = "{{ messages }}"

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1, "<eod>": 2, "<pad>": 3, "<tool>": 4}

    def __len__(self) -> int:
        return 5

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.get_vocab()[token]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [self.get_vocab()[letter] for letter in text] + [2] * add_special_tokens

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        texts = list(self.get_vocab())
        return "".join(texts[i] for i in ids if i < 2 or not skip_special_tokens)


class Fast(Slow):
    """A fast one: it holds a ``tokenizers.Tokenizer``."""

    all_special_tokens = ["<eod>", "<|im_end|>"]  # noqa: RUF012
    special_tokens_map = {"eos_token": "<eod>"}  # noqa: RUF012

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return make_tokenizer()


def make_encoding() -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([number]): number for number in range(256)} | {b"th": 256, b"the": 257}
    special = {"<|endoftext|>": 258, "<|late|>": 265}
    return tiktoken.Encoding(
        "own", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special
    )


def make_processor(folder: Path) -> Any:
    library = pytest.importorskip("sentencepiece")
    return library.SentencePieceProcessor(model_file=str(save_sentence_pieces(folder)))


def check_the_same(own: TextTokenizer, text: str) -> None:
    """Check that a pickled copy, and the kept files, are the same tokenizer."""
    ids = own.tokenize(text)
    copy = pickle.loads(pickle.dumps(own))
    for other in (copy, *([] if own.kept_files() is None else [reopen(own)])):
        assert other.tokenize(text) == ids
        assert other.detokenize(ids) == own.detokenize(ids)
        assert (other.vocab, other.vocab_size) == (own.vocab, own.vocab_size)
        assert other.special_tokens_dict == own.special_tokens_dict
        assert other.chat_template == own.chat_template
    assert copy.identity() == own.identity() == own.unique_identifiers["identity"]


def reopen(own: TextTokenizer) -> TextTokenizer:
    """Return the tokenizer of the files that a corpus would keep."""
    import tempfile

    kept = own.kept_files()
    assert kept is not None
    folder = Path(tempfile.mkdtemp())
    for name, content in kept.files.items():
        (folder / name).write_bytes(content)
    options = json.loads(json.dumps(kept.options))
    return open_text_tokenizer(folder / kept.path, own.library, **options)


def test_a_tokenizer_of_tokenizers() -> None:
    given = make_tokenizer()
    given.add_special_tokens(["<|endoftext|>"])
    given.enable_truncation(3)
    own = as_tokenizer(given)
    assert own.vocab_size == given.get_vocab_size()
    assert own.eod == given.token_to_id("<|endoftext|>")
    assert len(own.tokenize("four")) == 4
    assert given.truncation is not None  # it is unchanged
    check_the_same(own, "a text")
    own.add_special_tokens({"pad_token": "<late>"})
    assert pickle.loads(pickle.dumps(own)).pad == own.pad == given.get_vocab_size()


def test_a_tokenizer_without_a_known_end_has_none() -> None:
    assert find_token(as_tokenizer(make_tokenizer()), "eod") is None


def test_fast_tokenizers_of_transformers() -> None:
    own = as_tokenizer(Fast())
    assert own.eod == make_tokenizer().token_to_id("<eod>")
    assert (own.vocab_size, own.chat_template) == (260, "{{ messages }}")
    assert own.additional_special_tokens == ["<|im_end|>"]
    check_the_same(own, "a text")
    [ids] = TextEncoder(Fast()).encode(["ab"], special_tokens=False)
    assert ids.tolist() == make_tokenizer().encode("ab", add_special_tokens=False).ids


def test_slow_tokenizers_of_transformers() -> None:
    own = as_tokenizer(Slow())
    assert (own.eod, own.pad, own.vocab_size) == (2, 3, 5)
    assert (own.tokenize("ab"), own.detokenize([0, 1, 2])) == ([0, 1], "ab")
    assert own.encode_batch(["a"]) == [[0, 2]]
    assert (own.id_to_token(4), own.token_to_id("no")) == ("<tool>", None)
    assert own.kept_files() is None
    check_the_same(own, "ba")
    assert TextEncoder(Slow()).identity() == own.identity()
    assert TextEncoder(Slow()).find_end(True, "x") == 2


def test_an_encoding_of_tiktoken() -> None:
    own = as_tokenizer(make_encoding())
    assert (own.eod, own.vocab_size, own.tokenize("the")) == (258, 266, [257])
    check_the_same(own, "the th \u4e2d")
    encoder = TextEncoder(make_encoding())
    assert encoder.vocab_size() == 266
    [ids] = encoder.encode(["the"], special_tokens=False)
    assert ids.tolist() == [257]
    assert encoder.find_end(True, "x") == 258


def test_a_plain_file_of_ranks_takes_special_tokens_with_ids(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    given = {"<|endoftext|>": 300}
    own = open_text_tokenizer(save_ranks(tmp_path), pattern="v1", special_tokens=given)
    assert (own.eod, own.vocab_size) == (300, 301)


def test_a_processor_of_sentencepiece(tmp_path: Path) -> None:
    given = make_processor(tmp_path)
    own = as_tokenizer(given)
    assert (own.eod, own.vocab_size) == (given.eos_id(), given.get_piece_size())
    assert own.tokenize("the fox") == given.encode("the fox")
    check_the_same(own, "the fox")
    assert TextEncoder(given).find_end(True, "x") == given.eos_id()
    assert TextEncoder(given).vocab_size() == given.get_piece_size()


def test_paths_and_tokenizers_of_megatron(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer")
    own = as_tokenizer(folder)
    assert own.tokenize("ab") == as_tokenizer(str(folder / "tokenizer.json")).tokenize("ab")
    null = NullTokenizer(5)
    assert as_tokenizer(null) is null


@pytest.mark.parametrize("given", [len, 5, NullTokenizer, object()])
def test_what_is_no_tokenizer_is_named(given: Any) -> None:
    assert wrap_tokenizer(given) is None
    with pytest.raises(ConfigError, match="of tokenizers, transformers, tiktoken or sentencepiece"):
        as_tokenizer(given)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is none at .*none.json; nothing is downloaded"):
        as_tokenizer(tmp_path / "none.json")
