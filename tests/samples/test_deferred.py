"""Dicts that fill themselves, and the way of a batch from a loader worker."""

import copy
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch

from tests.datasets.test_gpt_dataset import open_dataset
from zindex.loading.collate import collate
from zindex.samples.batch import BatchTensors, SampleBatch
from zindex.samples.deferred import defer

LENGTHS = [3, 5, 2, 7, 0, 4, 6, 1, 9, 0, 8, 13]
ITEMS = {"a": 1, "b": 2}


class Named(dict[str, int]):
    """Any dict class."""


Deferred = defer(Named)


USES: dict[str, Callable[[Any], Any]] = {
    **{use.__name__: use for use in (len, list, dict, repr, bool, copy.copy, copy.deepcopy)},
    "unpack": lambda items: {**items},
    "or": lambda items: items | {"c": 3},
    "or it": lambda items: {"c": 3} | items,
    "equal": lambda items: items == ITEMS,
    "in": lambda items: "a" in items,
    "take": lambda items: items["b"],
    "get": lambda items: items.get("b"),
    "values": lambda items: list(items.values()),
    "iterate": lambda items: [(name, items[name]) for name in items],
    "pickle": lambda items: pickle.loads(pickle.dumps(items)),
    "arguments": lambda items: (lambda **named: named)(**items),
    "pop": lambda items: items.pop("a", None),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_use_finds_the_items(use: Callable[[Any], Any]) -> None:
    calls = []

    def make() -> dict[str, int]:
        calls.append(1)
        return dict(ITEMS)

    items, filled = Deferred(make), Named(ITEMS)
    assert isinstance(items, Named)
    assert not calls
    assert use(items) == use(filled)
    assert (type(items), items) == (Named, filled)
    assert calls == [1]


@pytest.fixture
def _in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())


@pytest.mark.usefixtures("_in_worker")
@pytest.mark.parametrize("collate_fn", [collate, torch.utils.data.default_collate])
@pytest.mark.parametrize("is_used", [False, True])
def test_only_the_text_of_a_batch_travels(
    write_corpus: Any, collate_fn: Any, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(write_corpus(LENGTHS), 40)
    batch = dataset.__getitems__([1, 5, None, 2])
    assert isinstance(batch, SampleBatch)
    sent = collate_fn(batch)
    if is_used:
        sent["loss_mask"][0, 0] = 5.0
    content = bytes(ForkingPickler.dumps(sent))
    assert type(sent) is BatchTensors or not is_used
    monkeypatch.undo()
    got = pickle.loads(content)
    expected = collate_fn([dataset[i] for i in (1, 5, None, 2)])
    if is_used:
        expected["loss_mask"][0, 0] = 5.0
    assert type(got) is BatchTensors
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name
        is_one = name == "attention_mask"  # for all samples, also by torch's function
        assert got[name].is_contiguous() or is_one or collate_fn is collate
    size = np.dtype("int64").itemsize * 4 * 2 * dataset.config.sequence_length
    assert is_used or len(content) < 2000 + size


@pytest.mark.usefixtures("_in_worker")
def test_items_of_a_worker_are_those_of_the_dataset(write_corpus: Any) -> None:
    dataset = open_dataset(write_corpus(LENGTHS), 40)
    batch = dataset.__getitems__([1, 5, 2])
    for item, position in zip(batch, (1, 5, 2), strict=True):
        expected = dataset[position]
        assert list(item) == list(expected)
        assert all(torch.equal(item[name], tensor) for name, tensor in expected.items())
    stacked = torch.utils.data.default_collate(list(batch))
    assert torch.equal(stacked["tokens"], batch.tensors["tokens"])
