"""Batches as lists, stacked, or filled up; what is about the samples stays with them."""

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.streaming.tiny_sources import Items
from zindex.errors import ConfigError, PlanError
from zindex.processing.collate import PadCollate, mixed_collate, stack_collate
from zindex.streaming import JsonlIterableDataset, MergedDataset


def test_mixed() -> None:
    batch: list[dict[str, Any]] = [{"a": 1}, {"b": 2}]
    assert mixed_collate(batch) is batch
    assert batch == [{"a": 1}, {"b": 2}]
    assert mixed_collate(batch, possible_keys=["a", "c"]) is batch
    assert batch == [{"a": 1, "c": None}, {"b": 2, "a": None, "c": None}]
    with pytest.raises(ConfigError, match="samples of a mixed batch must be dicts, got int"):
        mixed_collate([{}, 5])  # type: ignore[list-item]


def make_sample(number: int, **more: Any) -> dict[str, Any]:
    return {
        "tokens": torch.tensor([number, number]),
        "array": np.array([number], np.int16),
        "weight": number / 2,
        "count": number,
        "text": str(number),
        "__key__": str(number),
        "__state__": {"x": number},
    } | more


def test_stacked() -> None:
    batch = stack_collate([make_sample(1), make_sample(2, __index__=5)])
    assert batch["tokens"].tolist() == [[1, 1], [2, 2]]
    assert batch["array"].tolist() == [[1], [2]]
    assert batch["array"].dtype == torch.int16
    assert batch["weight"].tolist() == [0.5, 1.0]
    assert batch["count"].tolist() == [1, 2]
    assert batch["text"] == ["1", "2"]
    assert batch["__key__"] == ["1", "2"]
    assert batch["__state__"] == [{"x": 1}, {"x": 2}]
    assert batch["__index__"] == [None, 5]


def test_states_of_customised_samples_become_one_list() -> None:
    batch = stack_collate(
        [{"__states__": [{"a": 1}, {"b": 2}]}, {"__state__": {"c": 3}}, {"__states__": []}]
    )
    assert batch == {"__states__": [{"a": 1}, {"b": 2}, {"c": 3}]}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([{"a": 1}, {}], "1 of 2 lack 'a'; use mixed_collate for samples of several kinds"),
        (
            [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}],
            "tensors under 'a' must be of one shape and dtype to be stacked, got (2,) torch.float32"
            ", (3,) torch.float32; fill them up by PadCollate",
        ),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(2).int()}], "(2,) torch.int32"),
    ],
)
def test_unlike_samples(batch: Any, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        stack_collate(batch)


def test_filled_up() -> None:
    collate = PadCollate(
        ["tokens", "boxes", "absent"],
        side={"tokens": "left"},
        pad_value={"tokens": 9},
        multiple_of=2,
    )
    batch = collate(
        [
            make_sample(1, tokens=torch.tensor([1, 2, 3]), boxes=[[1.0, 2.0]]),
            make_sample(2, tokens=torch.tensor([4]), boxes=np.zeros((3, 2))),
        ]
    )
    assert batch["tokens"].tolist() == [[9, 1, 2, 3], [9, 9, 9, 4]]
    assert batch["tokens_mask"].tolist() == [[False, True, True, True], [False, False, False, True]]
    assert batch["boxes"].shape == (2, 4, 2)
    assert batch["boxes_mask"].sum(1).tolist() == [1, 3]
    assert batch["boxes"][0].tolist() == [[1.0, 2.0], [0, 0], [0, 0], [0, 0]]
    assert batch["count"].tolist() == [1, 2]
    assert batch["__state__"] == [{"x": 1}, {"x": 2}]
    assert "absent_mask" not in batch
    # Batches of equal lengths have their mask too.
    assert collate([make_sample(1)])["tokens_mask"].tolist() == [[True, True]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": "tokens"}, "keys must be a list, got the text 'tokens'"),
        ({"side": "up"}, "side of 'a' must be one of right, left, got 'up'"),
        ({"side": {"b": "left"}}, "side must be of keys ['a'], got ['b']; add them to keys"),
        ({"multiple_of": 0}, "multiple_of must be a whole number of at least 1, got 0"),
    ],
)
def test_refused_settings(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        PadCollate(**({"keys": ["a"]} | settings))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([{"a": torch.zeros(2)}, {}], "a tensor under 'a' to fill up, one has NoneType"),
        ([{"a": torch.zeros(())}], "a tensor under 'a' to fill up, one has Tensor"),
        ([{"a": ["x"]}], "a tensor under 'a' to fill up, one has ndarray"),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(2, 1)}], "got (2,) torch.float32, (2, 1)"),
    ],
)
def test_fields_that_cannot_be_padded(batch: Any, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        PadCollate(["a"])(batch)


def keep_numbers(samples: Iterable[Any]) -> Iterator[Any]:
    return ({"i": sample["i"]} for sample in samples)


@pytest.mark.parametrize(("function", "num_workers"), [(None, 0), (None, 1), (keep_numbers, 0)])
def test_torch_default_collate_is_refused(function: Any, num_workers: int) -> None:
    stream = MergedDataset(
        [Items("a", 8, items=[{"i": i} for i in range(8)])], customized_yield_fn=function
    )
    loader = torch.utils.data.DataLoader(stream, batch_size=2, num_workers=num_workers)
    with pytest.raises(ConfigError, match="loses; pass collate_fn=mixed_collate"):
        next(iter(loader))


def test_torch_default_collate_is_refused_for_samples_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"i": 1}\n' * 8)
    source: Any = JsonlIterableDataset(tmp_path / "a.jsonl")
    source.name, source.percent = "a", 1
    batches = iter(torch.utils.data.DataLoader(MergedDataset([source]), batch_size=4))
    with pytest.raises(ConfigError, match="loses; pass collate_fn=mixed_collate"):
        next(batches)


def test_torch_default_collate_is_refused_before_it_compares_fields() -> None:
    stream = MergedDataset([Items("a", 2, items=[{"i": 0}, {"j": torch.zeros(2)}])])
    with pytest.raises(ConfigError, match="loses; pass collate_fn=mixed_collate"):
        next(iter(torch.utils.data.DataLoader(stream, batch_size=2)))


def test_torch_default_collate_of_other_dicts_is_unchanged() -> None:
    batch = [
        {"i": 1, "more": {"x": torch.ones(2)}, "both": [OrderedDict(s="a"), 0.5]},
        {"i": 2, "more": {"x": torch.zeros(2)}, "both": [OrderedDict(s="b"), 1.5]},
    ]
    found = torch.utils.data.default_collate(batch)
    assert found["i"].tolist() == [1, 2]
    assert found["more"]["x"].tolist() == [[1, 1], [0, 0]]
    assert found["both"][0] == OrderedDict(s=["a", "b"])
    assert found["both"][1].tolist() == [0.5, 1.5]
