"""Copies of objects: fetched once, and whenever they have changed."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.io.test_remote_files import make_msc
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.io import node_copy, object_client
from zindex.io.node_copy import VERSION_SUFFIX, keep_copy
from zindex.io.objects import ObjectPath


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of objects, in order."""
    asked: list[str] = []
    ask = object_client.ask

    def counted(path: Any, action: str, *arguments: Any, **options: Any) -> Any:
        asked.append(action)
        return ask(path, action, *arguments, **options)

    monkeypatch.setattr(object_client, "ask", counted)
    return asked


def put(place: ObjectPath, content: bytes) -> str:
    object_client.put(place, [content], replace=True)
    return str(place)


def test_a_copy_is_fetched_once_and_when_it_changes(
    objects: ObjectPath, requests: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zindex.io.file_chunks.REMOTE_NBYTES", 4)
    url = put(objects / "a.idx", b"0123456789")
    copy = tmp_path / "cache" / "a.idx"
    requests.clear()
    keep_copy(url, copy)
    assert copy.read_bytes() == b"0123456789"
    assert sorted(requests) == ["looked up"] * 2 + ["read"] * 3
    requests.clear()
    keep_copy(url, copy)
    assert requests == ["looked up"]
    put(objects / "a.idx", b"other 6789")
    keep_copy(url, copy)
    assert copy.read_bytes() == b"other 6789"
    put(objects / "a.idx", b"")
    keep_copy(url, copy)
    assert copy.read_bytes() == b""
    assert sorted(path.name for path in copy.parent.iterdir()) == [
        "a.idx",
        f"a.idx{VERSION_SUFFIX}",
    ]


@pytest.mark.parametrize("damage", ["cut", "gone", "version", "other"])
def test_a_copy_that_is_not_current_is_replaced(
    objects: ObjectPath, tmp_path: Path, damage: str
) -> None:
    url, copy = put(objects / "a", b"0123456789"), tmp_path / "a"
    keep_copy(url, copy)
    record = copy.with_name(f"a{VERSION_SUFFIX}")
    if damage == "cut":
        copy.write_bytes(b"012")
    elif damage == "gone":
        copy.unlink()
    elif damage == "version":
        record.write_text(record.read_text()[:-3])
        copy.write_bytes(b"9876543210")
    else:  # of another object, under the same name
        keep_copy(put(objects / "b", b"9876543210"), copy)
        assert copy.read_bytes() == b"9876543210"
    left = copy.with_name("a.0123.partial")
    left.write_bytes(b"of one that was killed")
    keep_copy(url, copy)
    assert copy.read_bytes() == b"0123456789"
    assert not left.exists()


def test_a_poisoned_copy_of_the_same_size_is_replaced(objects: ObjectPath, tmp_path: Path) -> None:
    url, copy = put(objects / "a", b"0123456789"), tmp_path / "a"
    keep_copy(url, copy)
    status = copy.stat()
    copy.write_bytes(b"9876543210")
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    keep_copy(url, copy)
    assert copy.read_bytes() == b"0123456789"


def test_a_copy_that_was_touched_only_is_kept(
    objects: ObjectPath, requests: list[str], tmp_path: Path
) -> None:
    url = put(objects / "a", b"0123456789")
    keep_copy(url, tmp_path / "a")
    os.utime(tmp_path / "a")
    requests.clear()
    keep_copy(url, tmp_path / "a")
    keep_copy(url, tmp_path / "a")
    assert requests == ["looked up"] * 2


@pytest.mark.parametrize("name", ["a", f"a{VERSION_SUFFIX}", "."])
def test_planted_links_are_not_followed(objects: ObjectPath, tmp_path: Path, name: str) -> None:
    url, victim, cache = put(objects / "a", b"0123456789"), tmp_path / "victim", tmp_path / "cache"
    victim.mkdir()
    (victim / "file").write_bytes(b"9876543210")
    if name == ".":
        cache.symlink_to(victim)
    else:
        cache.mkdir()
        (cache / name).symlink_to(victim / "file")
    if name == "a":
        keep_copy(url, cache / "a")
        assert (cache / "a").read_bytes() == b"0123456789"
        assert not (cache / "a").is_symlink()
    else:
        with pytest.raises(ConfigError, match=r"must belong to this user, .* own for copies"):
            keep_copy(url, cache / "a")
    assert (victim / "file").read_bytes() == b"9876543210"
    assert [path.name for path in victim.iterdir()] == ["file"]


def test_the_directory_is_private(
    objects: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, cache = put(objects / "a", b"0123456789"), tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    keep_copy(url, cache / "a")
    assert cache.stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(node_copy.os, "geteuid", lambda: 12345)
    cache.chmod(0o777)
    with pytest.raises(
        ConfigError, match=r"cache must belong to this user, .* or others may write"
    ):
        keep_copy(url, cache / "a")
    cache.chmod(0o755 if os.getuid() == 0 else 0o700)
    with pytest.raises(ConfigError, match=r"must belong to this user"):
        keep_copy(url, cache / "a")


def test_concurrent_processes_fetch_once(
    objects: ObjectPath, requests: list[str], tmp_path: Path
) -> None:
    url = put(objects / "a", b"0123456789")
    requests.clear()
    meeting = threading.Barrier(8)

    def one(number: int) -> None:
        meeting.wait()
        keep_copy(url, tmp_path / "a")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert requests.count("read") == 1
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_an_object_that_is_written_meanwhile_is_fetched_again(
    objects: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(objects / "a", b"0")
    read_ahead, contents = node_copy.read_ahead, [b"1", b"2"]

    def read_late(*arguments: Any) -> Any:
        yield from read_ahead(*arguments)
        if contents:
            put(objects / "a", contents.pop(0))

    monkeypatch.setattr(node_copy, "read_ahead", read_late)
    keep_copy(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"2"
    contents += [b"3", b"4", b"5"]
    put(objects / "a", b"new")
    with pytest.raises(SourceError, match=r"/a must stay as it is while it is copied to \S+/a, it"):
        keep_copy(url, tmp_path / "a")


def test_without_locks_it_is_fetched_by_each(
    objects: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(node_copy.fcntl, "flock", refuse)
    left = tmp_path / "a.0123.partial"
    left.write_bytes(b"perhaps of one that is alive")
    keep_copy(put(objects / "a", b"0123456789"), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    assert left.exists()


def test_there_may_be_none(objects: ObjectPath, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"no object s3://memory/store/a; check the URL"):
        keep_copy(f"{objects}/a", tmp_path / "a")


def test_clients_that_tell_nothing_fetch_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_msc(tmp_path, tells=False)
    monkeypatch.setitem(sys.modules, "multistorageclient", package)
    for content in (b"01", b"23"):
        (tmp_path / "a").write_bytes(content)
        keep_copy("msc://profile/a", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content
