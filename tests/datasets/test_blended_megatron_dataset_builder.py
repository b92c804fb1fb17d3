"""Builders: every case of sizes, weights and splits, and what they refuse."""

import errno
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from tests.conftest import WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from zindex.datasets import blended_megatron_dataset_builder, ranks
from zindex.datasets.blend_requests import request_splits
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder,
    _get_size_per_split_per_dataset,
)
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, PlanError, SourceError, StoreError, ZindexError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import ensure
from zindex.indexing.ensure import BuildRequest
from zindex.plan.blend_sizes import resolve_blend
from zindex.store.layout import ChunkGrid


def make_config(**settings: Any) -> GPTDatasetConfig:
    return plain_config(**({"max_computed_rows": 0} | settings))


def build(sizes: Any, cls: Any = GPTDataset, **settings: Any) -> list[Any]:
    return build_datasets(cls, sizes, make_config(**settings))


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    """Give corpora of 160, 320 and 480 tokens, 20 documents each: 19, 39 and 59 samples."""
    return [write_corpus([8 * i] * 20, name=f"c{i}") for i in (1, 2, 3)]


def lengths(datasets: list[Any]) -> list[Any]:
    """Return how many samples there are of each split, and of each of its validation sets."""
    return [
        None
        if dataset is None
        else [*map(len, dataset)]
        if isinstance(dataset, list)
        else len(dataset)
        for dataset in datasets
    ]


# (1) and (2): no split, one dataset.


@pytest.mark.parametrize(
    ("sizes", "expected"), [([30, 4, None], [41, 5, None]), ([None, 0, 7], [13, 5, None])]
)
def test_one_dataset(paths: list[str], sizes: Any, expected: Any) -> None:
    datasets = build(sizes, blend=(paths[:1], None), split="70,30,0")
    assert lengths(datasets) == expected
    assert [type(dataset) for dataset in datasets[:2]] == [GPTDataset] * 2
    assert [dataset.num_samples for dataset in datasets[:2]] == sizes[:2]
    assert datasets[0].dataset is datasets[1].dataset
    assert [list(map(int, (d.indices[0], d.indices[-1]))) for d in datasets[:2]] == [
        [0, 13],
        [14, 19],
    ]


def test_one_dataset_with_a_weight_is_a_blend(paths: list[str]) -> None:
    datasets = build([30, 0, 0], blend=(paths[:1], [0.3]), split="1")
    assert type(datasets[0]) is BlendedDataset
    assert lengths(datasets) == [30, None, None]
    assert datasets[0].weights == [1.0]


# (3 a): weights and sizes.


def test_weights_and_sizes(paths: list[str]) -> None:
    datasets = build([101, 10, 0], blend=(paths, [2, 1, 1]), split="80,10,10")
    assert [type(dataset) for dataset in datasets] == [BlendedDataset] * 3
    assert lengths(datasets) == [51 + 26 + 26, 5 + 3 + 3, 0]
    assert datasets[0].weights == [0.5, 0.25, 0.25]
    # ceil(ceil(101 * weight) * 1.005)
    assert [member.num_samples for member in datasets[0].datasets] == [52, 27, 27]
    assert [member.num_samples for member in datasets[2].datasets] == [0, 0, 0]
    assert datasets[0].dataset_count.tolist() == [51, 26, 26]
    with pytest.raises(IndexError):
        datasets[2][0]


def test_scalable_blends_have_their_size(paths: list[str]) -> None:
    settings: dict[str, Any] = {"order": "scalable", "mid_level_dataset_surplus": 0.0}
    datasets = build([101, 10, 0], blend=(paths, [2, 1, 1]), split="80,10,10", **settings)
    assert lengths(datasets) == [101, 10, 0]
    assert datasets[0].dataset_count.tolist() == [51, 25, 25]
    assert [member.num_samples for member in datasets[0].datasets] == [51, 26, 26]


def test_surplus(paths: list[str]) -> None:
    (train, _, _) = build(
        [1000, 0, 0], blend=(paths[:2], [0.3, 0.7]), split="1", mid_level_dataset_surplus=0.5
    )
    assert [member.num_samples for member in train.datasets] == [450, 1050]
    assert len(train) == 1000


def test_renormalized_weights(paths: list[str]) -> None:
    """As in Megatron Core 0.9 to 0.10."""
    blend = (paths, [0.5, 0.3, 0.2])
    (plain, _, _) = build([7, 0, 0], blend=blend, split="1")
    assert plain.weights == [0.5, 0.3, 0.2]
    (train, _, _) = build([7, 0, 0], blend=blend, split="1", renormalize_blend_weights=True)
    assert train.weights == pytest.approx([4 / 9, 3 / 9, 2 / 9])
    assert len(train) == 9
    assert train.dataset_count.tolist() == [4, 3, 2]
    (nothing, _, _) = build([0, 0, 0], blend=blend, split="1", renormalize_blend_weights=True)
    assert len(nothing) == 0


def test_weight_0_is_not_even_opened(paths: list[str]) -> None:
    blend = (["/nowhere", *paths[:2]], [0, 1.0, 3.0])
    (train, _, _) = build([40, 0, 0], blend=blend, split="1")
    assert [member.dataset_path for member in train.datasets] == paths[:2]
    assert train.weights == [0.25, 0.75]


# (3 c) and (3 d): no weights.


def test_lengths_are_weights(paths: list[str], caplog: pytest.LogCaptureFixture) -> None:
    datasets = build([50, 1000, None], blend=(paths, None), split="50,40,10")
    assert lengths(datasets) == [50, 7 + 15 + 23, 1 + 3 + 5]
    assert [dataset.size for dataset in datasets] == [50, 45, None]
    assert datasets[0].weights == [9 / 57, 19 / 57, 29 / 57]
    assert datasets[2].weights == [1, 3, 5]
    assert datasets[2].dataset_count.tolist() == [1, 3, 5]
    assert "the valid blend has 45 samples instead of 1000: without weights every" in caplog.text
    assert all(member.num_samples is None for member in datasets[0].datasets)


def test_lengths_are_weights_in_the_scalable_order(paths: list[str]) -> None:
    datasets = build([50, 1000, None], blend=(paths, None), split="50,40,10", order="scalable")
    assert lengths(datasets) == [50, 45, 9]
    assert datasets[0].dataset_count.tolist() == [8, 17, 25]
    tokens = [tuple(datasets[2][i]["tokens"].tolist()) for i in range(9)]
    assert len(set(tokens)) == 9


def test_a_member_without_samples_is_left_out(paths: list[str]) -> None:
    datasets = build([None, 3, None], blend=(paths, None), split="80,10,10", sequence_length=35)
    assert [len(dataset.datasets) for dataset in datasets] == [3, 1, 1]
    assert datasets[2].datasets[0].dataset_path == paths[2]


# Splits with separate data.


def test_blend_per_split(paths: list[str]) -> None:
    blends = [(paths, [1, 1, 2]), None, (paths[1:2], [0.3])]
    datasets = build([100, 5, 50], blend_per_split=blends)
    assert lengths(datasets) == [100, None, 79]
    assert type(datasets[2]) is GPTDataset
    assert datasets[2].num_samples == 50
    assert datasets[0].unique_identifiers["datasets"][0]["split"] is None
    # The same prefix in two splits is opened once.
    assert datasets[2].dataset is datasets[0].datasets[1].dataset


def test_a_prefix_twice(paths: list[str]) -> None:
    (train, _, _) = build([40, 0, 0], blend=([paths[0]] * 2, [1, 1]), split="1")
    assert len(train.datasets) == 2
    assert train.datasets[0] is not train.datasets[1]
    assert torch.equal(train[0]["tokens"], train[1]["tokens"])
    assert [train[0]["dataset_id"], train[1]["dataset_id"]] == [0, 1]


@pytest.mark.parametrize("size", [None, 25])
def test_several_validation_sets(paths: list[str], size: int | None) -> None:
    settings: dict[str, Any] = {"multiple_validation_sets": True, "full_validation": size is None}
    blends = [(paths, None), (paths, None), (paths, None)]
    datasets = build([None, size, None], blend_per_split=blends, **settings)
    assert lengths(datasets) == [117, [39, 39, 59] if size else [19, 39, 59], 117]
    assert all(type(dataset) is GPTDataset for dataset in datasets[1])
    one = [(paths, None), (paths[:1], None), None]
    assert type(build([None, size, 0], blend_per_split=one, **settings)[1]) is GPTDataset


def test_mock() -> None:
    datasets = build([10, None, 0], MockGPTDataset, sequence_length=4096)
    assert [type(dataset) for dataset in datasets] == [MockGPTDataset] * 3
    assert len(datasets[0]) >= 10


def test_a_class_without_mock_data() -> None:
    message = (
        "without blend and blend_per_split data are made up, which GPTDataset cannot do: "
        "TypeError: .*; give it data, or take a class such as MockGPTDataset"
    )
    with pytest.raises(ConfigError, match=message):
        build([10, 0, 0])


# Which rank, and where.


def test_not_on_this_rank(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    blends: Any = [(paths, None), (paths, None), (paths[:1], None)]
    config = make_config(blend_per_split=blends, multiple_validation_sets=True)
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: False, config)
    assert None not in builder.build()  # without torch.distributed no other process would
    asked: list[Any] = []
    make = BlendedMegatronDatasetBuilder.build_generic_dataset
    assert make(dict, lambda: False, True, [("a", 1)]) == {"a": 1}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(ranks.RankStep, "_wait_for_all", lambda self: asked.append(self._store))
    assert builder.build() == [None, [None] * 3, None]
    assert asked == [None]
    assert make(dict, lambda: False, True, [("a", 1)]) is None
    assert make(dict, lambda: True, False, [("a", 1)]) == {"a": 1}


def test_read_only_files(paths: list[str], tmp_path: Path) -> None:
    def refuse(config: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/cache/x")

    config = make_config(path_to_cache="/cache")
    make = BlendedMegatronDatasetBuilder.build_generic_dataset
    message = (
        "refuse must be able to read its data and to write its indices /cache, the file system "
        "refuses /cache/x: Permission denied; set path_to_cache (--data-cache-path) to a dir"
    )
    with pytest.raises(StoreError, match=re.escape(message)):
        make(refuse, lambda: True, True, config)
    (tmp_path / "file").write_text("")
    with pytest.raises(ZindexError, match=f"{tmp_path}/file"):
        build([9, 0, 0], blend=(paths, [1] * 3), split="1", path_to_cache=f"{tmp_path}/file")


# Indices.


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_all_indices_are_built_together(
    paths: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    num_threads: int,
    cached: bool,
) -> None:
    """Members, splits and blends; the second time nothing is built."""
    loops = []
    start = ensure._BuildLoop.__init__
    monkeypatch.setattr(
        ensure._BuildLoop,
        "__init__",
        lambda self, *arguments: loops.append(self) or start(self, *arguments),
    )
    settings: dict[str, Any] = {
        "blend": (paths, [1, 2, 3]),
        "split": "80,10,10",
        "order": order,
        "num_dataset_builder_threads": num_threads,
        "path_to_cache": str(tmp_path / "cache") if cached else None,
    }
    datasets = build([100, 10, 10], **settings)
    assert len(loops) == 1
    folders = (
        [tmp_path / "cache"] if cached else [f"{path}/cache/GPTDataset_indices" for path in paths]
    )
    names = [name for folder in folders for name in os.listdir(folder)]
    assert sum(name.startswith("gpt-") for name in names) == 9
    assert sum(name.startswith("blend-") for name in names) == 3 * cached
    again = build([100, 10, 10], **settings)
    assert len(loops) == 1
    for one, other in zip(datasets, again, strict=True):
        assert one.unique_description_hash == other.unique_description_hash
        for position in range(len(one)):
            assert torch.equal(one[position]["tokens"], other[position]["tokens"])


def test_large_builds_share_one_executor(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_executor() -> Any:
        opened.append(0)
        return real(SerialExecutor())

    real = ensure.open_executor
    monkeypatch.setattr(ensure, "open_executor", open_executor)
    build([100, 0, 0], blend=(paths, [1, 2, 3]), split="1", path_to_cache=str(tmp_path / "cache"))
    assert opened == [0]


def test_scalable_blends_start_before_datasets_are_opened(paths: list[str], tmp_path: Path) -> None:
    begun = threading.Event()
    seen = []

    class Late(GPTDataset):
        @staticmethod
        def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
            assert begun.wait(60)
            seen.append(dataset_path)
            return GPTDataset.build_low_level_dataset(dataset_path, config)

    class Early(BuildRequest):
        async def build(self, executor: Any) -> Any:
            result = await super().build(executor)
            assert not seen
            begun.set()
            return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blended_megatron_dataset_builder, "BuildRequest", Early)
        settings: dict[str, Any] = {"order": "scalable", "path_to_cache": str(tmp_path / "cache")}
        datasets = build([50, 0, 0], Late, blend=(paths, [1, 1, 1]), split="1", **settings)
    assert seen == paths
    assert len(datasets[0]) == 50


@pytest.mark.parametrize("order", ["megatron", "scalable"])
@pytest.mark.parametrize("by", ["weights", "lengths", "everything"])
def test_finds_indices_built_ahead(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, by: str
) -> None:
    """``zindex.build`` and the builder make the same plans."""
    weights = [0.5, 0.3, 0.2] if by == "weights" else None
    size = None if by == "everything" else 90
    run: dict[str, Any] = {
        "sequence_length": 8,
        "seed": 1,
        "split": "90,10,0",
        "order": order,
        "index": str(tmp_path / "cache"),
        "samples": {"train": size, "valid": 0, "test": 0},
    }
    if weights:
        members = [{"path": p, "weight": w} for p, w in zip(paths, weights, strict=True)]
        run |= {"datasets": members}
    else:
        run |= {"datasets": paths, "blend": "sizes"}
    zindex.build(run, client=SerialExecutor())
    before = sorted(os.listdir(tmp_path / "cache"))
    assert sum(not name.endswith(".json") for name in before) == 4
    monkeypatch.setattr(ensure, "_BuildLoop", None)
    blends: list[Any] = [(paths, weights), None, None]
    config = make_config(order=order, path_to_cache=run["index"], blend=blends[0], split="90,10,0")
    # Only the training split was built.
    config.split_matrix = [config.split_matrix[0], None, None]  # type: ignore[index]
    none = 0 if weights else None
    (train, _, _) = build_datasets(GPTDataset, [size, none, none], config)
    assert len(train) == (size or 105 if by != "weights" else 90)
    assert sorted(os.listdir(tmp_path / "cache")) == before


def test_sizes_are_those_of_a_run(paths: list[str]) -> None:
    """The arithmetic of blends by weights is that of ``zindex.build``."""
    generator = np.random.default_rng(3)
    for order in ("megatron", "scalable"):
        for size in (1, 17, 1000, 123_456):
            weights = generator.pareto(1, 20) + 0.01
            config = make_config(blend=([*"abcdefghijklmnopqrst"], weights), split="1", order=order)
            (request, _, _) = request_splits([size, 0, 0], config)
            run = zindex.RunConfig.from_json(
                {
                    "sequence_length": 8,
                    "samples": {"train": size},
                    "order": order,
                    "datasets": [
                        {"path": f"/{name}", "weight": float(weight)}
                        for name, weight in zip("abcdefghijklmnopqrst", weights, strict=True)
                    ],
                }
            )
            assert run.blend_request is not None
            sizes = resolve_blend(run.blend_request, "train")
            assert request is not None
            assert sizes is not None
            assert (request.weights, request.size) == ([*(sizes.weights or ())], sizes.num_samples)
            assert request.num_samples == list(sizes.requested)


def test_deferred_indices(paths: list[str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"blend": (paths, [1, 2, 3]), "split": "80,20,0"}
    cache = tmp_path / "cache"
    datasets = build([60, 6, 0], **settings, path_to_cache=str(cache), defer_npy_index_mmap=True)
    assert not cache.exists()
    assert lengths(datasets) == [60, 6, None]
    expected = build([60, 6, 0], **settings, path_to_cache=str(tmp_path / "other"))
    assert torch.equal(datasets[0][5]["tokens"], expected[0][5]["tokens"])
    names = os.listdir(cache)
    assert len(names) == 2
    assert set(names) <= set(os.listdir(tmp_path / "other"))


def test_fast_cache_load_changes_nothing(paths: list[str], tmp_path: Path) -> None:
    blends: list[Any] = [(paths, [1, 2, 3]), None, None]
    settings: dict[str, Any] = {"path_to_cache": str(tmp_path / "cache"), "blend_per_split": blends}
    fast, plain = (build([60, 0, 0], **settings, fast_cache_load=flag)[0] for flag in (True, False))
    assert torch.equal(fast[5]["tokens"], plain[5]["tokens"])


def test_sequences_per_dataset(paths: list[str]) -> None:
    counts = {path: (20, 21) for path in paths}
    settings: dict[str, Any] = {"blend": (paths, [1, 2, 3]), "split": "1"}
    (train, _, _) = build([60, 0, 0], **settings, sequences_per_dataset=counts)
    assert torch.equal(train[7]["tokens"], build([60, 0, 0], **settings)[0][7]["tokens"])
    counts[paths[2]] = (20, 22)
    with pytest.raises(SourceError, match="must agree with the file"):
        build([60, 0, 0], **settings, sequences_per_dataset=counts)


# Classes of others.


class OwnGPT(GPTDataset):
    """A user's class: arrays of documents as from Megatron, its own arguments and items."""

    def __init__(
        self,
        indexed_dataset: Any,
        dataset_path: Any,
        indexed_indices: Any,
        num_samples: Any,
        index_split: Any,
        config: Any,
    ) -> None:
        assert indexed_indices.dtype == np.int32
        super().__init__(
            indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config
        )
        # A single dataset is built immediately.
        self.first = int(self.shuffle_index[0]) if index_split is Split.valid else None

    def __getitem__(self, idx: Any) -> Any:
        return super().__getitem__(idx) | {"own": torch.tensor(1)}


def test_a_class_over_gpt_datasets(paths: list[str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"blend": (paths, [1, 2, 3]), "split": "80,20,0"}
    datasets = build([60, 6, 0], OwnGPT, **settings, path_to_cache=str(tmp_path / "cache"))
    assert datasets[0][0]["own"] == 1
    assert datasets[1].datasets[0].first == datasets[1].datasets[0].shuffle_index[0]
    plain = build([60, 6, 0], **settings)
    assert torch.equal(datasets[0][9]["tokens"], plain[0][9]["tokens"])


@pytest.mark.parametrize(
    "name",
    [
        "_build_blended_dataset_splits",
        "_build_megatron_datasets_parallel",
        "_build_megatron_dataset_splits",
    ],
)
def test_steps_may_be_overridden(name: str, paths: list[str], tmp_path: Path) -> None:
    made = []

    def step(self: Any, *args: Any) -> Any:
        made.append(len(args))
        return getattr(BlendedMegatronDatasetBuilder, name)(self, *args)

    kind = type("Own", (BlendedMegatronDatasetBuilder,), {name: step})
    own: dict[str, Any] = {"path_to_cache": str(tmp_path / "cache")}
    blends: list[dict[str, Any]] = [
        {"blend": (paths, [1, 2, 3]), "split": "80,20,0"},
        {"blend": (paths[:1], None), "split": "80,20,0"},
        {"blend_per_split": [(paths, [1, 2, 3]), (paths[:2], None), None]},
        {
            "blend_per_split": [(paths[:1], [1]), (paths[:2], None), None],
            "multiple_validation_sets": True,
        },
        {},
    ]
    for settings in blends:
        config = make_config(**settings, **(own if settings else {}))
        cls = GPTDataset if settings else MockGPTDataset
        before = len(made)
        found = kind(cls, [60, 6, 0], lambda: True, config).build()
        assert len(made) > before or name == "_build_megatron_datasets_parallel"
        plain = BlendedMegatronDatasetBuilder(cls, [60, 6, 0], lambda: True, config).build()
        for mine, other in zip(found, plain, strict=True):
            for one, two in zip(as_list(mine), as_list(other), strict=True):
                assert (one is None) == (two is None)
                if one is not None:
                    assert len(one) == len(two)
                    assert torch.equal(one[3]["tokens"], two[3]["tokens"])
    assert made


def as_list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def test_a_step_that_changes_sizes(paths: list[str]) -> None:
    class Builder(BlendedMegatronDatasetBuilder):
        def _build_megatron_dataset_splits(
            self, dataset_path: Any, split: Any, sizes: Any, synchronize_ranks: bool = True
        ) -> Any:
            sizes = [None if size is None else 3 * size for size in sizes]
            return super()._build_megatron_dataset_splits(
                dataset_path, split, sizes, synchronize_ranks
            )

    config = make_config(blend=(paths, [1, 2, 3]), split="80,20,0")
    train, *_ = Builder(GPTDataset, [60, 6, 0], lambda: True, config).build()
    plain = build([60, 6, 0], blend=(paths, [1, 2, 3]), split="80,20,0")[0]
    for mine, other in zip(train.datasets, plain.datasets, strict=True):
        assert mine.num_samples == 3 * other.num_samples


def test_a_builder_that_makes_datasets_itself(paths: list[str]) -> None:
    made = []

    class Builder(BlendedMegatronDatasetBuilder):
        @staticmethod
        def build_generic_dataset(
            cls: Any, is_built_on_rank: Any, synchronize_ranks: bool, *args: Any
        ) -> Any:
            made.append(cls)
            dataset = BlendedMegatronDatasetBuilder.build_generic_dataset(
                cls, is_built_on_rank, synchronize_ranks, *args
            )
            dataset.mark = len(made)
            return dataset

    config = make_config(blend=(paths, [1, 2, 3]), split="80,20,0")
    train, valid, _ = Builder(GPTDataset, [60, 6, 0], lambda: True, config).build()
    assert made == [GPTDataset] * 6 + [BlendedDataset] * 2
    assert (train.mark, valid.mark) == (7, 8)
    assert sorted(member.mark for member in train.datasets + valid.datasets) == [1, 2, 3, 4, 5, 6]


class Lines(MegatronDataset):
    """A dataset unrelated to GPT: the numbers of a range, once."""

    opened = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self.indices, np.ndarray)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        Lines.opened += 1
        return list(range(int(dataset_path)))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {"line": self.dataset[self.indices[idx]]}


def test_a_custom_class() -> None:
    Lines.opened = 0
    blend = (["100", "300"], [0.25, 0.75])
    train, valid, _ = build([100, 4, 0], Lines, blend=blend, split="90,10,0")
    assert (len(train), len(valid), train.dataset_count.tolist()) == (100, 4, [25, 75])
    assert [train[i]["line"] for i in range(5)] == [0, 0, 1, 2, 1]
    assert valid[0]["line"] in (90, 270)
    assert Lines.opened == 2
    build([None] * 3, Lines, blend=(["100", "100"], None), split="1")
    assert Lines.opened == 4


def test_a_size_that_a_class_does_not_reach() -> None:
    message = "the train blend of 800 samples needs 200 samples of 100, which has 100"
    with pytest.raises(PlanError, match=message):
        build([800, 0, 0], Lines, blend=(["100", "1000"], [0.25, 0.75]), split="1")
    message = "valid of 100 must have at least 11 samples, its Lines has 10; ask for fewer, or let"
    with pytest.raises(PlanError, match=message):
        build([80, 11, 0], Lines, blend=(["100"], None), split="90,10,0")


def test_lists_of_sizes(paths: list[str]) -> None:
    """Several validation sets may have sizes of their own; lists for no data are ignored."""
    settings: dict[str, Any] = {"blend_per_split": [(paths[:1], None), (paths, None), None]}
    many = build([9, [5, None, 41], [3]], **settings, multiple_validation_sets=True)[1]
    assert [len(dataset) for dataset in many] == [19, 39, 59]
    assert [dataset.num_samples for dataset in many] == [5, None, 41]
    # Of a split without a share, Megatron Core does not look at the size.
    train, valid, test = build([None, [1, 2], [3]], blend=(paths, None), split="100,0,0")
    assert (len(train), valid, test) == (117, None, None)


def test_deferred_blends_of_splits_without_documents(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    """As with Megatron Core, only reading a sample is an error."""
    few = [write_corpus([9] * 9, name=f"few{i}") for i in (1, 2)]
    settings: dict[str, Any] = {"blend": (few, [1, 2]), "split": "99,1,0"}
    with pytest.raises(PlanError, match=r"valid of .*few1 must hold documents, got none"):
        build([20, 5, 0], **settings)
    cache = {"path_to_cache": str(tmp_path / "index"), "defer_npy_index_mmap": True}
    train, valid, _ = build([20, 5, 0], **settings, **cache)
    assert len(valid) == 6
    assert len({int(item["dataset_id"]) for item in map(train.__getitem__, range(21))}) == 2
    with pytest.raises(PlanError, match=r"valid of .*few. must hold tokens to give samples"):
        valid[0]
    single = settings | {"blend": (few[:1], None)}
    with pytest.raises(PlanError, match=r"valid of .*few1 must hold tokens to give samples"):
        build([20, 5, 0], **single, **cache)


# Errors.


@pytest.mark.parametrize(
    ("sizes", "settings", "message"),
    [
        ([1, 2], {}, "sizes must hold 3 numbers of samples, for train, valid and test, got [1, 2]"),
        ([1, -2, 0], {}, "size of valid must be a whole number of samples or None, got -2"),
        ([1, 0, 2.5], {}, "size of test must be a whole number of samples or None, got 2.5"),
        (["7", 0, 0], {}, "size of train must be a whole number of samples or None, got '7'"),
        ([float("inf"), 0, 0], {}, "size of train must be a whole number of samples or None"),
        ([[1], 0, 0], {}, "several validation sets, of which there are 0, got [1]; give one numb"),
        (
            [0, [1, 2], 0],
            {"blend_per_split": [None, (["a", "b"], None), None]},
            "size of valid must be a whole number of samples or None, or one for each of several "
            "validation sets, of which there are 0, got [1, 2]; give one number",
        ),
        (
            [0, [1, -1], 0],
            {"blend_per_split": [None, (["a", "b"], None), None], "multiple_validation_sets": True},
            "validation sets, of which there are 2, got [1, -1]; give one number",
        ),
        (
            [1, None, 2],
            {"blend": (["a", "b"], [1, 2]), "split": "1"},
            "size of valid must be given with weights, got None with weights [1, 2] of ['a', "
            "'b']; give a number of samples (0 for none), or leave the weights out",
        ),
        (
            [None, None, 2],
            {"blend_per_split": [None, (["a"], [1.0]), None]},
            "size of valid must be given with weights, got None with weights [1.0] of ['a']",
        ),
    ],
)
def test_sizes_that_are_refused(sizes: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, make_config(**settings))


@pytest.mark.parametrize(
    ("settings", "sizes", "message"),
    [
        (
            {"blend": (["a", "b"], [1, -2]), "split": "1"},
            [1, 0, 0],
            "weights of the blend of train must be numbers >= 0, got -2 for b (dataset 1 of 2); "
            "correct it",
        ),
        (
            {"blend": (["a", "b"], [float("nan"), 2]), "split": "1"},
            [1, 0, 0],
            "must be numbers >= 0, got nan for a (dataset 0 of 2)",
        ),
        (
            {"blend_per_split": [None, (["a", "b"], [0, 0.0]), None]},
            [1, 0, 0],
            "the blend of valid must have a weight above 0, got [0, 0.0] for ['a', 'b']; raise one",
        ),
        (
            {"blend": ([], []), "split": "1"},
            [1, 0, 0],
            "the blend of train must name at least one dataset, got none",
        ),
        (
            {
                "blend_per_split": [None, (["a", "b"], None), None],
                "multiple_validation_sets": True,
                "full_validation": True,
            },
            [0, 5, 0],
            "size of valid must be None with full_validation, got 5: each validation set is",
        ),
    ],
)
def test_blends_that_are_refused(settings: Any, sizes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(sizes, **settings)


def test_a_float_that_is_whole_is_a_size(paths: list[str]) -> None:
    assert build([30.0, 0, 0], blend=(paths[:1], None), split="1")[0].num_samples == 30


@pytest.mark.parametrize("num_threads", [1, 2])
def test_empty_splits(paths: list[str], write_corpus: WriteCorpus, num_threads: int) -> None:
    few = write_corpus([9] * 3, name="few")
    settings: dict[str, Any] = {"num_dataset_builder_threads": num_threads}
    with pytest.raises(PlanError, match=f"valid of {few} must hold documents, got none; give it"):
        build([10, 1, 0], blend=([paths[0], few], [1, 1]), split="90,10,0", **settings)
    empty = write_corpus([0] * 5, name="empty")
    message = f"train of {empty} must hold tokens to give samples, its documents [0, 5) hold none"
    with pytest.raises(PlanError, match=re.escape(message)):
        build([10, 1, 0], blend=([paths[0], empty], [1, 1]), split="1", **settings)
    message = (
        f"the train blend must have samples, got none from all of its 2 datasets, {few} first; "
        "give it a larger share"
    )
    with pytest.raises(PlanError, match=re.escape(message)):
        build([10, 1, 0], blend=([few] * 2, None), split="1", sequence_length=100, **settings)


@pytest.mark.parametrize("cached", [False, True])
def test_oversampling(write_corpus: WriteCorpus, tmp_path: Path, cached: bool) -> None:
    """Megatron's order may draw a sample more than planned, the scalable order never."""
    # Members of exactly the requested size: 8 tokens and one more per document.
    paths = [write_corpus([8] * n + [1], name=f"c{n}") for n in (7, 1, 2)]
    settings: dict[str, Any] = {
        "blend": (paths, [0.7, 0.1, 0.2]),
        "split": "1",
        "mid_level_dataset_surplus": 0.0,
        "path_to_cache": str(tmp_path / "cache") if cached else None,
    }
    assert len(build([10, 0, 0], **settings)[0]) == 10
    (train, _, _) = build([10, 0, 0], **settings, order="scalable")
    assert train.dataset_count.tolist() == [7, 1, 2]


def test_a_stopped_builder_leaves_no_thread(paths: list[str], tmp_path: Path) -> None:
    before = set(threading.enumerate())
    settings: dict[str, Any] = {
        "order": "scalable",
        "path_to_cache": str(tmp_path / "cache"),
        "grid": ChunkGrid(2, 8),
    }
    with pytest.raises(SourceError, match="nowhere"):
        build([900, 0, 0], blend=([*paths, "/nowhere"], [1] * 4), split="1", **settings)
    assert set(threading.enumerate()) <= before


def test_sizes_of_members_need_weights_that_add_up() -> None:
    with pytest.raises(ConfigError, match=r"must add up to 1, got a sum of 0.8; divide them"):
        _get_size_per_split_per_dataset([0.3, 0.5], [10])
