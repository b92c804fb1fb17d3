"""Files promise the same in a file system and in an object store."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.store.stores import ONE, TWO, build_arrays, count_up, plan_arrays
from zindex.errors import (
    NotReadyError,
    SourceError,
    StoreError,
    StoreNotFoundError,
    StoreUnreadableError,
)
from zindex.io import files
from zindex.io.objects import Place
from zindex.store.commit import read_status
from zindex.store.heartbeat import (
    read_heartbeat,
    remove_first_heartbeat,
    write_first_heartbeat,
    write_heartbeat,
)
from zindex.store.open import open_store
from zindex.store.shard_files import find_receipt, write_shard


@pytest.fixture(params=["path", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place: Place = tmp_path if request.param == "path" else request.getfixturevalue("objects")
    return place


def test_a_file_is_written_once(root: Place) -> None:
    path = root / "a" / "b.json"
    assert not files.exists(path)
    assert files.file_nbytes(path) is None
    assert files.file_version(path) is None
    assert files.write_once(path, [b"one ", bytearray(b"tw"), memoryview(b"o")], facts={"a": "1"})
    assert not files.write_once(path, [b"other"])
    assert files.read_file(path) == b"one two"
    assert bytes(files.read_range(path, 1, 3)) == b"ne"
    assert bytes(files.read_range(path, 5, 30)) == b"wo"
    version = files.file_version(path)
    assert files.write_once(path, [b"better"], replace=True)
    assert (files.read_file(path), files.file_nbytes(path)) == (b"better", 6)
    assert files.file_version(path) != version
    assert not files.exists(path.parent)
    with pytest.raises(StoreError, match=r"b.json must hold at most 5 bytes, it"):
        files.read_file(path, limit=5)
    files.remove_file(path)
    files.remove_file(path)
    assert not files.exists(path)


def test_missing_files(root: Place) -> None:
    path = root / "nothing"
    with pytest.raises(StoreNotFoundError, match=r"no (file|object) .*nothing; check the"):
        files.read_file(path)
    with pytest.raises(StoreNotFoundError, match=r"no file .*nothing; check the path"):
        files.read_range(path, 0, 1)
    assert files.list_names(path) == set()
    assert list(files.list_keys(path)) == []


def test_names(root: Place) -> None:
    for key in ("c/0", "c/10", "c/2/0", "c/2/1", "zarr.json"):
        files.write_once(root / key, [b"x"])
    assert files.list_names(root) == {"c", "zarr.json"}
    assert set(files.list_keys(root / "c")) == {"0", "10"}
    assert set(files.list_keys(root / "c", depth=2)) == {"2/0", "2/1"}


def test_room(root: Place) -> None:
    free = files.free_nbytes(root)
    assert (free is None) == (not isinstance(root, Path))
    files.sync_directory(root)


def test_signs_of_life(root: Place) -> None:
    place = root / "store"
    assert read_heartbeat(place) is None
    build_arrays(place, {ONE: count_up(10)})
    seen = {read_heartbeat(place)}
    for _ in range(3):
        write_heartbeat(place)
        seen.add(read_heartbeat(place))
    assert len(seen) == 4


def test_signs_of_life_before_there_is_a_plan(root: Place) -> None:
    place = root / "store"
    seen = [read_heartbeat(place)]
    for _ in range(2):
        write_first_heartbeat(place)
        seen.append(read_heartbeat(place))
    write_heartbeat(place)
    seen.append(read_heartbeat(place))
    assert len(set(seen)) == 4
    plan = build_arrays(place, {ONE: count_up(10)})
    before = read_heartbeat(place)
    remove_first_heartbeat(place)
    if isinstance(place, Path):
        assert "alive" not in files.list_names(place / "_zindex")
        assert read_heartbeat(place) != before
    write_heartbeat(plan.root)
    assert read_heartbeat(place) != before


def test_a_store_that_was_removed_stays_removed(tmp_path: Path) -> None:
    write_heartbeat(tmp_path / "store")
    remove_first_heartbeat(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_receipts_are_found_again(root: Place) -> None:
    values = count_up(10, num_columns=2)
    plan = build_arrays(root / "store", {TWO: values})
    [layout] = plan.layouts
    written = [find_receipt(plan.root, layout, shard) for shard in range(2)]
    assert None not in written
    assert find_receipt(plan.root, layout, 2) is None
    # Nothing is written over a sound shard, and a damaged one is put right.
    assert not write_shard(plan.root, layout, 0, values[:6]).written
    path = plan.root / layout.shard_key(1)
    sound = files.read_file(path)
    for damaged in (sound[:-1], sound[:8], b"", bytes([sound[0]]) + sound[2:]):
        files.write_once(path, [damaged], replace=True)
        assert find_receipt(plan.root, layout, 1) is None
        result = write_shard(plan.root, layout, 1, values[6:])
        assert result.written
        assert [find_receipt(plan.root, layout, shard) for shard in range(2)] == written
    # A copy that lost what lay beside the object is a receipt all the same.
    files.write_once(path, [sound], replace=True)
    assert find_receipt(plan.root, layout, 1) == written[1]


def test_an_unfinished_store(root: Place) -> None:
    plan = build_arrays(root / "store", {ONE: count_up(10), TWO: count_up(10, num_columns=2)})
    np.testing.assert_array_equal(open_store(plan.root)["one"], count_up(10))
    files.remove_file(plan.root / "zarr.json")
    files.remove_file(plan.root / "two/c/0/0")
    files.write_once(plan.root / "two/c/0/other", [b"x"])
    assert read_status(plan.root).num_done == 3
    with pytest.raises(NotReadyError, match=r"store is not built yet: 3 of 4 shards are finished"):
        open_store(plan.root)


def test_read_errors_name_the_file(tmp_path: Path) -> None:
    """A name that leads in a circle is there, and nobody can read it."""
    build_arrays(tmp_path / "store", {ONE: count_up(10)})
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    message = rf"{loop} must be readable, the system says: Too many levels of symbolic links; check"
    for read in (
        lambda: files.read_file(loop),
        lambda: files.read_range(loop, 0, 1),
        lambda: files.file_version(loop),
    ):
        with pytest.raises(StoreUnreadableError, match=message) as caught:
            read()
        assert type(caught.value.__cause__) is OSError
    shard = tmp_path / "store" / "one" / "c" / "0"
    [layout] = plan_arrays(tmp_path / "store", {ONE: count_up(10)}).layouts
    shard.unlink()
    shard.mkdir()
    assert find_receipt(tmp_path / "store", layout, 0) is None  # damage, which is replaced
    root = tmp_path / "store" / "zarr.json"
    root.unlink()
    root.mkdir()
    with pytest.raises(StoreUnreadableError, match=rf"{root} must be readable, .* Is a directory"):
        open_store(tmp_path / "store")


@pytest.mark.parametrize("call", ["stat", "listdir", "scandir"])
def test_places_that_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*args: object, **settings: object) -> object:
        raise PermissionError(13, "Permission denied")

    reads = {
        "stat": [lambda: files.file_nbytes(tmp_path), lambda: files.exists(tmp_path)],
        "listdir": [lambda: files.list_names(tmp_path)],
        "scandir": [lambda: list(files.list_keys(tmp_path))],
    }
    monkeypatch.setattr(os, call, refuse)
    for read in reads[call]:
        with pytest.raises(
            StoreUnreadableError, match=r"the system says: Permission denied; check"
        ):
            read()


def test_texts(root: Place) -> None:
    path = root / "text"
    files.write_once(path, ["a\r\nü\n".encode()])
    assert files.read_text(path) == "a\nü\n"
    files.write_once(path, [b"ab\xff"], replace=True)
    with pytest.raises(SourceError, match="must be text in UTF-8, byte 2 is not: invalid start"):
        files.read_text(path)
