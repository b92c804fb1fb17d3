"""Whole runs: which indices a configuration needs, and how they are built together."""

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import GRID, LENGTHS, ElsewhereExecutor, make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import PlanError, StoreUnwritableError
from zindex.execution.executor import SerialExecutor, embedded_client
from zindex.execution.timeline import Timeline
from zindex.indexing import open_sources as building_opening
from zindex.indexing import run as building_run
from zindex.indexing import run_plan, store_build
from zindex.indexing.blend_arrays import open_blend_arrays
from zindex.ingest.length_source import open_source
from zindex.io import files
from zindex.plan.epochs import EpochPlan

SERIAL = SerialExecutor()


class TestBuild:
    def test_results_are_in_the_order_of_the_datasets(
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
            assert len(list((tmp_path / folder).glob("gpt-*"))) == 3

    def test_any_form_of_the_configuration_builds_the_same(
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

    def test_one_failure_does_not_lose_what_is_finished(
        self, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, write_corpus(LENGTHS))
        commit_store = store_build.commit_store

        def fail_for_valid(store_plan: Any, *arguments: Any) -> None:
            if "valid" in store_plan.root.name:
                raise OSError(28, "No space left on device")
            commit_store(store_plan, *arguments)

        monkeypatch.setattr(store_build, "commit_store", fail_for_valid)
        with pytest.raises(OSError, match="No space left"):
            zindex.build(config, SERIAL)
        monkeypatch.undo()
        # How many shards of the other splits were written before these were cancelled varies.
        finished = {path: path.stat().st_ino for path in (tmp_path / "index").rglob("c/*")}
        again = zindex.build(config, SERIAL)
        assert [done.num_written for (_, split), done in again.items() if split == "valid"] == [0]
        assert {path: path.stat().st_ino for path in finished} == finished

    def test_room_for_all_stores_is_checked_before_any_is_written(
        self, write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, write_corpus(LENGTHS))
        sizes = [item.plan.store_plan(config.index).nbytes for item in run_plan.plan_run(config)]
        free = max(sizes)  # each of them would fit
        monkeypatch.setattr(files, "free_nbytes", lambda path: free)
        with pytest.raises(StoreUnwritableError, match=f"needs {sum(sizes):,} bytes more .*{free}"):
            zindex.build(config, SERIAL)
        assert not list((tmp_path / "index").glob("*"))
        free = sum(sizes)
        zindex.build(config, SERIAL)

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


class TestBlends:
    @pytest.fixture
    def members(self, write_corpus: WriteCorpus) -> list[DatasetConfig]:
        return [
            DatasetConfig(write_corpus(LENGTHS, name="web"), weight=3.0),
            DatasetConfig(write_corpus(LENGTHS * 2, name="code"), weight=1.0),
        ]

    @pytest.mark.parametrize("client", [SERIAL, None], ids=["serial", "embedded"])
    @pytest.mark.parametrize("order", ["megatron", "scalable"])
    def test_a_run_with_weights_builds_members_and_blends(
        self, members: list[DatasetConfig], tmp_path: Path, order: Any, client: Any
    ) -> None:
        config = make_config(
            tmp_path, *members, samples={"train": 40}, split="60,40,0", order=order
        )
        results = zindex.build(config, client)
        web, code = (member.path for member in members)
        assert list(results) == [
            (web, "train"),
            (web, "valid"),
            (code, "train"),
            (code, "valid"),
            (None, "train"),
            (None, "valid"),
        ]
        train = open_blend_arrays(results[None, "train"].store)
        assert train.dataset_count.tolist() == [30, 10]
        assert len(train.dataset_index) == 40
        again = zindex.build(config, client)
        assert all(result.num_written == 0 for result in again.values())

    @pytest.mark.parametrize(
        ("shares", "stage"),
        [({"weight": 1.0}, "blend"), ({"epochs": 2.0}, "permutation")],
        ids=["known blend", "known size"],
    )
    def test_the_permutation_runs_while_datasets_are_opened(
        self,
        write_corpus: WriteCorpus,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        shares: dict[str, float],
        stage: str,
    ) -> None:
        """Datasets wait, to be opened, for the permutation: were it not ahead they would fail."""
        paths = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
        config = make_config(
            tmp_path,
            *(DatasetConfig(path, **shares) for path in paths),
            samples={"train": 12, "valid": 0},
            split="60,40,0",
            order="scalable",
        )
        computed = threading.Event()

        class Recorder(SerialExecutor):
            async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
                outcome = await super().run(function, *args, key=key, priority=priority)
                if key.startswith(stage):
                    computed.set()
                return outcome

        def open_later(path: str, **settings: Any) -> Any:
            assert computed.wait(60), "nothing was computed before the datasets were opened"
            return open_source(path, **settings)

        monkeypatch.setattr(building_opening, "open_source", open_later)
        timeline = Timeline()
        zindex.build(config, Recorder(timeline), timeline=timeline)
        timeline.write(tmp_path / "trace.json")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        by_stage: dict[str, list[Any]] = {}
        for event in events:
            by_stage.setdefault(event.get("cat", ""), []).append(event)
        (opening,) = by_stage["open"]
        first = min(event["ts"] for event in by_stage[stage])
        assert first < opening["ts"] + opening["dur"]
        assert {"blend", "documents", "samples", "shuffle"} <= set(by_stage)

    def test_a_blend_is_finished_by_another_run(
        self, members: list[DatasetConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, *members, samples={"train": 40}, split="60,40,0")
        with monkeypatch.context() as patch:
            patch.setattr(building_opening, "open_source", lambda path, **settings: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                zindex.build(config)
        results = zindex.build(config)
        assert open_blend_arrays(results[None, "train"].store).dataset_count.tolist() == [30, 10]

    @pytest.mark.parametrize(
        ("share", "settings"), [({"epochs": 2.0}, {}), ({}, {"blend": "sizes"})]
    )
    def test_a_permutation_that_nothing_needs_leaves_no_files(
        self,
        members: list[DatasetConfig],
        tmp_path: Path,
        share: dict[str, float],
        settings: dict[str, Any],
    ) -> None:
        # Of the sizes there are fewer samples than are asked for.
        config = make_config(
            tmp_path,
            *(DatasetConfig(member.path, **share) for member in members),
            samples={"train": 1000},
            order="scalable",
            shuffle="uniform",
            **settings,
        )
        for is_built in (False, True):
            results = zindex.build(config, SERIAL)
            assert (results[None, "train"].num_written == 0) == is_built
            assert not list((tmp_path / "index").glob("shuffle-*"))

    def test_a_build_that_failed_leaves_its_timeline(
        self, members: list[DatasetConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, *members, samples={"train": 40}, split="60,40,0")
        monkeypatch.setattr(building_opening, "open_source", lambda path, **settings: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            zindex.build(config, timeline=tmp_path / "trace.json")
        assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())

    def test_a_member_that_falls_short_is_named(
        self, members: list[DatasetConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = make_config(tmp_path, *members, samples={"train": 40}, split="60,40,0")
        zindex.build(config, SERIAL)
        plan_epochs = run_plan.plan_epochs

        def plan_fewer(*args: Any, **settings: Any) -> EpochPlan:
            return dataclasses.replace(plan_epochs(*args, **settings), num_samples=20)

        monkeypatch.setattr(run_plan, "plan_epochs", plan_fewer)
        with pytest.raises(PlanError, match=r"train blend draws 30 samples of .*web, which has 20"):
            zindex.build(config, SERIAL)
