"""What no run needs of a folder: found by age and by the runs that use it, and removed."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.cli.commands import fail, succeed
from tests.conftest import WriteCorpus
from tests.store.stores import ONE, build_arrays, count_up, plan_arrays
from zindex.errors import StoreUnreadableError
from zindex.growing import growing_log
from zindex.maintenance.garbage import find_garbage
from zindex.store.commit import begin_store

ARRAYS = {ONE: count_up(10)}


def make_old(path: Path, hours: float = 48.0) -> None:
    """Set the times of a path and all below it back."""
    then = time.time() - 3600 * hours
    for each in (*path.rglob("*"), path):
        os.utime(each, (then, then))


@pytest.fixture
def run_file(tmp_path: Path, write_corpus: WriteCorpus) -> Path:
    """Write and build a run with two datasets."""
    for name in ("web", "code"):
        write_corpus([5] * 40, name=name)
    path = tmp_path / "run.yaml"
    path.write_text(
        "sequence_length: 4\nsplit: '1,0,0'\nindex: index\nsamples: {train: 50}\n"
        "datasets: [{path: web, weight: 3}, {path: code, weight: 2}]\n"
    )
    zindex.build(path)
    return path


def test_only_what_is_old_and_unnamed_is_garbage(run_file: Path) -> None:
    index = run_file.parent / "index"
    needed = sorted(path.name for path in index.iterdir())
    build_arrays(index / "finished", ARRAYS)
    for name in ("dead", "alive"):
        begin_store(plan_arrays(index / name, ARRAYS))
    (index / needed[0] / "x.partial").write_bytes(b"1234")
    (index / "shuffle-1").mkdir()
    make_old(index)
    os.utime(index / "alive" / "_zindex" / "plan.json")
    assert find_garbage(index, hours=72) == []

    unnamed = {item.path.name: item.reason for item in find_garbage(index)}
    assert unnamed == {
        "dead": "an unfinished build",
        "x.partial": "temporary files of a killed writer",
        "shuffle-1": "temporary files of a killed writer",
    }
    listed = json.loads(succeed("gc", index, "--run", run_file, "--json"))
    assert {Path(item["path"]).name for item in listed["garbage"]} == {*unnamed, "finished"}
    assert "4 files and folders, " in succeed("gc", index, "--run", run_file, "--remove")
    assert sorted(path.name for path in index.iterdir()) == sorted([*needed, "alive"])
    assert succeed("gc", index, "--run", run_file) == f"nothing is unused in {index}\n"
    assert "is not built" not in succeed("verify", run_file)


def test_a_store_that_cannot_be_looked_at_is_no_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_arrays(tmp_path / "a", ARRAYS)
    make_old(tmp_path)
    look = os.stat

    def fail_for_files(path: Any, *args: Any, **settings: Any) -> os.stat_result:
        if str(path).endswith(".json"):
            raise OSError(errno.EIO, "Input/output error")
        return look(path, *args, **settings)

    monkeypatch.setattr(os, "stat", fail_for_files)
    with pytest.raises(StoreUnreadableError, match="Input/output error"):
        find_garbage(tmp_path)


def test_stores_of_an_edited_run_are_kept(run_file: Path) -> None:
    zindex.edit(run_file, at=20, reweight={str(run_file.parent / "code"): 6})
    make_old(run_file.parent)
    assert find_garbage(run_file.parent, [run_file]) == []


def test_a_build_that_was_committed_meanwhile_is_kept(tmp_path: Path) -> None:
    begin_store(plan_arrays(tmp_path / "a", ARRAYS))
    make_old(tmp_path)
    (found,) = find_garbage(tmp_path)
    build_arrays(tmp_path / "a", ARRAYS)
    assert not found.remove()
    assert zindex.open_store(tmp_path / "a")["one"][3] == 3


def test_a_committed_store_that_lost_its_root_is_kept_for_repair(tmp_path: Path) -> None:
    build_arrays(tmp_path / "a", ARRAYS)
    (tmp_path / "a" / "zarr.json").unlink()
    make_old(tmp_path)
    assert find_garbage(tmp_path) == []


def test_the_copy_of_a_repair_that_died_is_garbage(tmp_path: Path) -> None:
    build_arrays(tmp_path / "a", ARRAYS)
    build_arrays(tmp_path / "a" / "_zindex" / "repair" / "a", ARRAYS)
    make_old(tmp_path)
    (found,) = find_garbage(tmp_path)
    assert found.remove()
    assert sorted(path.name for path in (tmp_path / "a" / "_zindex").iterdir()) == [
        "manifest.json",
        "plan.json",
    ]


def test_only_directories_are_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "must be a directory to be cleaned, got" in fail("gc", tmp_path / "none")
    monkeypatch.setattr(growing_log, "is_growing", lambda url: False)  # without a request
    assert "must be a directory to be cleaned, got s3://" in fail("gc", "s3://bucket/index")
