"""Tokenizers of any kind give ids; those of files are pickled by their paths."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from tests.text import small_tokenizer
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


def test_functions_of_a_script_have_one_identity_in_all_processes() -> None:
    def split(text: str) -> list[int]:
        return []

    split.__module__ = "__main__"
    before = TextEncoder(split).identity()
    split.__module__ = "__mp_main__"  # in a spawned loader worker
    assert TextEncoder(split).identity() == before == f"__main__.{split.__qualname__}"


def test_ids_that_users_give() -> None:
    encoder = TextEncoder(make_tokenizer())
    assert [encoder.find_id(number, "x") for number in (0, 5, np.int64(5))] == [0, 5, 5]
    for number in (-1, 6, 1 << 40, 1.0):
        with pytest.raises(ConfigError, match=r"^eod must be .* from 0 on, below 6, got .*; look"):
            encoder.find_id(number, "eod")  # type: ignore[arg-type]
    # The size is unknown, or less than the largest id.
    assert TextEncoder(lambda text: []).find_id(10**6, "x") == 10**6
    with pytest.raises(ConfigError, match=r"an id from 0 on, of the vocabulary, got -1; look it"):
        TextEncoder(lambda text: []).find_id(-1, "x")
    gaps = TextEncoder(Tokenizer(models.WordLevel({"[UNK]": 0, "a": 9}, unk_token="[UNK]")))
    assert gaps.find_id(9, "x") == 9
    with pytest.raises(ConfigError, match="below 2, got 8"):
        gaps.find_id(8, "x")


def test_invalid_tokenizers(tmp_path: Path) -> None:
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
    with pytest.raises(
        ConfigError, match="needs the library tokenizers, which is not installed; inst"
    ):
        TextEncoder(tmp_path)


TEXTS = ["one two three\nfour", "two one\n\nthree", "four four"]


def train(kind: str) -> Tokenizer:
    """Return a small tokenizer of a kind that is common."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    alphabet = ["\n", " ", "▁"]
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        space = kind == "bytes with a blank"
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet,
        special_tokens=["<s>", "<unk>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return tokenizer


@pytest.mark.parametrize("kind", ["bytes", "bytes with a blank", "metaspace"])
def test_joined_parts_are_the_text(kind: str) -> None:
    tokenizer = train(kind)
    encoder = TextEncoder(tokenizer)
    parts = ["one two", " three\n", "four", "two"]
    ids = encoder.encode_parts(parts, [False, True, True, True])
    joined = np.concatenate(ids).tolist()
    assert tokenizer.decode(joined).strip() == "".join(parts)
    # The first part is encoded as a model reads it, with nothing before it.
    assert ids[0].tolist() == tokenizer.encode("one two", add_special_tokens=False).ids
    assert 0 not in joined
    assert encoder.encode_parts([], []) == []


def test_a_lead_that_merges_with_the_text_is_not_used() -> None:
    tokenizer = train("metaspace")
    encoder = TextEncoder(tokenizer)
    assert encoder._lead is not None
    encoder._lead = encoder._lead + 1  # a lead that is never found again
    [alone] = encoder.encode_parts(["two"], [True])
    assert alone.tolist() == tokenizer.encode("two", add_special_tokens=False).ids


def test_tokenizers_that_cannot_decode() -> None:
    def count(text: str) -> list[int]:
        return [len(text)]

    encoder = TextEncoder(count)
    assert [ids.tolist() for ids in encoder.encode_parts(["ab", "c"], [False, True])] == [[2], [1]]


def test_parts_get_no_special_tokens() -> None:
    class Spied:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1, 7] if add_special_tokens else [7]

    class Old:
        def encode(self, text: str) -> list[int]:
            return [8]

    for found, ids in ((Spied(), [7]), (Old(), [8])):
        encoder: Any = TextEncoder(found)
        assert encoder.encode_parts(["x"], [False])[0].tolist() == ids
    assert TextEncoder(Spied()).encode(["x"])[0].tolist() == [1, 7]


def test_tokens_that_a_tokenizer_adds(tmp_path: Path) -> None:
    encoder = TextEncoder(small_tokenizer.save_tokenizer(tmp_path))
    assert encoder.find_template() == ([259], [])
    assert encoder.find_begin(True, "begin") == 259
    assert encoder.find_begin("<eod>", "begin") == 258
    assert encoder.find_begin(0, "begin") == 0
    assert encoder.find_begin(False, "begin") is None
    around = small_tokenizer.make_tokenizer()
    around.post_processor = processors.TemplateProcessing(
        "<bod> <bod> $A <eod>", None, [("<bod>", 259), ("<eod>", 258)]
    )
    assert TextEncoder(around).find_template() == ([259, 259], [258])
    assert TextEncoder(lambda text: [int(text)]).find_template() == ([], [])
    with pytest.raises(ConfigError, match="begin needs the bos_token of the tokenizer, which nam"):
        TextEncoder(around).find_begin(True, "begin")


@pytest.mark.parametrize("kind", ["bytes", "bytes with a blank", "metaspace", "tiktoken"])
@pytest.mark.parametrize("follows", [False, True])
def test_spans_do_not_change_the_ids(kind: str, follows: bool) -> None:
    encoder = TextEncoder(make_encoding() if kind == "tiktoken" else train(kind))
    text = "one two three\n\nfour two"
    [whole] = encoder.encode_parts([text], [follows])
    for start, stop in combinations(range(len(text) + 1), 2):
        [(ids, mask)] = encoder.encode_spans([text], [follows], [[(start, stop)]])
        assert ids.tolist() == whole.tolist()
        assert mask.any()
        if kind == "bytes":
            places = train(kind).encode(text, add_special_tokens=False).offsets
            assert mask.tolist() == [last > start and first < stop for first, last in places]
    several = encoder.encode_spans(["a b", "", text], [follows] * 3, [[(0, 1), (2, 3)], [], []])
    assert [mask.any() for _, mask in several] == [True, False, False]


def test_a_token_across_a_border_is_inside() -> None:
    encoder = TextEncoder(make_encoding())
    [(ids, mask)] = encoder.encode_spans(["a\n\n\nb"], [False], [[(2, 4)]])
    assert [ids.tolist(), mask.tolist()] == [[97, 256, 10, 98], [False, True, True, False]]
    # All tokens of the bytes of a character.
    [(ids, mask)] = encoder.encode_spans(["aéb"], [False], [[(1, 2)]])
    assert [ids.tolist(), mask.tolist()] == [[97, 195, 169, 98], [False, True, True, False]]


def test_without_offsets_a_text_is_encoded_in_pieces() -> None:
    def count(text: str) -> list[int]:
        return [len(text)] if text else []

    found = TextEncoder(count).encode_spans(["abcde", "", "abc"], [False] * 3, [[(1, 3)], [], []])
    assert [ids.tolist() for ids, _ in found] == [[1, 2, 2], [], [3]]
    assert [mask.tolist() for _, mask in found] == [[False, True, False], [], [False]]


def make_encoding() -> tiktoken.Encoding:
    """Bytes, and two line feeds as one token."""
    ranks = {bytes([number]): number for number in range(256)} | {b"\n\n": 256}
    return tiktoken.Encoding("bytes", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={})
