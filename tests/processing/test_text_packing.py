"""Texts become sequences of one length without loss, for any batches."""

import pickle
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.text.test_text_encoder import make_tokenizer
from zindex.errors import ConfigError, SourceError
from zindex.processing.text_packing import TextJonslProcessFnBuilder, TextPacking


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
        ({"sequence_length": 0}, "sequence_length must be a whole number of at least 1, got 0"),
        (
            {"sequence_length": True},
            "sequence_length must be a whole number of at least 1, got True",
        ),
        ({"batch_size": 1.5}, "batch_size must be a whole number of at least 1, got 1.5"),
        ({"overlap": 2}, "overlap must be one of 0, 1, got 2"),
        ({"tail": "keep"}, "tail must be one of pad, drop_last, got 'keep'"),
        ({"append_eod": True}, "append_eod needs a named end-of-text token, function has none"),
        ({"append_eod": "</s>"}, "append_eod needs the token '</s>', function has none"),
        ({"documents": "apart"}, "documents must be one of ignore, mark, pack, got 'apart'"),
        ({"window": 1001}, "window must be at most 1,000 documents, got 1,001"),
        ({"long_documents": "cut"}, "must be 'split', 'truncate' or 'drop', got 'cut'"),
        ({"whole_nbytes": -1}, "whole_nbytes must be a whole number of at least 0, got -1"),
        ({"tokenizer": 5}, "a tokenizer must be the path of a tokenizer.json, an object with"),
    ],
)
def test_refused_settings(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        TextPacking(**({"sequence_length": 2, "tokenizer": read_numbers} | settings))


def test_a_packing_pickles_a_tokenizer_by_its_path(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    data = pickle.dumps(TextPacking(2, tmp_path, append_eod="</s>"))
    assert len(data) < 1000
    again = pickle.loads(data)
    (tmp_path / "tokenizer.json").unlink()
    made = list(again([{"text": "a b"}, {"text": "c"}]))
    assert [sample["tokens"].tolist() for sample in made] == [[1, 2], [3, 4]]


@given(
    st.lists(st.integers(0, 12), max_size=12),
    st.integers(1, 9),
    st.sampled_from([0, 1]),
    st.sampled_from(["mark", "pack"]),
)
def test_marked_documents(lengths: list[int], length: int, overlap: Any, documents: Any) -> None:
    lines = make_lines(lengths)
    owner = {token: line["__key__"] for line in lines for token in read_numbers(line["text"])}
    packing = TextPacking(length, read_numbers, overlap=overlap, documents=documents, pad_id=0)
    counted: list[int] = []
    for sample in packing(lines):
        tokens, labels = sample["tokens"].tolist(), sample["labels"].tolist()
        positions, numbers = sample["position_ids"].tolist(), sample["document_ids"].tolist()
        bounds = sample["cu_seqlens"].tolist()
        assert len(bounds) == (length + 1 if documents == "mark" else 258)
        assert sample["max_seqlen"] == max(stop - start for start, stop in pairwise(bounds))
        starts = sorted({0, *bounds} - {length})
        assert positions == [i - max(s for s in starts if s <= i) for i in range(length)]
        for i, (token, label) in enumerate(zip(tokens, labels, strict=True)):
            assert numbers[i] == (-1 if not token else sum(0 < s <= i for s in starts))
            same = bool(token and label) and owner[token] == owner[label]
            assert sample["loss_mask"][i] == float(same)
            if i and token and tokens[i - 1]:
                assert (numbers[i] == numbers[i - 1]) == (owner[token] == owner[tokens[i - 1]])
        counted += labels[: length if sample["loss_mask"][-1] else None]
        counted += tokens[:1]
    if documents == "pack" and not overlap:
        assert sorted({token for token in counted if token}) == list(range(1, sum(lengths) + 1))


def test_a_mask_ends_at_documents() -> None:
    lines = make_lines([2, 1])
    packing = TextPacking(3, read_numbers, attention_mask=True, documents="mark")
    [sample] = packing(lines)
    assert sample["attention_mask"].tolist() == [
        [[False, True, True], [False, False, True], [True, True, False]]
    ]


def test_default_sequences_have_no_fields_of_documents() -> None:
    [sample] = TextPacking(3, read_numbers)(make_lines([4]))
    assert [*sample] == ["tokens", "labels", "loss_mask", "position_ids", "__url__", "__key__"]
    assert (
        TextPacking(3, read_numbers).fingerprint()
        == TextPacking(3, read_numbers, window=5, max_documents=5).fingerprint()
    )
    assert (
        TextPacking(3, read_numbers, documents="pack").fingerprint()
        != TextPacking(3, read_numbers, documents="pack", window=5).fingerprint()
    )


def test_keys_of_packed_documents_are_those_of_the_first() -> None:
    packing = TextPacking(4, read_numbers, documents="pack")
    made = list(packing(make_lines([7, 3])))
    assert [sample["__key__"] for sample in made] == ["0@0", "0@1"]
    assert made[1]["tokens"].tolist() == [6, 7, 8, 9]
    assert made[1]["loss_mask"].tolist() == [1, 0, 1, 1]
