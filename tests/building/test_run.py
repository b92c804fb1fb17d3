"""Whole runs: which indices a configuration needs, and how they are built together."""

import contextlib
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import zindex
from tests.conftest import WriteCorpus
from zindex.building import run as building_run
from zindex.building.arrays import open_index_arrays
from zindex.building.executor import SerialExecutor, embedded_client
from zindex.building.run import index_status, plan_run
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import ConfigError, PlanError, StoreNotFoundError
from zindex.store.commit import StoreStatus
from zindex.store.layout import ChunkGrid

SERIAL = SerialExecutor()
LENGTHS = [5, 7, 3, 9, 6, 8, 4, 10, 2, 6]  # 60 tokens
GRID = ChunkGrid(2, 4)


def make_config(tmp_path: Path, *datasets: Any, **settings: Any) -> RunConfig:
    values: dict[str, Any] = {
        "datasets": tuple(
            item if isinstance(item, DatasetConfig) else DatasetConfig(item) for item in datasets
        ),
        "sequence_length": 4,
        "split": "60,30,10",
        "index": str(tmp_path / "index"),
        "grid": GRID,
    }
    return RunConfig(**(values | settings))


def plan(config: RunConfig) -> dict[str, tuple[int, int, int | None]]:
    """First and last document and the samples asked for, by split."""
    return {
        item.plan.split: (item.plan.start, item.plan.stop, item.num_requested)
        for item in plan_run(config)
    }


class TestPlanRun:
    def test_splits_are_ranges_of_documents(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        config = make_config(tmp_path, write_corpus(LENGTHS), samples={"train": 20})
        assert plan(config) == {"train": (0, 6, 20), "valid": (6, 9, None), "test": (9, 10, None)}

    def test_splits_without_documents_are_left_out(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus(LENGTHS)
        assert plan(make_config(tmp_path, prefix, split="1")) == {"train": (0, 10, None)}
        # 1 % of ten documents is none of them.
        assert plan(make_config(tmp_path, prefix, split="99,1")) == {"train": (0, 10, None)}
        assert plan(make_config(tmp_path, prefix, split="0,1")) == {"valid": (0, 10, None)}

    def test_splits_without_tokens_are_left_out(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus([0, 0, 0, 8, 0])
        assert plan(make_config(tmp_path, prefix, split="3,2")) == {"valid": (3, 5, None)}

    def test_no_samples_means_no_index(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        samples = {"train": 0, "valid": None, "test": 1}
        config = make_config(tmp_path, write_corpus(LENGTHS), samples=samples)
        assert plan(config) == {"valid": (6, 9, None), "test": (9, 10, 1)}

    def test_samples_of_a_dataset_stand_for_those_of_the_run(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        special = DatasetConfig(write_corpus(LENGTHS), samples={"valid": 3})
        usual = write_corpus(LENGTHS[::-1], name="usual")
        config = make_config(tmp_path, special, usual, samples={"train": 11, "test": 0})
        requested = [(item.name, item.num_requested) for item in plan_run(config)]
        assert requested == [
            ("corpus train", None),
            ("corpus valid", 3),
            ("corpus test", None),
            ("usual train", 11),
            ("usual valid", None),
        ]

    def test_too_small_split_is_refused(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        prefix = write_corpus(LENGTHS)
        config = make_config(tmp_path, prefix, split="99,1,0", samples={"valid": 25})
        message = (
            r"valid of .*corpus must hold tokens to give 25 samples, split '99,1,0' gives it "
            r"documents \[10, 10\) of 10; give it a larger share or set its samples to 0"
        )
        with pytest.raises(PlanError, match=message):
            plan_run(config)
        with pytest.raises(PlanError, match=r"give 2 samples.* documents \[0, 0\) of 10"):
            plan_run(dataclasses.replace(config, samples={"test": 2}))

    def test_settings_reach_the_plan(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        config = make_config(
            tmp_path,
            write_corpus(LENGTHS),
            seed=99,
            order="scalable",
            store="minimal",
            add_extra_token_to_sequence=False,
            drop_last_partial_validation_sequence=False,
        )
        for item in plan_run(config):
            made = item.plan
            assert (made.seed, made.order, made.stored) == (99, "scalable", "minimal")
            assert (made.extra_token, made.sequence_length, made.grid) == (0, 4, GRID)
            assert made.drop_last is (made.split != "valid")

    def test_missing_dataset_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StoreNotFoundError, match=r"no dataset at .*/nothing"):
            plan_run(make_config(tmp_path, str(tmp_path / "nothing")))


class TestBuild:
    def test_results_come_in_the_order_of_the_datasets(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        # The first is by far the largest, and is finished last.
        prefixes = [
            write_corpus([9] * 200, name="large"),
            write_corpus(LENGTHS, name="b"),
            write_corpus(LENGTHS[:5], name="a"),
        ]
        with embedded_client(2) as client:
            results = zindex.build(make_config(tmp_path, *prefixes), client)
        assert [(Path(path).name, split) for path, split in results] == [
            (name, split) for name in ("large", "b", "a") for split in ("train", "valid", "test")
        ]
        for result in results.values():
            assert result.num_written == result.num_shards
            assert result.store.kind == "index"

    def test_finished_run_starts_nothing(
        self, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, write_corpus(LENGTHS))
        first = zindex.build(config, SERIAL)
        monkeypatch.setattr(building_run, "open_executor", None)
        again = zindex.build(config)
        assert list(again) == list(first)
        for name, result in again.items():
            assert result.num_written == 0
            assert (result.num_shards, result.store) == (first[name].num_shards, first[name].store)

    def test_only_what_is_missing_is_built(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        first, second = write_corpus(LENGTHS), write_corpus(LENGTHS[::-1], name="second")
        zindex.build(make_config(tmp_path, first), SERIAL)
        results = zindex.build(make_config(tmp_path, first, second), SERIAL)
        for (path, _), result in results.items():
            assert result.num_written == (result.num_shards if path == second else 0)

    def test_datasets_of_the_same_lengths_share_an_index(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        first = write_corpus(LENGTHS)
        second = write_corpus(LENGTHS, name="second", tokens=[7] * 60)
        for folder, client in (("serial", SERIAL), ("embedded", None)):
            index = str(tmp_path / folder)
            results = zindex.build(make_config(tmp_path, first, second, index=index), client)
            assert len(results) == 6
            for split in ("train", "valid", "test"):
                assert results[first, split].store == results[second, split].store
            assert len(list((tmp_path / folder).iterdir())) == 3

    def test_minimal_index_reads_like_a_whole_one(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        config = make_config(
            tmp_path, write_corpus(LENGTHS), order="scalable", samples={"train": 30}
        )
        whole = zindex.build(config, SERIAL)
        minimal = zindex.build(dataclasses.replace(config, store="minimal"), SERIAL)
        for name, result in minimal.items():
            assert set(result.store.layouts) == {"sample_index"}
            assert result.store.root != whole[name].store.root
            pairs = zip(
                open_index_arrays(result.store), open_index_arrays(whole[name].store), strict=True
            )
            for computed, stored in pairs:
                assert computed.dtype == stored.dtype
                np.testing.assert_array_equal(np.asarray(computed), np.asarray(stored))

    def test_any_form_of_the_configuration_gives_the_same(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus(LENGTHS)
        values = {
            "datasets": [prefix],
            "sequence_length": 4,
            "split": "60,30,10",
            "index": str(tmp_path / "index"),
            "grid": {"chunk_length": 2, "shard_length": 4},
        }
        (tmp_path / "run.yaml").write_text(
            yaml.safe_dump(values | {"datasets": ["corpus"], "index": "index"})
        )
        expected = zindex.build(make_config(tmp_path, prefix), SERIAL)
        for form in (values, tmp_path / "run.yaml", str(tmp_path / "run.yaml")):
            results = zindex.build(form, SERIAL)
            assert list(results) == list(expected)
            for name, result in results.items():
                assert (result.num_written, result.store) == (0, expected[name].store)

    def test_wrong_configuration_is_refused_with_its_value(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus(LENGTHS)
        with pytest.raises(ConfigError, match=r"order must be .*, got 'sorted'"):
            zindex.build({"datasets": [prefix], "sequence_length": 4, "order": "sorted"}, SERIAL)
        with pytest.raises(ConfigError, match="store='minimal' needs order='scalable'"):
            zindex.build({"datasets": [prefix], "sequence_length": 4, "store": "minimal"}, SERIAL)

    def test_one_failure_does_not_lose_what_is_finished(
        self, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, write_corpus(LENGTHS))
        commit_store = zindex.building.index.commit_store  # type: ignore[attr-defined]

        def fail_for_valid(store_plan: Any, *arguments: Any) -> None:
            if "valid" in store_plan.root.name:
                raise OSError(28, "No space left on device")
            commit_store(store_plan, *arguments)

        monkeypatch.setattr("zindex.building.index.commit_store", fail_for_valid)
        with pytest.raises(OSError, match="No space left"):
            zindex.build(config, SERIAL)
        monkeypatch.undo()
        again = zindex.build(config, SERIAL)
        assert sum(result.num_written for result in again.values()) == 0

    def test_steps_are_shown_by_name(
        self, write_corpus: WriteCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "zindex")
        zindex.build(make_config(tmp_path, write_corpus(LENGTHS)), SERIAL, progress=True)
        ends = [record.message for record in caplog.records if "shards in" in record.message]
        assert sorted(message.split(":")[0] for message in ends) == [
            "corpus test",
            "corpus train",
            "corpus valid",
        ]


def test_status_counts_shards(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS), split="1")
    (item,) = plan_run(config)
    num_shards = index_status(item, config.index).num_shards
    assert index_status(item, config.index) == StoreStatus(0, num_shards, committed=False)
    ((_, result),) = zindex.build(config, SERIAL).items()
    assert index_status(item, config.index) == StoreStatus(num_shards, num_shards, committed=True)
    (result.store.root / "zarr.json").unlink()
    (result.store.root / "shuffle_index" / "c" / "0").unlink()
    assert index_status(item, config.index) == StoreStatus(num_shards - 1, num_shards, False)


class ElsewhereExecutor:
    """Runs tasks as a worker does that was started in another directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
        function, args = pickle.loads(pickle.dumps((function, args)))
        with contextlib.chdir(self.folder):
            return function(*args)


def test_relative_paths_reach_workers_in_other_directories(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(LENGTHS, name="web")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    executor = ElsewhereExecutor(tmp_path / "elsewhere")
    for link in (False, True):
        store = f"web-{link}.zarr"
        zindex.convert("web", store, client=executor, link=link, grid=GRID)
        zindex.export(store, f"copy-{link}", client=executor)
        for suffix in ("bin", "idx"):
            assert Path(f"copy-{link}.{suffix}").read_bytes() == Path(f"web.{suffix}").read_bytes()
    for path in ("web", "web-False.zarr"):
        config = RunConfig((DatasetConfig(path),), sequence_length=4, index=f"index-{path}")
        results = zindex.build(config, executor)
        assert {dataset for dataset, _ in results} == {path}
    assert list((tmp_path / "elsewhere").iterdir()) == []
