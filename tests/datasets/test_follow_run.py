"""Datasets that are read while they are built: the same items, or a clear word why not yet."""

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from tests.indexing.runs import LENGTHS, make_config
from zindex.config import DatasetConfig
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.datasets.run_datasets import open_run
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, NotReadyError, PlanError, StoreError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import blend as blend_module
from zindex.indexing import ensure
from zindex.indexing.ensure import Builds
from zindex.indexing.run import build
from zindex.store.layout import ChunkGrid
from zindex.store.open import FollowedStore

NUM_SAMPLES = 60
TOKENIZER = FakeTokenizer()
#: Seconds that a sample waits for its shard, also beside other tests.
PATIENCE = 240
ORDERS: dict[str, dict[str, Any]] = {
    "megatron": {},
    "scalable": {"order": "scalable"},
    "minimal": {"order": "scalable", "store": "minimal"},
    "uniform": {"order": "scalable", "shuffle": "uniform"},
}


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All background builds of a test; they end with it."""
    made: list[Builds] = []
    init = Builds.__init__

    def remember(self: Builds, *args: Any, **settings: Any) -> None:
        init(self, *args, **settings)
        if self.patience is not None:
            made.append(self)

    monkeypatch.setattr(Builds, "__init__", remember)
    yield made
    for each in made:
        each.stop()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, builds: Any) -> Any:
    """Hold up every shard of a blend but the first."""
    opened = threading.Event()

    def hold_up(real: Any) -> Any:
        def store(*args: Any) -> Any:
            assert args[2] == 0 or opened.wait(PATIENCE)
            return real(*args)

        return store

    for name in ("store_chunk", "store_scalable_shard"):
        monkeypatch.setattr(blend_module, name, hold_up(getattr(blend_module, name)))
    yield opened
    opened.set()


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    return [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]


def run_config(tmp_path: Path, paths: list[str], **settings: Any) -> Any:
    members = [
        DatasetConfig(path, weight=weight) for path, weight in zip(paths, (3.0, 1.0), strict=True)
    ]
    own = {"samples": {"train": NUM_SAMPLES}, "split": "100,0,0", "grid": ChunkGrid(4, 16)}
    return make_config(tmp_path, *members, **(own | settings))


def follow(config: Any, patience: float = PATIENCE) -> Any:
    """Open a run's training data while it is built."""
    return open_run(config, TOKENIZER, follow=patience, max_computed_rows=0)["train"]


def assert_equal_items(first: Any, second: Any, positions: range) -> None:
    for position in positions:
        one, other = first[position], second[position]
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[name]))


@pytest.mark.parametrize("name", ORDERS)
def test_items_are_those_of_the_finished_run(
    tmp_path: Path, paths: list[str], builds: list[Builds], gate: threading.Event, name: str
) -> None:
    config = run_config(tmp_path / "followed", paths, **ORDERS[name])
    followed = follow(config)
    assert isinstance(followed, BlendedDataset)
    assert len(followed) == NUM_SAMPLES
    first = followed.__getitems__(range(16)).tensors
    assert not gate.is_set()
    gate.set()
    expected = open_run(run_config(tmp_path / "whole", paths, **ORDERS[name]), TOKENIZER)["train"]
    for key, values in expected.__getitems__(range(16)).tensors.items():
        assert torch.equal(values, first[key])
    assert_equal_items(followed, expected, range(NUM_SAMPLES))
    assert followed.dataset_count.tolist() == expected.dataset_count.tolist()
    assert followed.fingerprint == expected.fingerprint
    for each in builds:
        each.wait()
    assert not isinstance(followed._store, FollowedStore)
    assert not any(isinstance(item._store, FollowedStore) for item in followed.datasets)
    assert_equal_items(followed, expected, range(NUM_SAMPLES))


def test_the_first_samples_do_not_wait_for_the_last(
    tmp_path: Path, paths: list[str], gate: threading.Event
) -> None:
    dataset = follow(run_config(tmp_path, paths))
    batch = dataset.__getitems__(range(16))
    assert batch.tensors["tokens"].shape == (16, 4)
    copy = pickle.loads(pickle.dumps(dataset))  # as in a loader's worker
    assert torch.equal(copy.__getitems__(range(16)).tensors["tokens"], batch.tensors["tokens"])
    hurried = follow(run_config(tmp_path, paths), 0.05)
    hurried[15]
    with pytest.raises(NotReadyError, match=r"shard dataset_index/c/1 of .* within 0.05 s"):
        hurried[16]
    late = threading.Timer(0.05, gate.set)
    late.start()
    assert copy[NUM_SAMPLES - 1]["tokens"].shape == (4,)
    late.join()


def test_computed_arrays_are_not_waited_for(
    tmp_path: Path, paths: list[str], gate: threading.Event
) -> None:
    config = run_config(tmp_path, paths, order="scalable")
    dataset = follow(config)
    assert dataset[NUM_SAMPLES - 1]["tokens"].shape == (4,)
    assert not gate.is_set()
    assert isinstance(dataset._store, FollowedStore)


def test_datasets_without_a_blend_are_followed(
    tmp_path: Path, paths: list[str], builds: list[Builds]
) -> None:
    config = make_config(tmp_path, *paths, split="60,40,0", samples={"train": 30})
    followed = open_run(config, TOKENIZER, follow=PATIENCE, max_computed_rows=0)
    own = make_config(tmp_path / "own", *paths, split="60,40,0", samples={"train": 30})
    whole = open_run(own, TOKENIZER)
    for split, parts in followed.items():
        for part, other in zip(parts, whole[split], strict=True):
            assert_equal_items(part, other, range(len(other)))
    assert len(builds) == 1


def gpt_config(tmp_path: Path, paths: list[str], **settings: Any) -> GPTDatasetConfig:
    values: dict[str, Any] = {
        "random_seed": 7,
        "sequence_length": 4,
        "blend": (paths, [0.75, 0.25]),
        "split": "100,0,0",
        "path_to_cache": str(tmp_path / "cache"),
        "grid": ChunkGrid(4, 16),
        "max_computed_rows": 0,
    }
    return plain_config(**(values | settings))


def test_the_builder_of_datasets_follows(
    tmp_path: Path, paths: list[str], gate: threading.Event
) -> None:
    config = gpt_config(tmp_path, paths, follow=PATIENCE)
    train, _, _ = build_datasets(GPTDataset, [NUM_SAMPLES, 0, 0], config)
    assert isinstance(train, BlendedDataset)
    first = train[0]
    assert not gate.is_set()
    gate.set()
    whole = gpt_config(tmp_path / "whole", paths)
    expected, _, _ = build_datasets(GPTDataset, [NUM_SAMPLES, 0, 0], whole)
    assert torch.equal(first["tokens"], expected[0]["tokens"])
    assert_equal_items(train, expected, range(NUM_SAMPLES))


def test_a_single_dataset_follows(tmp_path: Path, paths: list[str], builds: list[Builds]) -> None:
    config = gpt_config(tmp_path, paths, follow=PATIENCE)
    tokens = GPTDataset.build_low_level_dataset(paths[0], config)
    split = Split.train
    dataset = GPTDataset(tokens, paths[0], range(10), 20, split, config)
    assert dataset[0]["tokens"].shape == (4,)
    builds[0].wait()
    assert not isinstance(dataset._store, FollowedStore)


def test_a_failed_build_is_raised_by_the_next_sample(
    tmp_path: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch, builds: list[Builds]
) -> None:
    def fail(*args: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(blend_module, "store_chunk", fail)
    dataset = follow(run_config(tmp_path, paths))
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            dataset[0]


def test_a_short_dataset_is_an_error_when_the_blend_is_built(
    tmp_path: Path, paths: list[str], builds: list[Builds]
) -> None:
    """How much the greedy order draws of each dataset is known at its end only."""
    config = gpt_config(tmp_path, paths, follow=PATIENCE)
    tokens = [GPTDataset.build_low_level_dataset(path, config) for path in paths]
    split = Split.train
    members = [
        GPTDataset(low_level, path, range(10), 14, split, config)
        for low_level, path in zip(tokens, paths, strict=True)
    ]
    blend = BlendedDataset(members, [0.75, 0.25], NUM_SAMPLES, config)
    with pytest.raises(PlanError, match="train blend of 60 samples needs 45 samples"):
        builds[-1].wait()
    with pytest.raises(PlanError, match="needs 45 samples"):
        blend[0]


def test_a_finished_run_is_opened_immediately(
    tmp_path: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(tmp_path, paths)
    build(config, SerialExecutor())
    monkeypatch.setattr(ensure, "follow_plan", None)
    monkeypatch.setattr(Builds, "_run", None)
    dataset = follow(config)
    assert dataset[0]["tokens"].shape == (4,)


def test_follow_is_checked(tmp_path: Path, paths: list[str]) -> None:
    with pytest.raises(ConfigError, match="follow must be 0 seconds or more, got -1"):
        open_run(run_config(tmp_path, paths), TOKENIZER, follow=-1)
