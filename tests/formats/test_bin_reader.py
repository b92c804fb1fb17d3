"""Reading tokens by position."""

import multiprocessing
import os
import pickle
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.trees import num_descriptors
from zindex.errors import SourceError, VerificationError
from zindex.formats import bin_reader
from zindex.formats.bin_reader import BinFile, MappedBinFile
from zindex.io import local as file_access
from zindex.store.reader import forget_all_files

READERS = [BinFile, MappedBinFile]


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "a.bin").write_bytes(np.arange(64, dtype="<u2").tobytes())
    return str(tmp_path / "a.bin")


@pytest.mark.parametrize("reader", READERS)
class TestBoth:
    def test_read(self, path: str, reader: type[BinFile | MappedBinFile]) -> None:
        tokens = reader(path)
        assert tokens.read(np.uint16, 3, 20).tolist() == [10, 11, 12]
        assert tokens.read(np.uint16, 3, 20).dtype == np.uint16
        assert tokens.read(np.uint8, 2, 21).tolist() == [0, 11]
        assert tokens.read(np.uint16, 0, 128).tolist() == []
        assert tokens.read(np.uint16, 64, 0).tolist() == list(range(64))
        tokens.close()
        assert tokens.read(np.uint16, 1, 2).tolist() == [1]

    @pytest.mark.parametrize(("count", "offset"), [(1, 127), (65, 0), (-1, 0), (1, -2), (2**61, 0)])
    def test_span_outside(
        self, path: str, reader: type[BinFile | MappedBinFile], count: int, offset: int
    ) -> None:
        message = rf"within the 128 bytes of \S+, but {count} items of 2 bytes from byte {offset}"
        with pytest.raises(SourceError, match=message):
            reader(path).read(np.uint16, count, offset)

    def test_pickles_as_its_arguments(
        self, path: str, reader: type[BinFile | MappedBinFile]
    ) -> None:
        tokens = reader(path, 128)
        tokens.read(np.uint16, 1, 0)
        again = pickle.loads(pickle.dumps(tokens))
        assert (again.path, again.nbytes) == (path, 128)
        assert again.read(np.uint16, 2, 4).tolist() == [2, 3]

    def test_cut_before_it_is_opened(
        self, path: str, reader: type[BinFile | MappedBinFile]
    ) -> None:
        tokens = reader(path, 128)
        os.truncate(path, 100)
        with pytest.raises(VerificationError, match=r"must hold 128 bytes, .* now holds 100"):
            tokens.read(np.uint16, 1, 0)

    def test_missing(self, tmp_path: Path, reader: type[BinFile | MappedBinFile]) -> None:
        with pytest.raises(FileNotFoundError, match=r"none\.bin"):
            reader(str(tmp_path / "none.bin")).read(np.uint16, 1, 0)

    def test_empty(self, tmp_path: Path, reader: type[BinFile | MappedBinFile]) -> None:
        (tmp_path / "e.bin").touch()
        assert reader(str(tmp_path / "e.bin"), 0).read(np.int32, 0, 0).size == 0

    def test_children(self, path: str, reader: type[BinFile | MappedBinFile]) -> None:
        tokens = reader(path)
        tokens.read(np.uint16, 1, 0)
        for method in ("fork", "forkserver"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                parts = pool.starmap(tokens.read, [(np.uint16, 8, 16 * i) for i in range(8)])
            assert np.concatenate(parts).tolist() == list(range(64))


def test_cut_under_a_reader_is_an_error_and_no_signal(path: str) -> None:
    tokens = BinFile(path, 128)
    tokens.read(np.uint16, 1, 0)
    os.truncate(path, 50)
    assert tokens.read(np.uint16, 25, 0).tolist() == list(range(25))
    with pytest.raises(VerificationError, match=r"8 bytes from byte 48 but ended after 2 of them"):
        tokens.read(np.uint16, 4, 48)


def test_fresh_arrays_and_views(path: str) -> None:
    assert BinFile(path).read(np.uint16, 2, 0).flags.writeable
    assert not MappedBinFile(path).read(np.uint16, 2, 0).flags.writeable


def test_a_view_outlives_its_reader(path: str) -> None:
    view = MappedBinFile(path).read(np.uint16, 4, 8)
    os.unlink(path)
    assert view[1:].tolist() == [5, 6, 7]


def test_reads_longer_than_one_system_call(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(
        file_access.os, "preadv", lambda fd, views, at: real(fd, [views[0][:7]], at)
    )
    assert BinFile(path).read(np.uint16, 60, 4).tolist() == list(range(2, 62))


def test_a_failed_mapping_names_the_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_access, "_PROT_READ", 2)
    with pytest.raises(PermissionError, match=r"a\.bin"):
        file_access.map_file(path)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """At most 1,024 open files, as most systems have it."""
    forget_all_files()  # of stores that other tests have read, under another limit
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.usefixtures("few_descriptors")
def test_thousands_of_files_fit_into_a_process(
    tmp_path: Path, reader: type[BinFile | MappedBinFile]
) -> None:
    files = []
    for number in range(5000):
        (tmp_path / f"{number}.bin").write_bytes(np.uint16(number).tobytes())
        files.append(reader(str(tmp_path / f"{number}.bin"), 2))
    for _ in range(2):
        assert [int(file.read(np.uint16, 1, 0)[0]) for file in files] == list(range(5000))
    assert num_descriptors(tmp_path) <= bin_reader._MAX_OPEN
    files.clear()
    assert num_descriptors(tmp_path) == 0


def test_threads_share_readers_that_others_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bin_reader, "_MAX_OPEN", 2)
    files = []
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(np.full(8, number, np.uint16).tobytes())
        files.append(BinFile(str(tmp_path / f"{number}.bin"), 16))
    wrong: list[object] = []

    def read(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 8, 2000):
            got = files[number].read(np.uint16, 8, 0).tolist()
            if got != [number] * 8:
                wrong.append((number, got))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
