"""Files that can be read at any offset: which are copied, and when they are read in order."""

import gzip
import pickle
from pathlib import Path

import pytest

from tests.sources.archives import numbered, plain, read_all, write_jsonl, write_tar
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.io.files import write_once
from zindex.io.objects import ObjectPath
from zindex.io.request_threads import DaemonPool
from zindex.sources import opened_files, tar_members
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.opened_files import look_up_all, open_files
from zindex.sources.part_files import PartFiles
from zindex.sources.tar_files import TarFiles

ROWS = [{"key": f"{number:04d}", "caption": f"caption {number}"} for number in range(30)]


@pytest.fixture(autouse=True)
def _caches(caches: Path) -> None:
    """Copies and tables are below the folder of the test."""


def samples_of(files: PartFiles) -> list[dict[str, object]]:
    """Return all samples, read in any order."""
    found = files.find_samples()
    assert found is not None
    ranges = [(0, found.num_samples)]
    if not files.is_requested:
        return list(files.parse_samples(files.read_samples(ranges)))
    return list(files.parse_samples(files.request_samples(ranges, None, DaemonPool(4))))


def upload(path: Path, place: ObjectPath) -> None:
    write_once(place / path.name, [path.read_bytes()], replace=True)


def test_compressed_files_have_the_samples_of_plain_ones(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    files = JsonlFiles(packed)
    assert samples_of(files) == read_all(files)
    assert samples_of(pickle.loads(pickle.dumps(files))) == read_all(files)
    assert {sample["__url__"] for sample in samples_of(files)} == {str(packed)}
    assert files.content() == JsonlFiles(tmp_path / "a.jsonl").content()
    write_jsonl(tmp_path / "b.meta.jsonl", ROWS)
    tar = tmp_path / "b.tar.gz"
    tar.write_bytes(gzip.compress(write_tar(tmp_path / "b.tar", numbered(30)).read_bytes()))
    assert samples_of(TarFiles(tar, meta_names=["caption"])) == read_all(
        TarFiles(tar, meta_names=["caption"])
    )


def test_damaged_streams_lose_what_they_lose_in_order(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(b'{"i": %d}\n' % number for number in range(5000)))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed[:-2000])
    with pytest.raises(SourceError, match=r"a\.jsonl\.gz must be lines .* stream ends too early"):
        JsonlFiles(path).find_samples()
    files, in_order = (JsonlFiles(path, on_damage="skip") for _ in range(2))
    assert samples_of(files) == read_all(in_order)
    assert files.num_skipped == in_order.num_skipped == 1
    tar = tmp_path / "b.tar.gz"
    whole = gzip.compress(write_tar(tmp_path / "b.tar", numbered(300)).read_bytes())
    tar.write_bytes(whole[: len(whole) // 2])
    files, in_order = (TarFiles(tar, on_damage="skip") for _ in range(2))
    samples, expected = samples_of(files), read_all(in_order)
    assert samples == expected[: len(samples)]
    assert len(samples) >= len(expected) - 1 > 100
    assert files.num_skipped == 1
    with pytest.raises(SourceError, match=r"b\.tar\.gz must be a whole tar .* ends too early"):
        TarFiles(tar).find_samples()


def test_small_objects_are_copied_and_large_ones_are_not(
    tmp_path: Path, objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    upload(path, objects)
    files = JsonlFiles(f"{objects}/a.jsonl")
    expected = plain(read_all(files))
    assert plain(samples_of(files)) == expected
    assert not files.is_requested
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", path.stat().st_size - 1)
    files = JsonlFiles([f"{objects}/a.jsonl", path])  # type: ignore[list-item]
    assert plain(samples_of(files)) == 2 * expected
    assert files.is_requested
    known = look_up_all(files._files)
    assert [one.copy is None for one in open_files(known).files] == [True, True]
    assert [one.copy is None for one in open_files(known, copy_all=True).files] == [False, True]


def test_a_changed_object_is_an_error(
    tmp_path: Path, objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    upload(path, objects)
    files = JsonlFiles(f"{objects}/a.jsonl")
    assert len(samples_of(files)) == 30
    upload(write_jsonl(path, ROWS[::-1]), objects)
    with pytest.raises(SourceError, match="it was written meanwhile"):
        samples_of(files)
    upload(write_jsonl(path, ROWS[:2]), objects)
    with pytest.raises(SourceError, match="it was written meanwhile"):
        samples_of(files)
    with pytest.raises(StoreNotFoundError, match=r"no object s3://memory/store/b\.jsonl"):
        JsonlFiles(f"{objects}/b.jsonl").find_samples()


@pytest.mark.parametrize("gap", [0, 16 << 20])
def test_archives_with_metadata_in_an_object_store(
    tmp_path: Path, objects: ObjectPath, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    monkeypatch.setattr(tar_members, "_MAX_GAP_NBYTES", gap)
    upload(write_tar(tmp_path / "a.tar", numbered(30, size=50_000)), objects)
    upload(write_tar(tmp_path / "b.tar", numbered(3)), objects)
    upload(write_jsonl(tmp_path / "a.meta.jsonl", [*ROWS, *ROWS[3:5]]), objects)
    files = TarFiles(str(objects), meta_names=["caption"])
    assert samples_of(files) == read_all(files)
    assert samples_of(pickle.loads(pickle.dumps(files))) == read_all(files)
    assert samples_of(files)[7]["caption"] == "caption 7"


def test_larger_sources_are_read_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"i": 1}\n' * 9))
    size = path.stat().st_size
    assert JsonlFiles(path, prepare_nbytes=size).find_samples() is not None
    files = JsonlFiles(path, prepare_nbytes=size - 1)
    assert files.find_samples() is None
    assert f"{size} bytes are compressed or in an object store" in caplog.text
    caplog.clear()
    assert files.find_samples() is JsonlFiles(path, prepare_nbytes=0).find_samples() is None
    assert not caplog.text
    for wrong in (-1, "8G"):
        with pytest.raises(ConfigError, match=f"prepare_nbytes must be a whole .* {wrong!r}"):
            JsonlFiles(path, prepare_nbytes=wrong)  # type: ignore[arg-type]
