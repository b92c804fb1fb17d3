"""Compressed files of frames: read at any offset without copies, and what damage loses."""

import gzip
import itertools
import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.damage import flipped
from tests.sources.archives import (
    bgzip,
    numbered,
    plain,
    read_all,
    seekable_zstd,
    write_jsonl,
    write_tar,
)
from zindex.errors import SourceError
from zindex.io import frame_cache
from zindex.io.files import write_once
from zindex.io.objects import ObjectPath
from zindex.io.request_threads import DaemonPool
from zindex.sources import framed_files, opened_files, sample_offsets, tar_members
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.part_files import PartFiles
from zindex.sources.tar_files import TarFiles

pytest.importorskip("zstandard")
ROWS = [{"i": number, "text": "x" * (number % 97)} for number in range(900)]
TEXT = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)

Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {
    "gz": lambda content: bgzip(content)[0],
    "zst": seekable_zstd,
    "small.zst": lambda content: seekable_zstd(content, 1000, checksums=False),
}


@pytest.fixture(autouse=True)
def _caches(caches: Path) -> None:
    """Caches are below the folder of the test."""


def samples_of(files: PartFiles, seed: int = 0) -> list[dict[str, Any]]:
    """Return all samples, read in ranges in a random order, in the order of the files."""
    found = files.find_samples()
    assert found is not None
    rng, total, samples = random.Random(seed), found.num_samples, []
    cuts = sorted({0, total, *(rng.randint(0, total) for _ in range(9))})
    ranges = [*itertools.pairwise(cuts)]
    rng.shuffle(ranges)
    for one in ranges:
        if files.is_requested:
            raws: Any = files.request_samples([one], None, DaemonPool(4))
        else:
            raws = files.read_samples([one])
        samples += [(one, sample) for sample in files.parse_samples(raws)]
    return [sample for _, sample in sorted(samples, key=lambda item: item[0])]


def name_of(kind: str, form: str) -> str:
    return f"{form.partition('.')[0]}.{kind}.{form.rpartition('.')[2]}"


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def is_framed(files: PartFiles) -> bool:
    files.find_samples()
    assert files._opened is not None
    return all(file.frames is not None and file.copy is None for file in files._opened.files)


@pytest.mark.parametrize("form", PACKS)
@pytest.mark.parametrize("limit", [0, 1 << 60], ids=["kept", "full"])
def test_lines_are_read_in_place(
    tmp_path: Path, caches: Path, form: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_cache, "FREE_NBYTES", limit)
    files = JsonlFiles(write(tmp_path, name_of("jsonl", form), PACKS[form](TEXT)), prepare_nbytes=1)
    expected = read_all(files)
    for seed in range(3):  # the first time from the file, then from the cache
        assert samples_of(files, seed) == expected
    assert is_framed(files)
    assert plain(expected) == plain(read_all(JsonlFiles(write(tmp_path, "a.jsonl", TEXT))))
    assert files.content() == JsonlFiles(tmp_path / "a.jsonl").content()
    assert samples_of(JsonlFiles(tmp_path / name_of("jsonl", form)), 7) == expected
    assert not [*caches.rglob("*.content")]


@pytest.mark.parametrize("form", PACKS)
def test_archives_are_read_in_place(tmp_path: Path, form: str) -> None:
    content = write_tar(tmp_path / "a.tar", numbered(60, size=3000)).read_bytes()
    write_jsonl(tmp_path / "a.meta.jsonl", [{"key": f"{n:04d}", "caption": n} for n in range(60)])
    files = TarFiles(
        write(tmp_path, name_of("tar", form), PACKS[form](content)), meta_names=["caption"]
    )
    assert samples_of(files) == read_all(files)
    assert is_framed(files)


@pytest.mark.parametrize("form", PACKS)
@pytest.mark.parametrize("has_index", [False, True])
def test_objects_are_read_by_ranges(
    caches: Path,
    objects: ObjectPath,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    has_index: bool,
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    packed = PACKS[form](TEXT)
    write_once(objects / name_of("jsonl", form), [packed])
    if has_index:
        write_once(objects / f"{name_of('jsonl', form)}.gzi", [bgzip(TEXT)[1]])
    files = JsonlFiles(f"{objects}/{name_of('jsonl', form)}")
    assert samples_of(files) == read_all(files)
    assert is_framed(files)
    assert files.is_requested
    # Another process needs no more than the frames of what it reads.
    read = []
    monkeypatch.setattr(
        "zindex.io.file_chunks.object_client.get_range",
        lambda place, start, stop, of: read.append(stop - start) or packed[start:stop],
    )
    for folder in caches.rglob("copies"):
        shutil.rmtree(folder)
    again = JsonlFiles(f"{objects}/{name_of('jsonl', form)}")
    assert again.find_samples() is not None
    assert not read
    [sample] = again.parse_samples(again.request_samples([(500, 501)], None, DaemonPool(1)))
    assert sample["i"] == 500
    assert len(read) == 1
    # Concurrent requests for samples of a frame read it once.
    assert again._opened is not None
    frames, before = again._opened.files[0].frames, len(read)
    assert frames is not None
    with ThreadPoolExecutor(8) as threads:
        spans = [(number % 5, 900 + number) for number in range(40)]
        found = threads.map(lambda span: again._read_span(0, *span), spans)
        assert [*found] == [TEXT[start:stop] for start, stop in spans]
    assert len(read) - before <= 2


def test_an_index_that_does_not_fit_is_not_used(tmp_path: Path, objects: ObjectPath) -> None:
    packed, index = bgzip(TEXT)
    for number, wrong in enumerate(
        (
            index[:-1],
            index[:8],
            b"",
            index[:8] + index[24:] + index[8:24],
            bgzip(TEXT[:9000])[1],
            index[:-16] + (10**9).to_bytes(8, "little") + index[-8:],
        )
    ):
        write_once(objects / f"{number}.jsonl.gz.gzi", [wrong])
        write_once(objects / f"{number}.jsonl.gz", [packed])
        file = opened_files.look_up_all(JsonlFiles(f"{objects}/{number}.jsonl.gz")._files)[0]
        found = framed_files.find_frames(file)
        assert found is not None
        assert found.nbytes == len(TEXT)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(TEXT),
        bgzip(TEXT[:9000])[0] + gzip.compress(TEXT[9000:]),
        seekable_zstd(TEXT) + seekable_zstd(TEXT),
        seekable_zstd(TEXT)[:-9] + b"\0" * 9,
        seekable_zstd(b"x" * (9 << 20) + b"\n", 9 << 20),
        bgzip(b"")[0],
    ],
    ids=["gzip", "mixed", "two tables", "no table", "large frames", "empty"],
)
def test_other_files_are_copied(tmp_path: Path, content: bytes) -> None:
    suffix = "gz" if content.startswith(b"\x1f\x8b") else "zst"
    files = JsonlFiles(write(tmp_path, f"a.jsonl.{suffix}", content), on_damage="skip")
    files.find_samples()
    assert files._opened is not None
    assert files._opened.files[0].copy is not None
    assert samples_of(files) == read_all(files)


@pytest.mark.parametrize("form", ["gz", "zst"])  # others have no checksums
@pytest.mark.parametrize("seed", range(6))
def test_damage_loses_the_samples_of_its_frames(tmp_path: Path, form: str, seed: int) -> None:
    packed, rng = PACKS[form](TEXT), random.Random(f"{form}{seed}")
    end = len(packed) if form == "gz" else packed.rindex(b"\x5e\x2a\x4d\x18")
    path = write(tmp_path, name_of("jsonl", form), flipped(packed, rng.randrange(18, end)))
    files = JsonlFiles(path, on_damage="skip")
    found = [sample["i"] for sample in samples_of(files)]
    lost = {row["i"] for row in ROWS} - {*found}
    assert found == sorted({*found})
    # At most two frames, and the lines at their ends; a byte may not matter, as the time in gzip.
    assert max(lost, default=0) - min(lost, default=0) < 350
    assert bool(files.num_skipped) == bool(lost)
    if lost:
        with pytest.raises(SourceError, match=rf"\.jsonl\.{form} must be lines of JSON objects"):
            samples_of(JsonlFiles(path))


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_damage_of_archives_loses_their_members(tmp_path: Path, form: str) -> None:
    content = write_tar(tmp_path / "a.tar", numbered(40, size=9000)).read_bytes()
    rng = random.Random(form)
    for _ in range(8):
        packed = PACKS[form](content)
        end = len(packed) if form == "gz" else packed.rindex(b"\x5e\x2a\x4d\x18")
        path = write(tmp_path, name_of("tar", form), flipped(packed, rng.randrange(18, end)))
        files = TarFiles(path, on_damage="skip")
        samples = plain(samples_of(files))
        expected = plain(read_all(TarFiles(tmp_path / "a.tar")))
        assert all(sample in expected for sample in samples)
        assert bool(files.num_skipped) == (len(samples) < 40)


@pytest.mark.parametrize("what", ["size", "larger size", "header", "cut", "padding", "nothing"])
def test_blocks_are_found_after_damage(tmp_path: Path, what: str) -> None:
    packed, index = bgzip(TEXT)
    third = int.from_bytes(index[24:32], "little")
    broken = bytearray(packed)
    if what == "size":
        broken[third + 16] ^= 1
    elif what == "larger size":
        broken[third + 17] = 255
    elif what == "header":
        broken[third + 1] ^= 255
    elif what == "nothing":  # a block without its content: its length is 0
        stop = int.from_bytes(index[40:48], "little")
        broken[stop - 4 : stop] = bytes(4)
    broken = broken[:-500] if what == "cut" else broken + bytes(9 * (what == "padding"))
    files = JsonlFiles(write(tmp_path, "a.jsonl.gz", bytes(broken)), on_damage="skip")
    found = [sample["i"] for sample in samples_of(files)]
    assert is_framed(files)
    assert len(found) > (600 if files.num_skipped else 899)
    assert bool(files.num_skipped) == (what in ("header", "cut", "nothing"))
    assert found == sorted({*found})


def test_members_across_broken_frames_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [(f"{n}.bin", bytes([65 + n]) * 30_000) for n in range(9)]
    content = write_tar(tmp_path / "a.tar", members).read_bytes()
    packed, index = bgzip(content)
    for gap in (0, 16 << 20):
        monkeypatch.setattr(tar_members, "_MAX_GAP_NBYTES", gap)
        # A frame within the fourth member, then the one with its header and the third one's end.
        for block, left in ((24, "01245678"), (21, "01")):
            at = int.from_bytes(index[8 + 16 * block : 16 + 16 * block], "little")
            path = write(tmp_path, f"{block}-{gap}.tar.gz", flipped(packed, at + 20))
            files = TarFiles(path, on_damage="skip")
            keys = [sample["__key__"] for sample in samples_of(files)]
            assert keys == list(left)
            assert files.num_skipped == 1
            with pytest.raises(SourceError, match="must be a whole tar archive"):
                samples_of(TarFiles(path))


def test_tables_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_offsets, "MIN_KEPT_NBYTES", 0)
    path = write(tmp_path, "a.jsonl.gz", bgzip(TEXT)[0])
    expected = samples_of(JsonlFiles(path))
    monkeypatch.setattr(framed_files, "_Blocks", None)
    monkeypatch.setattr(JsonlFiles, "_scan", None)
    assert samples_of(JsonlFiles(path)) == expected
