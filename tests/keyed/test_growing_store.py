"""Generations as keyed stores: the same records as a store written at once."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.growing.rollouts import grow, rollout
from zindex.errors import SourceError, StoreNotFoundError
from zindex.growing.compaction import compact
from zindex.growing.eviction import evict, find_unused, remove_unused
from zindex.keyed import DatasetFactory, StoreFactory, detect_format, save_bin
from zindex.keyed.columns import read_columns
from zindex.keyed.file_values import CopySpans
from zindex.keyed.growing_store import GrowingStore, open_growing

SIZES = (3, 1, 4, 2, 6)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    first = 0
    for version, size in enumerate(SIZES):
        grow(tmp_path / "store", range(first, first + size), version)
        first += size
    return tmp_path / "store"


def load(path: Path, **options: Any) -> Any:
    return DatasetFactory.load("grpo", path, 1, **options)


def write_at_once(folder: Path, numbers: list[int]) -> Path:
    records = [rollout(number) for number in numbers]
    groups = {
        "prompts": [np.array(item["prompts"], "int32") for item in records],
        "rewards": [np.array(item["rewards"], "float32") for item in records],
    }
    for key, dtype in (("responses", "int32"), ("masks", "bool"), ("logprobs", "float32")):
        groups[key] = [[np.array(part, dtype) for part in item[key]] for item in records]
    save_bin(folder, groups)
    return folder


def compare(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for numbers in ([*range(len(found))], [5, 0, 11, 5, 7]):
        items = found.collate(found.__getitems__(numbers))
        wanted = expected.collate(expected.__getitems__(numbers))
        assert items.keys() - {"policy_version"} == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(items[name], wanted[name])


@pytest.mark.parametrize("is_compacted", [False, True])
def test_samples_equal_those_of_a_store_written_at_once(
    store: Path, tmp_path: Path, is_compacted: bool
) -> None:
    expected = load(write_at_once(tmp_path / "bin", list(range(16))))
    if is_compacted:
        assert compact(store, min_count=2, target_nbytes=1200) > 0
    assert detect_format(store) == "growing"
    found = load(store)
    compare(found, expected)
    compare(pickle.loads(pickle.dumps(found)), expected)
    versions = found.collate(found.__getitems__(range(16)))["policy_version"]
    assert versions.tolist() == [v for v, size in enumerate(SIZES) for _ in range(size)]


def test_windows_of_a_generation(tmp_path: Path) -> None:
    from zindex.growing.writer import append

    for first in (0, 10, 20):
        record = {"sequence": [*range(first, first + 10)], "loss_mask": [1] * 10}
        append(tmp_path / "s", [record])
    windows = DatasetFactory.load("sft", tmp_path / "s", 4)
    assert windows[2]["input_ids"].tolist() == [8, 9, 10, 11]
    assert windows[2]["target_ids"].tolist() == [9, 10, 11, 12]
    again = pickle.loads(pickle.dumps(windows))
    compact(tmp_path / "s", min_count=2)
    remove_unused(find_unused(tmp_path / "s", hours=-1))
    assert again[2]["input_ids"].tolist() == [8, 9, 10, 11]
    packed = DatasetFactory.load("sft", tmp_path / "s", 10, documents="pack")
    assert sorted(item["input_ids"][0].item() for item in packed) == [0, 10, 20]


def test_a_generation_never_changes(store: Path, tmp_path: Path) -> None:
    before = open_growing(store)
    assert before.generation == 5
    dataset = DatasetFactory.create("grpo", 1).open(before)
    grow(store, range(16, 20))
    assert open_growing(store, 5).fingerprint == before.fingerprint
    assert open_growing(store).fingerprint != before.fingerprint
    evict(store, keep_versions=1)
    compact(store, min_count=2)
    assert open_growing(store, 5).num_records == before.num_records == 16
    assert open_growing(store).num_records == 6
    remove_unused(find_unused(store, hours=-1, states=[{"generation": 5}]))
    compare(dataset, load(write_at_once(tmp_path / "bin", list(range(16)))))


def test_what_was_evicted_and_removed_is_an_error(store: Path) -> None:
    dataset = DatasetFactory.create("grpo", 1).open(open_growing(store))
    evict(store, keep_generations=2)
    remove_unused(find_unused(store, hours=-1))
    dataset = pickle.loads(pickle.dumps(DatasetFactory.create("grpo", 1)))
    with pytest.raises(StoreNotFoundError, match=r"generations 1 to 1 of .* were evicted, and rem"):
        dataset.open(open_growing(store, 5))
    assert load(store)[0]["prompts"].tolist() == [8, 7]


def test_texts_are_read_by_record(store: Path) -> None:
    found = open_growing(store)
    assert found.text_keys == ["answer"]
    assert found.num_text_records == 16
    texts = found.read_texts(["answer"], np.array([7, 0, 15]))
    assert texts == {"answer": ["answer 7", "answer 0", "answer 15"]}
    assert found.read_texts(["answer"], np.array([], np.int64)) == {"answer": []}
    assert found.read_texts([], np.array([1])) == {}
    empty = GrowingStore()
    assert (empty.text_keys, empty.num_text_records, empty.keys) == ([], None, [])
    assert pickle.loads(pickle.dumps(GrowingStore(3))).generation == 3


def test_random_spans_equal_slices(store: Path) -> None:
    compact(store, min_count=2, target_nbytes=900)
    found, rng = open_growing(store), np.random.default_rng(1)
    column = found.column("responses")
    values = found.fetch(0, column.length, "responses").numpy()
    bounds = column.record_offset(0, 16)
    assert bounds.tolist() == np.asarray(column.offsets).tolist()
    starts = rng.integers(0, len(values), 50)
    stops = np.minimum(starts + rng.integers(0, 30, 50), len(values))
    places = np.append(0, np.cumsum(stops - starts))[:-1][::-1].copy()
    places = np.cumsum(np.append(0, (stops - starts)[:-1]))
    for dtype in (np.int32, np.int64):
        out = np.full(int((stops - starts).sum()), -1, dtype)
        read_columns([column.read(CopySpans(starts, stops, places), out)])
        slices = [values[a:b] for a, b in zip(starts, stops, strict=True)]
        assert (out == np.concatenate(slices)).all()
    for start in range(17):
        for stop in range(start, 17):
            assert (column.record_offset(start, stop) == bounds[start : stop + 1]).all()


def test_missing_generations_are_explained(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"must have generation 9, its head is 5; wait"):
        open_growing(store, 9)
    with pytest.raises(StoreNotFoundError, match=r"no growing store at .*nothing; check the path"):
        open_growing(tmp_path / "nothing")
    evict(store, keep_generations=5)
    evict(store, keep_versions=1)
    grow(store, [99], 9)
    evict(store, keep_versions=1)
    assert StoreFactory.create("growing").load(store).num_records == 1
    log = StoreFactory.create("growing")
    assert isinstance(log, GrowingStore)
    with pytest.raises(SourceError, match=r"must have records to be a keyed store, generation"):
        _empty(store)


def _empty(store: Path) -> None:
    from zindex.growing.growing_log import GrowingLog
    from zindex.growing.history import Eviction

    GrowingLog(store).commit(lambda _: Eviction("evict", 100, None))
    open_growing(store)
