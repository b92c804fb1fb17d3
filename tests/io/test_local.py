"""Create-only files: whole or not at all, whatever the system answers."""

import ctypes
import errno
import fcntl
import os
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_fresh
from zindex.errors import ConfigError, StoreError, StoreNotFoundError, StoreUnwritableError
from zindex.io import create_only, local
from zindex.io.local import free_nbytes, local_path, read_file, sync_directory, write_once


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/corpus.zarr", "/data/corpus.zarr"),
        ("/data/../corpus.zarr/", "/corpus.zarr"),
        ("file:///data/corpus.zarr", "/data/corpus.zarr"),
        ("file://localhost/data/corpus.zarr", "/data/corpus.zarr"),
        ("file:///data/my%20corpus.zarr", "/data/my corpus.zarr"),
        ("/data/my%20corpus.zarr", "/data/my%20corpus.zarr"),  # a path is taken as it is
        (Path("/data/corpus.zarr"), "/data/corpus.zarr"),
    ],
)
def test_local_path(url: str, path: str) -> None:
    assert local_path(url) == Path(path)


def test_local_path_is_absolute_and_knows_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert local_path("corpus.zarr") == tmp_path / "corpus.zarr"
    assert local_path("~/corpus.zarr") == Path("/home/me/corpus.zarr")


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_other_schemes_are_refused(scheme: str) -> None:
    message = f"a store must be a path or a file:// URL, got scheme '{scheme}'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        local_path(f"{scheme}://bucket/corpus.zarr")


def test_a_file_url_with_two_slashes_is_refused() -> None:
    """It names a host, and would silently be another path."""
    with pytest.raises(ConfigError, match=r"names the host 'data'.*file:///data/corpus.zarr"):
        local_path("file://data/corpus.zarr")


def test_write_once_creates_and_then_keeps(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    assert write_once(path, [b"first", b"", memoryview(b" content")])
    assert not write_once(path, [b"second"])
    assert path.read_bytes() == b"first content"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("nbytes", [0, 3, (1 << 20) - 4, 1 << 20, (3 << 20) + 5])
def test_a_file_that_is_not_to_be_cached_holds_the_same(tmp_path: Path, nbytes: int) -> None:
    content = (bytes(range(255)) * (nbytes // 255 + 1))[:nbytes]
    buffers = [content[:9], memoryview(content[9:]), b"end"]
    assert write_once(tmp_path / "file", buffers, cached=False)
    assert read_file(tmp_path / "file") == content + b"end"


@pytest.mark.parametrize("num_done", [0, 1])
def test_a_file_system_may_refuse_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_done: int
) -> None:
    real_write, calls = os.writev, []

    def write_some(descriptor: int, buffers: list[memoryview]) -> int:
        """Refuse a direct write, after a part of it."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        calls.append("direct" if flags & os.O_DIRECT else "plain")
        if calls[-1] == "direct" and len(calls) > num_done:
            os.lseek(descriptor, 512, os.SEEK_CUR)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(descriptor, buffers)

    monkeypatch.setattr(local.os, "writev", write_some)
    content = (bytes(range(251)) * 12533)[: 3 << 20]
    assert write_once(tmp_path / "file", [content, b"end"], cached=False)
    assert read_file(tmp_path / "file") == content + b"end"
    assert calls == ["direct"] * (num_done + 1) + ["plain"] * (4 - num_done)


def test_preallocation_and_read_ahead_are_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.posix_fadvise", refuse)
    monkeypatch.setattr("zindex.io.local._fallocate", None)
    content = bytes(2 << 20)
    assert write_once(tmp_path / "file", [content], cached=False)
    assert (tmp_path / "file").read_bytes() == content


def test_write_once_replaces_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_once(path, [b"damaged"])
    assert write_once(path, [b"right"], replace=True)
    assert path.read_bytes() == b"right"
    assert names(tmp_path) == ["file"]


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    assert write_once(tmp_path / "file", [])
    assert (tmp_path / "file").read_bytes() == b""


def test_more_buffers_than_one_system_call_takes(tmp_path: Path) -> None:
    buffers = [b"%05d" % i for i in range(2000)]
    assert write_once(tmp_path / "file", buffers)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_the_kernel_may_take_buffers_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def write_some(descriptor: int, buffers: list[memoryview]) -> int:
        return os.write(descriptor, b"".join(buffers)[:step])

    monkeypatch.setattr(local.os, "writev", write_some)
    assert write_once(tmp_path / "file", [b"abc", b"defgh", b"", b"ijk"])
    assert (tmp_path / "file").read_bytes() == b"abcdefghijk"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL])
@pytest.mark.parametrize("has_links", [True, False])
def test_file_systems_without_renameat2_or_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, has_links: bool
) -> None:
    def refuse(*names: object) -> int:
        ctypes.set_errno(code)
        return -1

    def refuse_link(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(create_only, "_renameat2", refuse)
    if not has_links:
        monkeypatch.setattr(local.os, "link", refuse_link)
    assert write_once(tmp_path / "file", [b"first"])
    assert not write_once(tmp_path / "file", [b"second"])
    assert (tmp_path / "file").read_bytes() == b"first"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("way", ["_rename_new", "link", "replace"])
@pytest.mark.parametrize("code", [errno.EEXIST, errno.ENOENT, errno.ESTALE, errno.EIO])
def test_a_lost_reply_is_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, code: int
) -> None:
    """The call was done, and its repetition reports an error."""
    module: Any = create_only if way == "_rename_new" else os
    real = getattr(module, way)

    def lose(*names: Any) -> None:
        real(*names)
        raise OSError(code, os.strerror(code))

    if way == "link":
        monkeypatch.setattr(create_only, "_renameat2", lambda *names: -1)
    monkeypatch.setattr(module, way, lose)
    assert write_once(tmp_path / "file", [b"mine"], replace=way == "replace")
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert names(tmp_path) == ["file"]


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take renameat2 and hard links away."""

    def refuse(*names: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(create_only, "_renameat2", lambda *names: -1)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(create_only, "_exclusive", {})


def test_a_file_system_that_creates_nothing_exclusively_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *a: real(path, flags & ~os.O_EXCL, *a))
    with pytest.raises(StoreError, match=r"must refuse to create a file that exists, by renameat2"):
        write_once(tmp_path / "file", [b"content"])
    assert names(tmp_path) == []


def test_a_claim_of_a_dead_writer_is_completed_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    path, partial = tmp_path / "file", tmp_path / "file.0123456789ab.partial"
    claim = create_only.CLAIM + partial.name.encode()
    path.write_bytes(claim)
    with pytest.raises(StoreNotFoundError, match="no file"):
        read_file(path)
    partial.write_bytes(b"theirs")
    assert not write_once(path, [b"mine"])
    assert read_file(path) == b"theirs"
    monkeypatch.setattr(create_only, "_PAUSE", 1e-9)
    for content in (claim, claim[:20], b"", create_only.CLAIM + b"../file.0123456789ab.partial"):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"file must be a whole file, it is the claim of a"):
            write_once(path, [b"mine"])
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_claim_that_fails_leaves_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    without_links(monkeypatch)
    real = getattr(os, call)
    calls = []

    def fail(*arguments: Any) -> Any:
        calls.append(call)
        if len(calls) > (call == "fsync"):  # the first is that of the content
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreUnwritableError, match="No space left on device; make room"):
            write_once(tmp_path / "file", [b"content"])
    assert names(tmp_path) == []
    assert write_once(tmp_path / "file", [b"content"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, r"7 bytes, where [\d,]+ are free, .* No space left on device; make room"),
        (errno.EDQUOT, r"7 bytes, the system says: Disk quota exceeded; make room, raise"),
        (errno.EACCES, r"Permission denied; check the permissions of the file and its folders"),
        (errno.EROFS, r"Read-only file system; mount the file system for writing or choose"),
        (errno.EMFILE, r"Too many open files; raise the limit of open files \(ulimit -n\)"),
    ],
)
@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str, call: str
) -> None:
    path = tmp_path / "folder" / "file"

    def refuse(name: Any, *arguments: Any) -> Any:
        if call == "open" and not path.parent.exists():
            raise FileNotFoundError
        raise OSError(code, os.strerror(code), os.fspath(name))

    if call == "open":
        path.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreUnwritableError, match=words) as caught:
            write_once(path, [b"content"])
        assert str(caught.value).startswith(f"{path} must be written with 7 bytes")
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "something"])
def test_a_folder_in_place_of_a_file_is_moved_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.mkdir()
    if content:
        (path / content).touch()
    assert not write_once(path, [b"right"])
    assert write_once(path, [b"right"], replace=True)
    assert path.read_bytes() == b"right"
    assert [len(names(other)) for other in tmp_path.glob("*.partial")] == [bool(content)]


def test_a_replacement_is_durable_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=real: (calls.append(n), f(*a))[1])
    with local.replacing(tmp_path / "file") as partial:
        Path(partial).write_bytes(b"content")
    assert calls == ["fsync", "replace", "fsync"]
    other = OSError(errno.EACCES, "Permission denied", "/another/file")
    with pytest.raises(OSError, match="another") as caught, local.replacing(tmp_path / "file"):
        raise other
    assert caught.value is other


@pytest.mark.parametrize("call", ["writev", "fsync", "_rename_new", "close"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_system_call_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    real_close = os.close

    def fail(*arguments: object) -> None:
        if call == "close":
            real_close(arguments[0])
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(create_only if call == "_rename_new" else local.os, call, fail)
        with pytest.raises(OSError, match=re.escape(os.strerror(code))):
            write_once(tmp_path / "file", [b"content"])
    assert names(tmp_path) == []
    assert write_once(tmp_path / "file", [b"content"])


def test_a_failed_replacement_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_once(tmp_path / "file", [b"old"])

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(local.os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_once(tmp_path / "file", [b"new"], replace=True)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_the_content_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for name in ("writev", "fsync", "close", "link", "unlink", "_rename_new"):
        module: Any = create_only if name == "_rename_new" else local.os
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, n=name, f=real: (calls.append(n), f(*args))[1]
        )
    write_once(tmp_path / "file", [b"content"])
    assert calls == ["writev", "fsync", "close", "_rename_new"]
    monkeypatch.setattr(create_only, "_renameat2", lambda *names: -1)
    write_once(tmp_path / "other", [b"content"])
    assert calls[4:] == ["writev", "fsync", "close", "_rename_new", "link", "unlink"]


def test_a_symlink_at_the_temporary_path_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = uuid.UUID(int=7)
    monkeypatch.setattr(create_only, "uuid4", lambda: known)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    planted = tmp_path / f"file.{known.hex[:12]}.partial"
    for target in (victim, tmp_path / "not there"):
        planted.unlink(missing_ok=True)
        planted.symlink_to(target)
        with pytest.raises(FileExistsError, match="File exists"):
            write_once(tmp_path / "file", [b"content"])
    assert victim.read_bytes() == b"precious"
    assert names(tmp_path) == [planted.name, "victim"]


def test_a_symlink_at_the_final_path_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "file").symlink_to(victim)
    assert not write_once(tmp_path / "file", [b"content"])
    assert write_once(tmp_path / "file", [b"content"], replace=True)
    assert not victim.exists()
    assert not (tmp_path / "file").is_symlink()


LIMITED_WRITER = """
import resource, signal, sys
from pathlib import Path
from zindex.io.local import write_once
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_once(Path(sys.argv[1]), [bytes(60), bytes(60)])
except OSError as error:
    print(error.strerror)
"""


def test_a_file_system_that_fills_up_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    done = run_fresh("-c", LIMITED_WRITER, str(tmp_path / "file"), check=True)
    assert done.stdout == "File too large\n"
    assert names(tmp_path) == []


def test_read_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, limit=5) == b"12345"
    with pytest.raises(StoreError, match=r"file must hold at most 4 bytes, it is larger"):
        read_file(path, limit=4)
    for missing in (tmp_path / "other", path / "below a file"):
        with pytest.raises(StoreNotFoundError, match=re.escape(f"no file {missing}; check")):
            read_file(missing)


def test_sync_directory_takes_directories_only(tmp_path: Path) -> None:
    sync_directory(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        sync_directory(tmp_path / "file")


def test_free_bytes_of_a_place_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert free_nbytes(tmp_path / "a" / "b") > 0
    status = os.statvfs(tmp_path)
    monkeypatch.setattr(local.os, "statvfs", lambda path: status)
    assert free_nbytes(tmp_path / "a" / "b") == status.f_bavail * status.f_frsize


def test_free_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status = os.statvfs(tmp_path)
    for path in (tmp_path, tmp_path / "none" / "deep", tmp_path / "file" / "below"):
        assert 0 < free_nbytes(path) <= status.f_blocks * status.f_frsize
