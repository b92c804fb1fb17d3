"""What a process holds open and remembers: bounded, shared by threads, never shared by forks."""

import gc
import os
import random
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.damage import flipped
from tests.killing import exit_code, fork
from tests.store.stores import GRID, ONE, build_arrays, count_up
from tests.trees import num_descriptors
from zindex.errors import VerificationError
from zindex.store import chunk_reader, open_files
from zindex.store.commit import commit_files
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_store
from zindex.store.open_files import table
from zindex.store.reader import forget_all_files
from zindex.store.rows import Spans, read_many
from zindex.store.shard import encode_shard
from zindex.store.tokens import FlatFile

# Newer Pythons warn of any fork beside threads; that readers bear it is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture(autouse=True)
def _kernel_from_the_first_span(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_all_files()
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 0)
    monkeypatch.setattr("zindex.store.reader.FEW_SPANS", 0)


def write_flat(folder: Path, count: int) -> list[FlatFile]:
    """Return files of ten numbers each: file i holds 10 * i to 10 * i + 9."""
    files = []
    for number in range(count):
        path = folder / f"{number}.bin"
        path.write_bytes(np.arange(10 * number, 10 * number + 10, dtype=np.uint16).tobytes())
        files.append(FlatFile(str(path), 20, "uint16"))
    return files


def one(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


READ_MANY_STORES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import numpy as np
from zindex.store.open import open_store
from zindex.store.rows import Spans, read_many
root, count = sys.argv[1], int(sys.argv[2])
arrays = [open_store(f"{root}/{number}")["one"] for number in range(count)]
rng = np.random.default_rng(1)
for number in rng.integers(0, count, 4000).tolist():
    assert arrays[number].read(2, 5).tolist() == [number + 2, number + 3, number + 4]
for _ in range(60):
    numbers = rng.integers(0, count, 100).tolist()
    out = np.zeros(300, np.int64)
    start, stop = np.array([1], np.int64), np.array([4], np.int64)
    read_many([
        Spans(arrays[number], start, stop, out, np.array([3 * place]))
        for place, number in enumerate(numbers)
    ])
    assert (out.reshape(100, 3) == np.array(numbers)[:, None] + [1, 2, 3]).all()
import os
assert 400 < len(os.listdir("/proc/self/fd")) < 600
"""


def test_five_thousand_stores_under_a_limit_of_1024_files(tmp_path: Path) -> None:
    count = 5000
    plan = build_arrays(tmp_path / "model", {ONE: count_up(10)}, ChunkGrid(5, 10))
    (layout,) = plan.layouts
    for number in range(count):
        folder = tmp_path / str(number)
        (folder / "one" / "c").mkdir(parents=True)
        (folder / "_zindex").mkdir()
        buffers, receipt = encode_shard(layout, 0, count_up(10) + np.int32(number))
        (folder / "one" / "c" / "0").write_bytes(b"".join(buffers))
        for key, content in commit_files(plan, [receipt]).items():
            (folder / key).write_bytes(content)
    command = [sys.executable, "-c", READ_MANY_STORES, str(tmp_path), str(count)]
    subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("soft", "expected"), [(1024, 512), (4, 8), (10**6, 1 << 15), (resource.RLIM_INFINITY, 1 << 15)]
)
def test_half_of_the_files_that_the_system_grants(
    monkeypatch: pytest.MonkeyPatch, soft: int, expected: int
) -> None:
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: (soft, soft))
    assert open_files.num_descriptors() == expected


def test_files_are_closed_if_descriptors_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other parts of a process may have taken more than the half that is theirs."""
    files = write_flat(tmp_path, 21)
    for file in files[:20]:
        assert file[3] % 10 == 3
    real_open = os.open

    def no_descriptor(path: str, flags: int) -> int:
        if num_descriptors(tmp_path) >= 20:
            raise OSError(24, "Too many open files")
        return real_open(path, flags)

    monkeypatch.setattr(open_files.os, "open", no_descriptor)
    assert files[20][3] == 203
    assert num_descriptors(tmp_path) == 11


def test_a_kernel_keeps_the_files_open_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the number could be another file's by the time that it is used."""
    files = write_flat(tmp_path, 8)
    forget_all_files()
    monkeypatch.setattr(table, "budget", 2)
    first, second = table.begin_read(), table.begin_read()
    for file in files:
        assert file[0] % 10 == 0
    assert num_descriptors(tmp_path) == 8
    third = table.begin_read()
    table.end_read(first)
    assert num_descriptors(tmp_path) == 8
    table.end_read(second)
    assert num_descriptors(tmp_path) == 2
    table.end_read(third)
    forget_all_files()
    assert num_descriptors(tmp_path) == 0


def test_threads_read_rounds_over_more_files_than_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_flat(tmp_path, 60)
    monkeypatch.setattr(table, "budget", 10)
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        barrier.wait()
        for _ in range(150):
            chosen = [rng.randrange(60) for _ in range(12)]
            out = np.zeros(36, np.int64)
            read_many(
                [
                    Spans(files[number], one(4), one(7), out, one(3 * place))
                    for place, number in enumerate(chosen)
                ]
            )
            expected = np.array(chosen)[:, None] * 10 + [4, 5, 6]
            np.testing.assert_array_equal(out.reshape(12, 3), expected)
            number = rng.randrange(60)
            assert files[number].read(1, 3).tolist() == [10 * number + 1, 10 * number + 2]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    gc.collect()
    assert num_descriptors(tmp_path) <= 10


def test_a_file_that_is_opened_again_need_not_be_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_arrays(tmp_path, {ONE: count_up(60)}, ChunkGrid(3, 6))
    array = open_store(tmp_path)["one"]
    monkeypatch.setattr(table, "budget", 1)
    np.testing.assert_array_equal(array, count_up(60))
    monkeypatch.setattr(chunk_reader, "checksum", None)
    monkeypatch.setattr("zindex.store.shard.checksum", None)
    for start in (1, 30, 7, 54):
        assert array.read(start, start + 1).tolist() == [start]
    assert num_descriptors(tmp_path) == 1


def test_another_file_at_the_same_path_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_arrays(tmp_path, {ONE: count_up(60)}, ChunkGrid(3, 6))
    array = open_store(tmp_path)["one"]
    monkeypatch.setattr(table, "budget", 1)
    np.testing.assert_array_equal(array, count_up(60))
    path = tmp_path / "one" / "c" / "2"
    content = flipped(path.read_bytes(), 0)
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(VerificationError, match="chunk 0 of shard one/c/2 fails its checksum"):
        array.read(12, 13)


def test_knowledge_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_flat(tmp_path, 50)
    forget_all_files()
    monkeypatch.setattr(open_files, "KNOWN_NBYTES", 10 * 2500)
    for _ in range(2):
        for file in files:
            assert file[0] % 10 == 0
    assert 5 <= len(table.arrays) <= 12
    assert num_descriptors(tmp_path) <= 12
    forget_all_files()
    assert table.nbytes == 0
    assert not table.arrays
    assert not table.keys_of_root


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_knowledge_of_one_array_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Literal["none", "zstd"]
) -> None:
    build_arrays(tmp_path / "one", {ONE: count_up(3000)}, ChunkGrid(3, 6, codec))
    array = open_store(tmp_path / "one")["one"]
    (other,) = write_flat(tmp_path, 1)
    forget_all_files()
    assert other[0] == 0
    monkeypatch.setattr(table, "budget", 4)
    monkeypatch.setattr(open_files, "KNOWN_NBYTES", 24_000)
    for _ in range(2):
        np.testing.assert_array_equal(array, count_up(3000))
        assert table.nbytes <= 24_000
    assert len(table.arrays) == 1
    assert other[0] == 0
    forget_all_files()
    assert table.nbytes == 0


@pytest.mark.parametrize("budget", [1, 3])
def test_decoded_chunks_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    build_arrays(tmp_path, {ONE: count_up(60)}, ChunkGrid(3, 6, "zstd"))
    array = open_store(tmp_path)["one"]
    forget_all_files()
    monkeypatch.setattr(open_files, "DECODED_NBYTES", 12 * budget)
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 1 << 60)
    rows = [array.read(start, start + 3) for start in range(0, 60, 3)]
    np.testing.assert_array_equal(np.concatenate(rows), count_up(60))
    assert len(table.decoded) == budget
    assert table.decoded_nbytes == 12 * budget
    forget_all_files()
    assert (len(table.decoded), table.decoded_nbytes) == (0, 0)


def test_a_fork_in_the_middle_of_rounds_of_other_threads(tmp_path: Path) -> None:
    """The child opens its own files, whatever the threads that it does not have were doing."""
    files = write_flat(tmp_path, 30)
    layout = ArrayLayout.plan(ONE, 300, np.int32, GRID)
    build_arrays(tmp_path / "store", {ONE: count_up(layout.length)})
    array = open_store(tmp_path / "store")["one"]
    stop = threading.Event()

    def read_all() -> None:
        out = np.zeros(300, np.int64)
        start, end = one(*range(0, 30, 3)), one(*range(3, 33, 3))
        wanted = [Spans(file, one(0), one(10), out, one(10 * i)) for i, file in enumerate(files)]
        _, rows = read_many([*wanted, Spans(array, start, end)])[-2:]
        np.testing.assert_array_equal(out, np.arange(300))
        np.testing.assert_array_equal(rows, np.arange(30))

    def work() -> None:
        while not stop.is_set():
            read_all()
            forget_all_files()

    def read_in_fork() -> None:
        # What a thread was opening or reading at that moment nobody can let go of in the child.
        assert num_descriptors(tmp_path) <= 2 * 3
        read_all()

    read_all()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work) for _ in range(3)]
        try:
            codes = [exit_code(fork(read_in_fork)) for _ in range(30)]
        finally:
            stop.set()
        for future in futures:
            future.result()
    assert codes == [0] * 30
