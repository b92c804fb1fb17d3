"""Blends: the order of samples, the place of the index, processes, and errors."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zindex.datasets import sample_dataset
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, NotReadyError, PlanError
from zindex.indexing import ensure
from zindex.store.layout import ChunkGrid


class Numbers:
    """A dataset whose samples say which they are."""

    def __init__(self, name: str, length: int = 1000, split: Split = Split.train) -> None:
        self.dataset_path = name
        self.length = length
        self.num_samples: int | None = None
        self.index_split = split
        self.unique_identifiers = {"class": "Numbers", "dataset_path": name}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, idx: int) -> dict[str, Any]:
        assert 0 <= idx < self.length
        return {"text": f"{self.dataset_path}{idx}", "tokens": torch.tensor([idx])}


class OtherNumbers(Numbers):
    pass


def make_config(**settings: Any) -> BlendedMegatronDatasetConfig:
    settings = {"max_computed_rows": 0} | settings
    return BlendedMegatronDatasetConfig(random_seed=1, sequence_length=8, **settings)


def make_blend(
    weights: Any, size: int | None, lengths: Any = None, **settings: Any
) -> BlendedDataset:
    lengths = lengths or [1000] * len(weights)
    datasets: Any = [Numbers(chr(97 + i % 26), length) for i, length in enumerate(lengths)]
    return BlendedDataset(datasets, weights, size, make_config(**settings))


@pytest.mark.parametrize(
    ("weights", "size", "expected"),
    [
        ([0.5, 0.25, 0.25], 12, "0 1 2 0 0 1 2 0 0 1 2 0"),
        ([0.6, 0.3, 0.1], 12, "0 1 0 2 0 1 0 0 1 0 0 1"),
        ([1, 1, 1], 9, "0 1 2 0 1 2 0 1 2"),
        # With a fused multiplication and subtraction these would be others.
        ([1, 4], 9, "1 0 1 1 1 0 1 1 1"),
        ([3, 1, 3], 7, "0 2 1 0 2 0 2"),
        ([3, 1, 4], None, "2 0 1 2 0 2 0 2"),
        ([7], 3, "0 0 0"),
        ([5, 2], 0, ""),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_megatrons_order(
    weights: list[float], size: int | None, expected: str, stored: bool, tmp_path: Path
) -> None:
    blend = make_blend(weights, size, path_to_cache=str(tmp_path / "cache") if stored else None)
    order = [int(number) for number in expected.split()]
    assert np.asarray(blend.dataset_index).tolist() == order
    assert blend.dataset_index.dtype == np.int16
    ids = [order[:i].count(number) for i, number in enumerate(order)]
    assert np.asarray(blend.dataset_sample_index).tolist() == ids
    assert len(blend) == len(order)
    for position, (number, sample) in enumerate(zip(order, ids, strict=True)):
        item = blend[position]
        assert list(item) == ["dataset_id", "text", "tokens"]
        assert (item["dataset_id"], type(item["dataset_id"])) == (number, np.int16)
        assert item["text"] == f"{chr(97 + number)}{sample}"
    counts = [order.count(number) for number in range(len(weights))]
    assert blend.dataset_count.tolist() == counts
    assert os.path.exists(tmp_path / "cache") == (stored and bool(order))


@pytest.mark.parametrize("store", ["all", "minimal"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("weights", "size"), [([0.5, 0.3, 0.2], 101), ([30, 1, 12], None)])
def test_scalable_order_draws_exact_counts(
    weights: Any, size: int | None, cached: bool, store: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"order": "scalable", "store": store}
    if cached:
        settings |= {"path_to_cache": str(tmp_path), "grid": ChunkGrid(4, 16)}
    blend = make_blend(weights, size, **settings)
    index = np.asarray(blend.dataset_index)
    counts = [51, 30, 20] if size else weights
    assert np.bincount(index).tolist() == counts == blend.dataset_count.tolist()
    assert index.tolist() != sorted(index)
    seen = {blend[position]["text"] for position in range(len(blend))}
    assert seen == {f"{'abc'[i]}{j}" for i, count in enumerate(counts) for j in range(count)}
    in_memory = make_blend(weights, size, order="scalable")
    np.testing.assert_array_equal(index, np.asarray(in_memory.dataset_index))


def test_identifiers() -> None:
    blend = make_blend([1, 3], 10)
    assert list(blend.unique_identifiers) == ["class", "datasets", "split", "weights", "size"]
    assert (blend.weights, blend.size, blend.split) == ([0.25, 0.75], 10, Split.train)
    assert len(blend.unique_description_hash) == 32
    other = make_blend([1, 3], 10, order="scalable")
    assert other.unique_identifiers["order"] == "scalable"
    assert other.unique_description_hash != blend.unique_description_hash
    assert make_blend([4, 3], None).weights == [4, 3]


def test_positions() -> None:
    blend = make_blend([1, 1], 10)
    assert blend[-1]["text"] == blend[9]["text"] == "b4"
    assert blend[np.int64(-10)]["text"] == "a0"
    for position in (10, -11):
        message = f"index {position} is out of range for the 10 samples of the train blend of 2"
        with pytest.raises(IndexError, match=message):
            blend[position]
    with pytest.raises(TypeError):
        blend["3"]  # type: ignore[index]


def test_many_datasets_have_wider_ids() -> None:
    blend = make_blend([1] * 32_768, 40_000)
    assert blend.dataset_index.dtype == np.int32
    assert blend[32_767]["dataset_id"] == 32_767
    assert make_blend([1] * 32_767, 5).dataset_index.dtype == np.int16


def test_an_index_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides is the weights: not the datasets, their place or how arrays are cut."""
    first = make_blend([1, 3], 50, path_to_cache=str(tmp_path))
    monkeypatch.setattr(ensure, "_BuildLoop", None)
    grid = ChunkGrid(2, 8)
    again = make_blend([2, 6], 50, lengths=[40, 60], path_to_cache=str(tmp_path), grid=grid)
    assert len(os.listdir(tmp_path)) == 1
    assert [again[i]["text"] for i in range(50)] == [first[i]["text"] for i in range(50)]


def test_deferred(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    blend = make_blend([1, 3], 50, path_to_cache=str(cache), defer_npy_index_mmap=True)
    assert len(blend) == 50
    arrived = pickle.loads(pickle.dumps(blend))
    assert not cache.exists()
    assert arrived[3]["text"] == make_blend([1, 3], 50)[3]["text"] == blend[3]["text"]
    assert len(os.listdir(cache)) == 1


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("settings", [{}, {"order": "scalable", "store": "minimal"}])
def test_pickle_holds_no_arrays(settings: Any, cached: bool, tmp_path: Path) -> None:
    settings = settings | {"path_to_cache": str(tmp_path) if cached else None}
    blends = [make_blend([1, 3], size, [10**6] * 2, **settings) for size in (10, 100_000)]
    _ = blends[0][5], blends[1][5], blends[1].unique_description
    contents = [pickle.dumps(blend) for blend in blends]
    assert max(map(len, contents)) < 6_000
    assert abs(len(contents[0]) - len(contents[1])) < 100
    assert pickle.loads(contents[1])[77_777]["text"] == blends[1][77_777]["text"]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loader_workers(method: str, tmp_path: Path) -> None:
    blend = make_blend([1, 3], 20, path_to_cache=str(tmp_path))
    expected = [int(blend[i]["tokens"]) for i in range(20)]
    loader = torch.utils.data.DataLoader(
        blend, batch_size=4, num_workers=2, multiprocessing_context=method, timeout=60
    )
    batches = list(loader)
    assert torch.cat([batch["tokens"] for batch in batches])[:, 0].tolist() == expected
    ids = torch.cat([batch["dataset_id"] for batch in batches])
    assert ids.dtype == torch.int16
    assert ids.tolist() == np.asarray(blend.dataset_index).tolist()


def test_without_a_cache_it_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "zindex"):
        make_blend([1, 3], 50)
    assert "the train blend of 50 samples is computed in each process, because" in caplog.text


def test_one_dataset_is_no_blend(caplog: pytest.LogCaptureFixture) -> None:
    assert len(make_blend([3], 4)) == 4
    assert "a blend of a alone is made" in caplog.text


@pytest.mark.parametrize("size", [6, None])
def test_weight_0_leaves_a_dataset_out(size: int | None, caplog: pytest.LogCaptureFixture) -> None:
    blend = make_blend([2, 0, 4, 0], size)
    assert [dataset.dataset_path for dataset in blend.datasets] == ["a", "c"]
    assert len(blend.weights) == 2
    assert {blend[i]["text"][0] for i in range(6)} == {"a", "c"}
    message = "2 of 4 datasets have weight 0 in the train blend and are left out, b first"
    assert message in caplog.text


@pytest.mark.parametrize(
    ("weights", "size", "message"),
    [
        (
            [1, -2],
            5,
            "weights of the train blend must be numbers >= 0, got -2 for b (dataset 1 of 2)",
        ),
        ([float("nan"), 2.0], 5, "must be numbers >= 0, got nan for a (dataset 0 of 2)"),
        ([1.0, float("inf")], 5, "must be numbers >= 0, got inf for b"),
        (
            [0] * 5,
            5,
            "the train blend must have a weight above 0, got [0, 0, 0, ... 5 in all] for "
            "['a', 'b', 'c', ... 5 in all]; raise one",
        ),
        (
            [1.0, 2.5],
            None,
            "weights of the train blend must be whole numbers of samples when size is None, got "
            "1.0; give a size",
        ),
    ],
)
def test_invalid_weights(weights: Any, size: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_blend(weights, size)


@pytest.mark.parametrize(
    ("datasets", "num_weights", "message"),
    [
        ([], 0, "a weight for each, got 0 datasets and 0 weights; add or remove some"),
        ([Numbers("a")], 2, "a weight for each, got 1 datasets and 2 weights"),
        (
            [Numbers("a"), OtherNumbers("b")],
            2,
            "datasets of a blend must be of one class, got Numbers for a and OtherNumbers for b",
        ),
        (
            [Numbers("a"), Numbers("b", split=Split.test)],
            2,
            "datasets of a blend must be of one split, got train of a and test of b",
        ),
    ],
)
def test_datasets_must_match(datasets: Any, num_weights: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        BlendedDataset(datasets, [1] * num_weights, 5, make_config())


@pytest.mark.parametrize("settings", [{}, {"order": "scalable"}])
@pytest.mark.parametrize("cached", [False, True])
def test_a_dataset_that_is_too_short(settings: Any, cached: bool, tmp_path: Path) -> None:
    settings = settings | {"path_to_cache": str(tmp_path) if cached else None}
    message = (
        "the train blend of 2,000 samples needs 1,500 samples of b, which has 1,499 (1 of 2 "
        "datasets are too short); raise mid_level_dataset_surplus from 0.005, lower its weight, "
        "or give it more epochs"
    )
    with pytest.raises(PlanError, match=re.escape(message)):
        make_blend([1, 3], 2000, lengths=[500, 1499], **settings)
    assert len(make_blend([1, 3], 2000, lengths=[500, 1500], **settings)) == 2000
    message = "needs 3 samples of a, which has 2"
    with pytest.raises(PlanError, match=message):
        make_blend([3, 3], None, lengths=[2, 3], **settings)


def test_the_error_names_a_sufficient_surplus() -> None:
    datasets: Any = [Numbers("a", 500), Numbers("b", 1300)]
    for dataset, asked in zip(datasets, (500, 1250), strict=True):
        dataset.num_samples = asked
    config = make_config(mid_level_dataset_surplus=0.25)
    message = r"needs 1,350 samples of b, .* raise mid_level_dataset_surplus from 0.25 to 0.351, "
    with pytest.raises(PlanError, match=message):
        BlendedDataset(datasets, [1, 3], 1800, config)


def test_a_short_dataset_is_found_at_the_first_item_if_deferred(tmp_path: Path) -> None:
    settings = {"path_to_cache": str(tmp_path), "defer_npy_index_mmap": True}
    blend = make_blend([1, 1], 10, lengths=[5, 4], **settings)
    for _ in range(2):
        with pytest.raises(PlanError, match="needs 5 samples of b, which has 4"):
            blend[0]


def test_rank_1_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_dataset, "current_rank", lambda: 1)
    with pytest.raises(NotReadyError, match=r"blend-train-.* must be committed within 0 s"):
        make_blend([1, 3], 50, path_to_cache=str(tmp_path), index_timeout=0.1)
