"""Every byte of a store is checked, and what is wrong is named."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.damage import flip, flipped
from tests.store.stores import GRID, ONE, TWO, build_arrays, count_up, plan_arrays
from tests.trees import all_files
from zindex.errors import (
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    VerificationError,
)
from zindex.io import files
from zindex.store import verify
from zindex.store.commit import begin_store, read_plan
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.shard_files import find_receipt, store_shard
from zindex.store.verify import DamagedFile, StoreReport, verify_store

ARRAYS = {ONE: count_up(20), TWO: count_up(9, num_columns=2)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def damaged(report: StoreReport) -> dict[str, str]:
    return {damage.key: damage.problem for damage in report.damages}


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_sound_store_is_sound(root: Path, codec: str) -> None:
    plan = build_arrays(root, ARRAYS, ChunkGrid(3, 6, codec))
    advanced: list[int] = []
    report = verify_store(root, advance=advanced.append)
    assert report.is_sound
    assert not report.notes
    assert report.kind == "index"
    assert report.fingerprint == plan.fingerprint
    assert report.num_shards == plan.num_shards
    shards = [path for path in root.rglob("c/**/*") if path.is_file()]
    assert report.nbytes == sum(path.stat().st_size for path in shards)
    assert sum(advanced) == report.num_shards


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_flipped_bit_of_any_byte_is_found_and_its_file_named(root: Path, codec: str) -> None:
    build_arrays(root, {ONE: count_up(11), TWO: count_up(4, num_columns=2)}, ChunkGrid(3, 6, codec))
    rng = np.random.default_rng(5)
    for key, content in all_files(root).items():
        is_json = key.endswith(".json")
        for position in range(0, len(content), 7 if is_json else 1):
            (root / key).write_bytes(flipped(content, position, 1 << int(rng.integers(8))))
            report = verify_store(root)
            assert [damage.key for damage in report.damages] == [key], position
            assert (report.damages[0].shard is None) == is_json
        (root / key).write_bytes(content)
    assert verify_store(root).is_sound


def test_concurrent_reads_are_limited(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shard is checked last: those behind it must wait for it, not pile up."""
    build_arrays(root, {ONE: count_up(600)})
    begun: list[int] = []
    whole = threading.Event()
    check = verify.check_shard

    def slowly(place: Path, layout: Any, shard: int, committed: Any, **own: Any) -> Any:
        begun.append(shard)
        if len(begun) == verify._NUM_PENDING:
            whole.set()
        assert shard or whole.wait(60)
        return check(place, layout, shard, committed, **own)

    def look(num_shards: int) -> None:
        looks.append(len(begun))

    looks: list[int] = []
    monkeypatch.setattr(verify, "check_shard", slowly)
    assert verify_store(root, advance=look).is_sound
    assert sorted(begun) == list(range(100))
    assert looks[0] == verify._NUM_PENDING


def test_an_error_cancels_the_pending_shards(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_arrays(root, {ONE: count_up(600)})

    def fail(place: Path, layout: Any, shard: int, committed: Any, **own: Any) -> Any:
        begun.append(shard)
        raise StoreUnavailableError("gone")

    begun: list[int] = []
    monkeypatch.setattr(verify, "check_shard", fail)
    with pytest.raises(StoreUnavailableError, match="gone"):
        verify_store(root)
    assert len(begun) <= verify._NUM_PENDING


def test_a_missing_file_is_named(root: Path) -> None:
    build_arrays(root, ARRAYS)
    for key, content in all_files(root).items():
        (root / key).unlink()
        assert damaged(verify_store(root)) == {
            key: "is missing: the store is not committed" if key == "zarr.json" else "is missing"
        }
        (root / key).write_bytes(content)


@pytest.mark.parametrize("key", ["zarr.json", "_zindex/plan.json", "one/zarr.json", "one/c/1"])
def test_a_file_that_the_system_refuses_is_named(root: Path, key: str) -> None:
    build_arrays(root, ARRAYS)
    (root / key).unlink()
    (root / key).symlink_to((root / key).name)
    problem = "cannot be read: Too many levels of symbolic links"
    assert damaged(verify_store(root)) == {key: "is missing" if "/c/" in key else problem}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize(
    "key", ["zarr.json", "_zindex/plan.json", "_zindex/manifest.json", "one/zarr.json", "one/c/1"]
)
def test_only_regular_files_are_read(root: Path, key: str, make: Callable[[Path], None]) -> None:
    plan = build_arrays(root, ARRAYS)
    (root / key).unlink()
    make(root / key)
    problem = "cannot be read: Not a regular file (mode 0o10000)"
    if "/c/" in key:
        problem = "is missing"
    elif make is os.mkdir:
        problem = "cannot be read: Is a directory"
    assert damaged(verify_store(root)) == {key: problem}
    readers: list[Callable[[], Any]] = [
        lambda: open_store(root)["one"].read(0, 20),
        lambda: read_plan(root),
        lambda: find_receipt(root, plan.layouts[0], 1),
    ]
    for read in readers:
        with suppress(StoreError, VerificationError):
            read()


def test_another_size_is_named(root: Path) -> None:
    build_arrays(root, ARRAYS)
    shard = root / "one" / "c" / "2"
    content = shard.read_bytes()
    nbytes = len(content)
    for changed in (content[:-1], content + b"\0", b""):
        shard.write_bytes(changed)
        problem = f"has {len(changed)} bytes, {nbytes} were committed"
        assert damaged(verify_store(root)) == {"one/c/2": problem}


def test_swapped_shards_are_named_with_what_they_hold(root: Path) -> None:
    """Each of them is right by its own checksums."""
    build_arrays(root, ARRAYS)
    first, second = root / "one" / "c" / "0", root / "one" / "c" / "1"
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    assert damaged(verify_store(root)) == {"one/c/1": "holds what was committed as one/c/0"}
    first.write_bytes(contents[1])
    assert damaged(verify_store(root)) == {
        "one/c/0": "holds what was committed as one/c/1",
        "one/c/1": "holds what was committed as one/c/0",
    }


def test_a_shard_of_other_values_is_named(root: Path, tmp_path: Path) -> None:
    build_arrays(root, ARRAYS)
    build_arrays(tmp_path / "other", {ONE: count_up(20) + 1, TWO: ARRAYS[TWO]})
    shutil.copy(tmp_path / "other" / "one" / "c" / "1", root / "one" / "c" / "1")
    assert damaged(verify_store(root)) == {"one/c/1": "holds other values than were committed"}


def test_the_damaged_chunks_are_counted(root: Path) -> None:
    build_arrays(root, {ONE: count_up(60)}, ChunkGrid(3, 60))
    shard = root / "one" / "c" / "0"
    flip(shard, *(16 * chunk for chunk in (4, 7, 19)))
    assert damaged(verify_store(root)) == {
        "one/c/0": "chunk 4 of shard one/c/0 fails its checksum, as do 2 others"
    }


def test_other_files_are_noted(root: Path) -> None:
    build_arrays(root, ARRAYS)
    (root / "one" / "c" / "1.abc.partial").write_bytes(b"half")
    (root / "one" / "c" / "99").write_bytes(b"")
    (root / "README").write_text("mine")
    report = verify_store(root)
    assert report.is_sound
    assert report.notes == [
        "README is no part of the store",
        "one/c/1.abc.partial is what a stopped build left; it can be removed",
        "one/c/99 is no part of the store",
    ]


def test_an_unfinished_store_misses_its_commit_only(root: Path) -> None:
    plan = begin_store(plan_arrays(root, ARRAYS))
    (layout, _) = plan.layouts
    for shard in (0, 2):
        start, stop = layout.shard_bounds(shard)
        store_shard(root, layout, shard, lambda i=start, j=stop: ARRAYS[ONE][i:j])
    report = verify_store(root)
    assert damaged(report) == {"zarr.json": "is missing: the store is not committed"}
    assert report.notes == [f"2 of {plan.num_shards} shards are there"]
    shard_file = root / "one" / "c" / "2"
    shard_file.write_bytes(b"\1" + shard_file.read_bytes()[1:])
    assert set(damaged(verify_store(root))) == {"zarr.json", "one/c/2"}


def test_root_and_plan_damaged_together_leave_nothing_to_go_by(root: Path) -> None:
    build_arrays(root, ARRAYS)
    for name in ("zarr.json", "_zindex/plan.json"):
        (root / name).write_bytes(b"{}")
    report = verify_store(root)
    assert damaged(report) == {
        "zarr.json": "does not hold the metadata of a zindex store",
        "_zindex/plan.json": "fails its digest",
    }
    assert report.kind is None


def test_paths_that_are_not_stores(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no zindex store at"):
        verify_store(tmp_path)
    (tmp_path / "zarr.json").write_text('{"attributes": {}}')
    with pytest.raises(StoreError, match="must be a store written by zindex"):
        verify_store(tmp_path)


def test_a_later_format_is_not_damage(root: Path) -> None:
    build_arrays(root, ARRAYS)
    from zindex.store.commit import canonical_json, fingerprint

    content = json.loads((root / "zarr.json").read_bytes())
    facts = content["attributes"]["zindex"]
    facts["format_version"] = 99
    del facts["root_sha256"]
    facts["root_sha256"] = fingerprint(content)
    (root / "zarr.json").write_text(canonical_json(content))
    plan = json.loads((root / "_zindex/plan.json").read_bytes())
    del plan["plan_sha256"]
    plan["format_version"] = 99
    plan["plan_sha256"] = fingerprint(plan)
    (root / "_zindex/plan.json").write_text(canonical_json(plan))
    with pytest.raises(StoreError, match="has format version 99"):
        verify_store(root)


def test_a_report_is_json(root: Path) -> None:
    build_arrays(root, ARRAYS, GRID)
    (root / "one" / "c" / "0").unlink()
    report = verify_store(f"file://{root}")
    values = json.loads(json.dumps(report.to_json()))
    assert values["damaged"] == [{"key": "one/c/0", "problem": "is missing", "is_shard": True}]
    assert report.damages == [DamagedFile("one/c/0", "is missing", ("one", 0))]


def test_partial_reads_are_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build_arrays(tmp_path, {ONE: count_up(10)})
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda n, size, start: pread(n, min(size, 3), start))
    monkeypatch.setattr(os, "preadv", lambda n, parts, start: preadv(n, [parts[0][:3]], start))
    assert find_receipt(tmp_path, plan.layouts[0], 0) is not None
    assert verify_store(tmp_path).is_sound
    assert bytes(files.read_range(tmp_path / "zarr.json", 0, 50)).startswith(b"{")
    assert len(files.read_range(tmp_path / "zarr.json", 0, 50)) == 50
