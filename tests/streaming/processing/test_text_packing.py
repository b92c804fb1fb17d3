"""Texts become sequences of one length; nothing of them is lost, whatever the batches."""

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from zindex.errors import ConfigError, SourceError
from zindex.streaming.processing.text_encoder import TextEncoder
from zindex.streaming.processing.text_packing import TextJonslProcessFnBuilder, TextPacking


def read_numbers(text: str) -> list[int]:
    """Tokenise "3 4 5" as its numbers."""
    return [int(word) for word in text.split()]


def make_lines(lengths: list[int]) -> list[dict[str, Any]]:
    """Return lines whose tokens are 1, 2, 3, ... through all of them."""
    lines, first = [], 1
    for number, length in enumerate(lengths):
        text = " ".join(map(str, range(first, first + length)))
        lines.append({"text": text, "__url__": "a.jsonl", "__key__": str(number)})
        first += length
    return lines


def pack_naively(lines: list[dict[str, Any]], length: int, overlap: int) -> list[Any]:
    """Pack one line after the other, as upstream describes it."""
    held: list[int] = []
    packed = []
    for line in lines:
        held += read_numbers(line["text"])
        number = 0
        while len(held) > length:
            packed.append((held[: length + 1], f"{line['__key__']}@{number}"))
            held = held[length + 1 - overlap :]
            number += 1
    if len(held) > 1:
        again = sum(key.split("@")[0] == lines[-1]["__key__"] for _, key in packed)
        packed.append((held, f"{lines[-1]['__key__']}@{again}"))
    return packed


@given(
    st.lists(st.integers(0, 12), max_size=12),
    st.integers(1, 9),
    st.sampled_from([0, 1]),
    st.integers(1, 5),
)
def test_as_the_naive_reference(
    lengths: list[int], length: int, overlap: Any, batch_size: int
) -> None:
    lines = make_lines(lengths)
    packing = TextPacking(length, read_numbers, overlap=overlap, batch_size=batch_size, pad_id=-1)
    expected = pack_naively(lines, length, overlap)
    made = list(packing(iter(lines)))
    assert [sample["__key__"] for sample in made] == [key for _, key in expected]
    for sample, (tokens, _) in zip(made, expected, strict=True):
        filled = tokens + [-1] * (length + 1 - len(tokens))
        assert sample["tokens"].tolist() == filled[:-1]
        assert sample["labels"].tolist() == filled[1:]
        assert sample["loss_mask"].tolist() == [float(i < len(tokens) - 1) for i in range(length)]
        assert sample["position_ids"].tolist() == list(range(length))
        assert sample["__url__"] == "a.jsonl"
    keys = [sample["__key__"] for sample in made]
    assert len(set(keys)) == len(keys)
    if overlap:  # every token but the first is a label once
        counted = [x for s in made for x in s["labels"][s["loss_mask"] == 1].tolist()]
        assert counted == list(range(2, sum(lengths) + 1))


def test_dtypes_and_masks() -> None:
    [sample] = TextPacking(3, read_numbers, attention_mask=True, tail="drop")(make_lines([5]))
    assert sample["tokens"].dtype == sample["labels"].dtype == torch.int64
    assert sample["position_ids"].dtype == torch.int64
    assert sample["loss_mask"].dtype == torch.float32
    assert sample["attention_mask"].tolist() == [
        [[False, True, True], [False, False, True], [False, False, False]]
    ]
    sample["labels"][0] = 99
    assert sample["tokens"].tolist() == [1, 2, 3]


def test_upstream_names() -> None:
    builder = TextJonslProcessFnBuilder(max_sequence_length=2, tokenizer_name=read_numbers)
    made = list(builder(make_lines([7])))
    assert [sample["tokens"].tolist() for sample in made] == [[1, 2], [4, 5]]
    assert [sample["labels"].tolist() for sample in made] == [[2, 3], [5, 6]]
    assert [sample["__key__"] for sample in made] == ["0@0", "0@1"]
    assert made[0]["attention_mask"].shape == (1, 2, 2)
    plain = TextJonslProcessFnBuilder(2, read_numbers, attention_mask=False)
    assert "attention_mask" not in next(plain(make_lines([7])))


def test_the_end_of_documents() -> None:
    packing = TextPacking(4, read_numbers, append_eod=0, tail="drop")
    [sample] = packing([{"text": "5 6"}, {"text": b"7"}])
    assert sample["tokens"].tolist() == [5, 6, 0, 7]
    assert sample["labels"].tolist() == [6, 0, 7, 0]


def test_it_reads_no_further_than_a_batch() -> None:
    taken: list[str] = []

    def lines() -> Iterator[dict[str, Any]]:
        for line in make_lines([4] * 10):
            taken.append(line["__key__"])
            yield line

    made = TextPacking(2, read_numbers, batch_size=3)(lines())
    next(made)
    assert taken == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"__key__": "7", "__url__": "a"}, "sample '7' of a must have a text under 'text', it has"),
        ({"text": 5}, "must have a text under 'text', it has int; name the field that holds it"),
        ({"text": b"\xff"}, "must hold text in UTF-8"),
    ],
)
def test_damaged_samples(sample: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        list(TextPacking(2, read_numbers)([sample]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be a whole number from 1 on, got 0"),
        ({"sequence_length": True}, "sequence_length must be a whole number from 1 on, got True"),
        ({"batch_size": 1.5}, "batch_size must be a whole number from 1 on, got 1.5"),
        ({"overlap": 2}, "overlap must be 0 or 1 tokens, got 2"),
        ({"tail": "keep"}, "tail must be 'pad' or 'drop', got 'keep'"),
        ({"append_eod": True}, "append_eod needs an end of documents, which function does not"),
        ({"append_eod": "</s>"}, "append_eod needs the token '</s>', which function does not"),
        ({"tokenizer": 5}, "a tokenizer must be the path of a tokenizer.json, an object with"),
    ],
)
def test_refused_settings(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        TextPacking(**({"sequence_length": 2, "tokenizer": read_numbers} | settings))


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
    data = pickle.dumps(TextPacking(2, tmp_path, append_eod="</s>"))
    assert len(data) < 1000
    again = pickle.loads(data)
    (tmp_path / "tokenizer.json").unlink()
    made = list(again([{"text": "a b"}, {"text": "c"}]))
    assert [sample["tokens"].tolist() for sample in made] == [[1, 2], [3, 4]]


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
