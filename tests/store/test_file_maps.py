"""Maps of the files of arrays: which files have one, and for how long."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.io.test_leased_maps import can_map
from tests.killing import exit_code, fork
from tests.store.stores import GRID, ONE, build_arrays, count_up
from tests.store.test_open_files import one, write_flat
from zindex.errors import VerificationError
from zindex.store import file_maps, open_files
from zindex.store.layout import Codec
from zindex.store.open import open_store
from zindex.store.open_files import table
from zindex.store.reader import forget_all_files
from zindex.store.rows import Spans, read_many
from zindex.store.tokens import FlatFile

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture(autouse=True)
def _maps_from_the_first_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = tmp_path / "leases"
    path.write_bytes(b"x")
    if not can_map(path):
        pytest.skip("the file system of temporary files has no leases")
    forget_all_files()
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 0)
    monkeypatch.setattr("zindex.store.reader.FEW_SPANS", 0)
    monkeypatch.setattr("zindex.store.open_files.SPANS_BEFORE_MAPS", 1)
    yield
    forget_all_files()
    assert not table.maps


def read(files: list[FlatFile]) -> list[int]:
    """Return row 3 of each file, read by one kernel call."""
    return [rows.item() for rows in read_many([Spans(file, one(3), one(4)) for file in files])]


def num_maps(folder: Path) -> int:
    """Return how many files of a folder this process has mapped."""
    return Path("/proc/self/maps").read_text().count(f" {folder}/")


def test_files_are_mapped_as_long_as_they_are_open(tmp_path: Path) -> None:
    files = write_flat(tmp_path, 5)
    assert read(files) == [3, 13, 23, 33, 43]
    assert num_maps(tmp_path) == len(table.maps) == 5
    assert read(files) == [3, 13, 23, 33, 43]
    table.forget(files[2].path)
    assert num_maps(tmp_path) == len(table.maps) == 4
    assert read(files) == [3, 13, 23, 33, 43]
    forget_all_files()
    assert num_maps(tmp_path) == len(table.maps) == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_files_that_are_opened_later_are_mapped_too(tmp_path: Path, codec: Codec) -> None:
    build_arrays(tmp_path / "s", {ONE: count_up(100)}, replace(GRID, codec=codec))
    reader = open_store(tmp_path / "s")[ONE.name]
    for start in [*range(0, 90, 7), *range(0, 90, 7)]:
        spans = Spans(reader, one(start), one(start + 10))
        assert read_many([spans])[0].tolist() == list(range(start, start + 10))
    assert num_maps(tmp_path / "s") == 100 // 6


def test_arrays_are_not_mapped_before_many_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zindex.store.open_files.SPANS_BEFORE_MAPS", 3)
    files = write_flat(tmp_path, 2)
    for count in (0, 0, 2, 2):
        read(files)
        assert len(table.maps) == count


def test_a_file_that_is_written_to_is_read_by_position(tmp_path: Path) -> None:
    files = write_flat(tmp_path, 3)
    read(files)
    os.truncate(files[1].path, 7)  # waits until the map is dropped
    assert len(table.maps) == num_maps(tmp_path) == 2
    assert read([files[0], files[2]]) == [3, 23]
    with pytest.raises(VerificationError, match=r"1\.bin must hold 2 bytes at 6, it ends after 1"):
        read(files)
    with pytest.raises(VerificationError, match=r"1\.bin must hold 20 bytes.* now holds 7"):
        read(files)
    assert len(table.maps) == 2


def test_a_file_that_others_may_write_to_is_not_mapped(tmp_path: Path) -> None:
    files = write_flat(tmp_path, 2)
    with Path(files[0].path).open("ab"):
        for _ in range(2):
            assert read(files) == [3, 13]
            assert len(table.maps) == 1


def test_a_file_that_changed_since_it_was_opened_is_not_mapped(tmp_path: Path) -> None:
    files = write_flat(tmp_path, 1)
    array = files[0].bind()
    table.open(array, 0)
    os.truncate(files[0].path, 10)
    table.map_files(array)
    assert not table.maps


def test_maps_stay_as_long_as_a_kernel_may_read_them(tmp_path: Path) -> None:
    files = write_flat(tmp_path, 1)
    read(files)
    ticket = table.begin_read()
    writer = threading.Thread(target=os.truncate, args=(files[0].path, 7))
    writer.start()
    while table.maps:
        time.sleep(0.01)
    assert num_maps(tmp_path) == 1
    assert os.path.getsize(files[0].path) == 20
    table.end_read(ticket)
    writer.join(200)
    assert num_maps(tmp_path) == 0
    assert os.path.getsize(files[0].path) == 7


def test_leases_are_checked_before_maps_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_flat(tmp_path, 1)
    monkeypatch.setattr(table, "watcher", threading.current_thread())  # no thread checks them
    read(files)
    writer = threading.Thread(target=os.truncate, args=(files[0].path, 7))
    writer.start()
    while not table.maps.find_broken():
        time.sleep(0.01)
    monkeypatch.setattr(open_files, "CHECK_SECONDS", 0)
    table.end_read(table.begin_read())
    assert not table.maps
    writer.join(200)


@pytest.mark.parametrize(("name", "value"), [("MAX_MAPS", 2), ("_max_nbytes", lambda: 59)])
def test_the_number_and_bytes_of_maps_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(file_maps, name, value)
    files = write_flat(tmp_path, 4)
    for _ in range(2):
        assert read(files) == [3, 13, 23, 33]
        assert len(table.maps) == 2
    table.forget(files[0].path)
    assert read(files[1:]) == [13, 23, 33]
    assert read(files) == [3, 13, 23, 33]
    assert len(table.maps) == 2


def test_files_that_are_soon_closed_are_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "budget", 2)
    build_arrays(tmp_path / "s", {ONE: count_up(100)})
    reader = open_store(tmp_path / "s")[ONE.name]
    starts = np.arange(0, 90, 6)
    for _ in range(3):
        spans = Spans(reader, starts, starts + 6)
        assert read_many([spans])[0].tolist() == list(range(90))
        assert len(table.maps) <= 2
        assert len(table.ring) <= 2


def test_a_forked_child_maps_files_itself(tmp_path: Path) -> None:
    files = write_flat(tmp_path, 2)
    read(files)

    def check() -> None:
        assert num_maps(tmp_path) == 0
        assert read(files) == [3, 13]
        assert num_maps(tmp_path) == 2
        forget_all_files()

    assert exit_code(fork(check)) == 0
    assert [made.is_held() for made in table.maps._maps.values()] == [True, True]
    assert read(files) == [3, 13]


def test_many_threads_and_a_writer(tmp_path: Path) -> None:
    """Files are mapped, broken, closed and read at once: values are right, and no map is left."""
    files = write_flat(tmp_path, 8)
    stop = threading.Event()

    def loop(seed: int) -> int:
        rng, rounds = np.random.default_rng(seed), 0
        while not stop.is_set():
            chosen = [int(number) for number in rng.integers(0, 8, 5)]
            assert read([files[number] for number in chosen]) == [10 * n + 3 for n in chosen]
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        loops = [pool.submit(loop, seed) for seed in range(3)]
        for number in (0, 3, 5):
            with open(files[number].path, "r+b"):  # waits until its map is dropped
                table.forget(files[number + 1].path)
        stop.set()
        assert all(each.result() > 0 for each in loops)
