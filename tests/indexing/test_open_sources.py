"""Datasets opened by tasks are those that are opened here."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import LENGTHS, ElsewhereExecutor, make_config
from tests.trees import all_files
from zindex.errors import SourceError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import open_sources as opening
from zindex.indexing.open_sources import has_much_to_check, open_by_tasks, open_here


def test_sources_are_the_same_in_the_same_order(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(opening, "TASK_FILES", 2)
    (tmp_path / "elsewhere").mkdir()
    for number in range(5):
        write_corpus([*LENGTHS, number], name=f"pair-{number}")
    zindex.convert("pair-0", "store.zarr", client=SerialExecutor())
    paths = ["pair-1", "store.zarr", "pair-0", "pair-4", "pair-1", str(tmp_path / "pair-3")]
    executor = ElsewhereExecutor(tmp_path / "elsewhere")
    assert asyncio.run(open_by_tasks(paths, executor)) == open_here(paths)
    assert executor.keys == ["check-0", "check-2", "check-4"]


@pytest.mark.parametrize(
    ("room", "keys"),
    [(3, ["check-0", "check-3", "check-6"]), (0.9, [f"check-{n}" for n in range(7)])],
)
def test_batches_are_bounded_by_bytes(
    write_corpus: WriteCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    room: float,
    keys: list[str],
) -> None:
    paths = [write_corpus(LENGTHS, name=f"pair-{number}") for number in range(7)]
    monkeypatch.setattr(opening, "TASK_NBYTES", int(room * os.path.getsize(f"{paths[0]}.idx")))
    executor = ElsewhereExecutor(tmp_path)
    asyncio.run(open_by_tasks(paths, executor))
    assert executor.keys == keys


def test_bytes_decide_what_is_much(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_corpus(LENGTHS, name=f"pair-{number}") for number in range(2)]
    nbytes = os.path.getsize(f"{paths[0]}.idx")
    monkeypatch.setattr(opening, "FEW_NBYTES", 2 * nbytes)
    assert not has_much_to_check([*paths, str(tmp_path / "nothing"), "s3://bucket/corpus.zarr"])
    monkeypatch.setattr(opening, "FEW_NBYTES", 2 * nbytes - 1)
    assert has_much_to_check(paths)


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_a_run_is_the_same_however_it_is_opened(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    paths = [write_corpus([*LENGTHS, number + 1], name=f"pair-{number}") for number in range(3)]
    config = make_config(tmp_path, *paths, order=order)
    first = zindex.build(config, SerialExecutor())
    monkeypatch.setattr(opening, "FEW_NBYTES", 0)
    executor = ElsewhereExecutor(tmp_path)
    again = zindex.build(config, executor)
    assert executor.keys == ["check-0"]
    assert {key: result.store for key, result in again.items()} == {
        key: result.store for key, result in first.items()
    }


def test_errors_are_those_of_opening(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "FEW_NBYTES", 0)
    good, bad = (write_corpus(LENGTHS, name=name) for name in ("good", "bad"))
    with pytest.raises(StoreNotFoundError, match=r"no dataset at .*missing"):
        zindex.build(make_config(tmp_path, good, str(tmp_path / "missing")), SerialExecutor())
    Path(f"{bad}.idx").write_bytes(b"MMIDIDX" + bytes(100))
    with pytest.raises(SourceError, match=r"bad\.idx") as caught:
        zindex.build(make_config(tmp_path, good, bad), SerialExecutor())
    assert caught.value.__notes__ == ["in task check-0"]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_without_a_blend_an_index_starts_while_other_datasets_are_checked(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(opening, "FEW_NBYTES", 0)
    monkeypatch.setattr(opening, "TASK_FILES", 1)
    paths = [write_corpus(LENGTHS * number, name=f"pair-{number}") for number in (3, 4)]
    started: list[str] = []

    class SlowCheck(SerialExecutor):
        """Checks the second dataset only once the shuffle of the first starts, or never will."""

        async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
            for _ in range(200 if key == "check-1" else 0):
                if "shuffle-pair-3-train" in str(started):
                    break
                await asyncio.sleep(0.01)
            started.append(key)
            return await super().run(function, *args, key=key, priority=priority)

    config = make_config(tmp_path, *paths, order=order)
    results = zindex.build(config, SlowCheck())
    assert "shuffle-pair-3-train" in str(started[: started.index("check-1")])
    assert len(results) == 6
    assert all(result.num_written == result.num_shards for result in results.values())
    other = replace(config, index=str(tmp_path / "other"))
    monkeypatch.setattr(opening, "FEW_NBYTES", 1 << 30)
    zindex.build(other, SerialExecutor())
    assert all_files(tmp_path / "other") == all_files(tmp_path / "index")
