"""Digests of content: files that changed are refused, files that were moved are not."""

import gzip
import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.sources.archives import write_jsonl, write_tar
from zindex.errors import SourceError, StateMismatchError
from zindex.sources import sample_offsets
from zindex.sources.file_scan import ContentDigest
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.part_files import PartFiles
from zindex.sources.tar_files import TarFiles
from zindex.streaming import JsonlIterableDataset, MergedDataset, to_state


def digest(*pieces: bytes) -> int:
    found = ContentDigest()
    for piece in pieces:
        found.add(piece)
    return found.to_int()


def test_a_digest_of_any_change_but_not_of_pieces() -> None:
    content = bytes(np.random.PCG64(1).random_raw(300_000))[: (2 << 20) + 77]
    whole = digest(content)
    assert whole == digest(content)
    for step in (1 << 20, 100_003, 3 << 20):
        assert whole == digest(*(content[at : at + step] for at in range(0, len(content), step)))
    changed = []
    for place in (0, 12345, 1 << 20, len(content) - 1):
        other = bytearray(content)
        other[place] ^= 1
        changed.append(digest(bytes(other)))
    # Two words of one MiB swapped, and two MiB.
    changed.append(digest(content[8:16] + content[:8] + content[16:]))
    changed.append(digest(content[1 << 20 : 2 << 20] + content[: 1 << 20] + content[2 << 20 :]))
    changed.append(digest(content + b"\0"))
    assert len({whole, *changed}) == 1 + len(changed)


def make_jsonl(folder: Path, word: str) -> PartFiles:
    return JsonlFiles(write_jsonl(folder / "a.jsonl", [{"i": i, "w": word} for i in range(9)]))


def make_tar(folder: Path, word: str) -> PartFiles:
    return TarFiles(write_tar(folder / "a.tar", [(f"{i}.txt", word.encode()) for i in range(9)]))


def make_sidecar(folder: Path, word: str) -> PartFiles:
    write_jsonl(folder / "a.meta.jsonl", [{"key": str(i), "w": word} for i in range(9)])
    path = write_tar(folder / "a.tar", [(f"{i}.id", b"") for i in range(9)])
    return TarFiles(path, meta_names=["w"])


def make_gzip(folder: Path, word: str) -> PartFiles:
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"w": "%s"}\n' % word.encode() * 9, 0, mtime=0))
    return JsonlFiles(path)


@pytest.mark.parametrize("make", [make_jsonl, make_tar, make_sidecar, make_gzip])
@pytest.mark.parametrize("is_kept", [False, True])
def test_content_of_the_same_size(
    tmp_path: Path,
    make: Callable[[Path, str], PartFiles],
    is_kept: bool,
    caches: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_kept:
        monkeypatch.setattr(sample_offsets, "MIN_KEPT_NBYTES", 0)
    numbers = itertools.count()

    def content(word: str) -> str:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        found = make(folder, word).content()
        # The second time from a kept table, and in a loader worker.
        again = make(folder, word)
        assert again.content() == found == pickle.loads(pickle.dumps(again)).content()
        return found

    assert content("one") == content("one") != content("two")


def test_a_state_refuses_changed_files_and_accepts_copies(tmp_path: Path) -> None:
    def stream(name: str, number: int) -> MergedDataset:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        path = write_jsonl(folder / "a.jsonl", [{"i": i} for i in (*range(1, 9), number)])
        os.utime(path, (number, number))
        dataset = JsonlIterableDataset(folder)
        dataset.name, dataset.percent = "a", 1
        return MergedDataset([dataset], cyclic=False)

    samples = iter(stream("a", 8))
    state = to_state(next(samples))
    rest = [sample["i"] for sample in samples]
    moved = stream("b", 8)
    os.utime(tmp_path / "b" / "a.jsonl", (1, 1))
    moved.set_dataloader_states(state)
    assert [sample["i"] for sample in moved] == rest
    with pytest.raises(StateMismatchError, match="the state of 'a' must be of the same files"):
        stream("a", 9).set_dataloader_states(state)


@pytest.mark.parametrize("make", [make_jsonl, make_tar])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, make: Callable[[Path, str], PartFiles]
) -> None:
    files = make(tmp_path, "one")
    files.find_samples()
    path = Path(files.urls[0])
    os.utime(path, (1, 1))  # touched only
    assert len(files.read_samples([(0, 9)])) == 9
    again = make(tmp_path, "one")
    again.find_samples()
    make(tmp_path, "two")
    os.utime(path, (2, 2))
    with pytest.raises(SourceError, match="must keep its content while it is read, it was changed"):
        again.read_samples([(0, 9)])


def test_many_files_have_progress_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sample_offsets, "_LOG_SECONDS", -1.0)
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", [{"i": number}])
    with caplog.at_level("INFO"):
        JsonlFiles(tmp_path).find_samples()
    assert "0.jsonl and others: about 3 of 3 files are prepared after" in caplog.text


def test_changes_of_open_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.sources.descriptors._CHECK_SECONDS", 0.0)
    files = make_jsonl(tmp_path, "one")
    files.find_samples()
    files.read_samples([(0, 1)])
    path = Path(files.urls[0])
    with path.open("r+b") as stream:
        stream.write(b'{"j"')
    os.utime(path, (2, 2))
    with pytest.raises(SourceError, match="it was changed since its samples were found"):
        files.read_samples([(1, 2)])
