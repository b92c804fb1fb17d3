"""Copies of compressed files on this node: made once, kept while used, and removed for others."""

import bz2
import gzip
import lzma
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.damage import flipped
from zindex.errors import StoreNotFoundError, StoreUnwritableError
from zindex.io import plain_copies
from zindex.io.file_chunks import read_at
from zindex.io.file_list import SourceFile, list_files
from zindex.io.plain_copies import PlainCopies

TEXT = b"".join(b'{"i": %d}\n' % number for number in range(2000))


@pytest.fixture(autouse=True)
def _caches(caches: Path) -> None:
    """Copies are below the folder of the test."""


def write(path: Path, content: bytes) -> SourceFile:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    [file] = list_files(path, [".jsonl"])
    return file


def copies_of(*files: SourceFile, whole_lines: bool = True) -> PlainCopies:
    return PlainCopies(files, whole_lines=whole_lines)


def test_files_are_copied_once(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packs = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    packs["zst"] = zstandard.ZstdCompressor().compress
    files = [write(tmp_path / f"a.jsonl.{name}", pack(TEXT)) for name, pack in packs.items()]
    copies = copies_of(*files)
    assert copies.num_missing == 4
    for file in files:
        opened, damages = copies.open(file)
        assert (opened.path.read_bytes(), opened.nbytes, damages) == (TEXT, len(TEXT), [])
        assert (opened.place, opened.url, opened.is_cut) == (file.place, file.url, True)
        opened.path.write_bytes(TEXT[::-1])  # which another process would not make again
    again = copies_of(*files, write(tmp_path / "b.jsonl.gz", gzip.compress(b"{}\n")))
    assert again.num_missing == 1
    assert {again.open(file)[0].path.read_bytes() for file in files} == {TEXT[::-1]}
    # A file that was written since is another one.
    os.utime(files[0].path, (1, 1))
    assert copies_of(*files).num_missing == 1


def test_a_copy_that_is_removed_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(TEXT))
    opened, _ = copies_of(file).open(file)
    opened.path.unlink()
    with pytest.raises(StoreNotFoundError, match=r"no copy \S+ of \S+a\.jsonl\.gz any more; open"):
        read_at(opened, 0, 10)
    assert copies_of(file).open(file)[0].path.read_bytes() == TEXT


def test_threads_and_processes_make_a_copy_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(TEXT * 50))
    with ThreadPoolExecutor(8) as threads:
        opened = threads.map(lambda _: copies_of(file).open(file)[0].path.stat().st_ino, range(16))
    assert len(set(opened)) == 1


def test_damage_is_kept_with_a_copy(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    cut = write(tmp_path / "cut.jsonl.gz", packed[: len(packed) // 2])
    for _ in range(2):
        opened, [damage] = copies_of(cut).open(cut)
        assert damage.is_end
        assert "ends too early" in damage.reason
        content = opened.path.read_bytes()
        assert TEXT.startswith(content)
        assert content.endswith(b"}\n")
        assert damage.offset - len(content) < 14
    opened, _ = copies_of(cut, whole_lines=False).open(cut)
    assert len(opened.path.read_bytes()) == damage.offset
    # Only a checksum is wrong: all content is there.
    wrong = write(tmp_path / "wrong.jsonl.gz", flipped(packed, len(packed) - 6) + packed)
    opened, [damage] = copies_of(wrong).open(wrong)
    assert not damage.is_end
    assert opened.path.read_bytes() == 2 * TEXT


def test_unused_copies_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_copies, "_KEPT_SHARE", 0)
    files = [write(tmp_path / name / "a.jsonl.gz", gzip.compress(TEXT)) for name in "abc"]
    used, unused = copies_of(files[0]), copies_of(files[1])
    paths = [one.open(file)[0].path for one, file in zip((used, unused), files, strict=False)]
    del unused
    third = copies_of(files[2])
    assert [path.exists() for path in paths] == [True, False]
    third.open(files[2])
    # They are made again when they are needed.
    assert copies_of(files[1]).open(files[1])[0].path.read_bytes() == TEXT


def test_a_copy_that_is_larger_than_expected_has_others_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"{}\n" * 1_000_000
    files = [write(tmp_path / name / "a.jsonl.gz", gzip.compress(text)) for name in "ab"]
    first = copies_of(files[0])
    path = first.open(files[0])[0].path
    status = os.statvfs(first.folder)
    limit = 1.5 * len(text) / (status.f_blocks * status.f_frsize)
    monkeypatch.setattr(plain_copies, "_KEPT_SHARE", limit)
    del first
    second = copies_of(files[1])
    assert path.exists()
    second.open(files[1])
    assert not path.exists()


def test_without_room_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(TEXT))
    copies = copies_of(file)
    message = r"this is a copy of \S+a.jsonl.gz, so set TMPDIR .* or prepare_nbytes=0 to read"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StoreUnwritableError, match=message):
            copies.open(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setattr(plain_copies, "FREE_NBYTES", 1 << 62)
    monkeypatch.setattr(plain_copies, "STEP_NBYTES", 1000)
    with pytest.raises(StoreUnwritableError, match=rf"only [\d,]+ bytes would be left.* {message}"):
        copies.open(file)
    assert not [name for name in os.listdir(copies.folder) if "partial" in name or "json" in name]


def test_copies_need_a_folder_of_the_user(caches: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(TEXT))
    for folder in (caches / "zindex" / "copies", caches / f"zindex-{os.geteuid()}" / "copies"):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    with pytest.raises(StoreUnwritableError, match="need a folder that only its user can write"):
        copies_of(file)
