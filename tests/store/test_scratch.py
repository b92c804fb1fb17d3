"""Streams of an import: any range of them, checked; and what keeps two imports apart."""

import errno
from pathlib import Path

import numpy as np
import pytest

from zindex.errors import (
    FingerprintMismatchError,
    StoreNotFoundError,
    StoreUnreadableError,
    VerificationError,
)
from zindex.io import files
from zindex.io.objects import ObjectPath
from zindex.store import scratch
from zindex.store.scratch import (
    SCRATCH_KEY,
    begin_import,
    end_import,
    is_whole,
    read_note,
    read_stream,
    stored_nbytes,
    write_note,
    write_streams,
)

STREAMS = [bytes(range(60)), b"", b"x", bytes(range(100, 116))]
SIZES = [len(stream) for stream in STREAMS]


@pytest.mark.parametrize("block", [1, 3, 16, 1000])
@pytest.mark.parametrize("at_a_time", [1, 2, 16])
def test_every_range_of_a_stream_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, at_a_time: int
) -> None:
    monkeypatch.setattr(scratch, "BLOCK_NBYTES", block)
    monkeypatch.setattr(scratch, "_MAX_BLOCKS", at_a_time)
    write_streams(tmp_path, "a", STREAMS)
    assert is_whole(tmp_path, "a", SIZES)
    assert not is_whole(tmp_path, "a", SIZES[:2])
    assert not is_whole(tmp_path, "b", SIZES)
    base = 0
    for stream in STREAMS:
        for start in range(0, len(stream) + 1, 3):
            for stop in range(start, len(stream) + 1):
                out = np.full(stop - start, 255, np.uint8)
                read_stream(tmp_path, "a", base, len(stream), start, out)
                assert out.tobytes() == stream[start:stop]
        base += stored_nbytes(len(stream))


def test_any_flipped_or_missing_byte_is_found(tmp_path: Path) -> None:
    write_streams(tmp_path, "a", [STREAMS[0]])
    path = tmp_path / SCRATCH_KEY / "a"
    content = path.read_bytes()
    out = np.zeros(len(STREAMS[0]), np.uint8)
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(VerificationError, match="scratch/a must hold what was imported"):
            read_stream(tmp_path, "a", 0, len(out), 0, out)
    path.write_bytes(content[:-1])
    with pytest.raises(
        VerificationError, match="its bytes fail their checksum; remove its folder, and"
    ):
        read_stream(tmp_path, "a", 0, len(out), 0, out)
    path.unlink()
    with pytest.raises(StoreNotFoundError, match=r"no file .*scratch/a"):
        read_stream(tmp_path, "a", 0, len(out), 0, out)


def test_a_note_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    assert read_note(tmp_path, "a") is None
    write_note(tmp_path, "a", {"x": [1, "\ud800"]})
    write_note(tmp_path, "a", {"x": "too late"})
    assert read_note(tmp_path, "a") == {"x": [1, "\ud800"]}
    path = tmp_path / SCRATCH_KEY / "a.json"
    for damaged in (b"", b"[]", b"{}", path.read_bytes().replace(b"1", b"2")):
        path.write_bytes(damaged)
        assert read_note(tmp_path, "a") is None
        assert not path.exists()  # or the right one could not take its place


def test_a_note_that_cannot_be_read_now_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_note(tmp_path, "a", {"x": 1})

    def fail(path: Path) -> bytes:
        raise StoreUnreadableError(f"{path} must be readable", errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_file", fail)
        with pytest.raises(StoreUnreadableError, match="must be readable"):
            read_note(tmp_path, "a")
    assert read_note(tmp_path, "a") == {"x": 1}


def test_two_imports_do_not_mix(tmp_path: Path) -> None:
    begin_import(tmp_path / "s", {"source": "a"})
    begin_import(tmp_path / "s", {"source": "a"})
    with pytest.raises(FingerprintMismatchError, match="an unfinished import of another source"):
        begin_import(tmp_path / "s", {"source": "b"})
    write_streams(tmp_path / "s", "a", STREAMS)
    end_import(tmp_path / "s")
    end_import(tmp_path / "s")
    assert list((tmp_path / "s/_zindex").iterdir()) == []
    begin_import(tmp_path / "s", {"source": "b"})
    (tmp_path / "file").write_text("")
    with pytest.raises(FingerprintMismatchError, match="must be a directory, it is a file"):
        begin_import(tmp_path / "file", {})
    with pytest.raises(FingerprintMismatchError, match="it holds other files, such as file;"):
        begin_import(tmp_path, {})


def test_scratch_lies_in_object_stores_too(objects: ObjectPath) -> None:
    begin_import(objects, {"source": "a"})
    write_streams(objects, "a", STREAMS)
    write_note(objects, "a", {"x": 1})
    out = np.zeros(20, np.uint8)
    read_stream(objects, "a", 0, 60, 10, out)
    assert out.tobytes() == STREAMS[0][10:30]
    assert read_note(objects, "a") == {"x": 1}
    assert is_whole(objects, "a", SIZES)
    end_import(objects)
    assert read_note(objects, "a") is None
    with pytest.raises(StoreNotFoundError):
        read_stream(objects, "a", 0, 60, 10, out)
    begin_import(objects, {"source": "b"})
