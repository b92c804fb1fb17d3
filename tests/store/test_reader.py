"""Reading by position: equal to what was stored, or an error that names the shard."""

import errno
import os
import pickle
import random
import re
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.damage import flipped
from tests.killing import exit_code, fork
from tests.store.stores import DTYPES, GRID, ONE, TWO, Values, build_arrays, count_up
from tests.trees import all_files, num_descriptors
from zindex.errors import StoreError, StoreUnreadableError, VerificationError
from zindex.store import reader
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_store
from zindex.store.open_files import table
from zindex.store.reader import LocalReader
from zindex.store.rows import RowReader

# Newer Pythons warn of any fork beside threads; that readers bear it is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def forget() -> None:
    """Start as a fresh process would: nothing open, nothing verified."""
    reader.forget_all_files()


@st.composite
def stored_arrays(draw: st.DrawFn) -> tuple[Any, Values, ChunkGrid]:
    """Return an array of the schema, its values and the grid to store it on."""
    spec = draw(st.sampled_from([ONE, TWO]))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    length = draw(st.integers(0, 300))
    chunk_length = draw(st.integers(1, 40))
    chunks_per_shard = draw(st.integers(1, 8))
    codec = draw(st.sampled_from(["none", "zstd"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    content = rng.integers(0, 256, length * spec.num_columns * dtype.itemsize, np.uint8)
    values = content.view(dtype).reshape((length, 2) if spec is TWO else (length,))
    return spec, values, ChunkGrid(chunk_length, chunk_length * chunks_per_shard, codec)


@given(stored=stored_arrays(), data=st.data())
@settings(max_examples=100)
def test_round_trip(stored: tuple[Any, Values, ChunkGrid], data: st.DataObject) -> None:
    spec, values, grid = stored
    length = len(values)
    with tempfile.TemporaryDirectory() as folder:
        build_arrays(Path(folder), {spec: values}, grid)
        array = open_store(folder)[spec.name]
        assert (array.shape, array.dtype, len(array)) == (values.shape, values.dtype, length)
        assert (array.ndim, array.size, array.nbytes) == (values.ndim, values.size, values.nbytes)
        for _ in range(4):
            start = data.draw(st.integers(0, length))
            stop = data.draw(st.integers(start, length))
            got = array.read(start, stop)
            assert got.dtype == values.dtype
            assert got.flags.writeable
            np.testing.assert_array_equal(got, values[start:stop])
            out = np.empty_like(values[start:stop])
            assert array.read(start, stop, out) is out
            np.testing.assert_array_equal(out, values[start:stop])
        bound = st.none() | st.integers(-length - 5, length + 5)
        step = st.none() | st.integers(-7, 7).filter(bool)
        rows = slice(data.draw(bound), data.draw(bound), data.draw(step))
        np.testing.assert_array_equal(array[rows], values[rows])
        np.testing.assert_array_equal(np.asarray(array), values)
        if length:
            row = data.draw(st.integers(-length, length - 1))
            np.testing.assert_array_equal(array[row], values[row])
            assert type(array[row]) is type(values[row])
            if spec is TWO:
                assert array[row, 1].tobytes() == values[row, 1].tobytes()
                np.testing.assert_array_equal(array[rows, 0], values[rows, 0])


@given(stored=stored_arrays())
@settings(max_examples=25)
def test_zarr_and_xarray_read_the_same(stored: tuple[Any, Values, ChunkGrid]) -> None:
    """Any warning of theirs is an error here."""
    spec, values, grid = stored
    with tempfile.TemporaryDirectory() as folder:
        build_arrays(Path(folder), {spec: values}, grid)
        array = zarr.open_group(folder, mode="r")[spec.name]
        assert array.metadata.dimension_names == spec.dims
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(array[:], values)
        with xr.open_zarr(folder, chunks=None) as dataset:
            variable = dataset[spec.name]
            assert variable.dims == spec.dims
            assert variable.dtype == values.dtype
            assert variable.attrs["unit"] == "number"
            np.testing.assert_array_equal(variable, values)


def test_zarr_sees_the_same_arrays_without_consolidated_metadata(tmp_path: Path) -> None:
    arrays = {ONE: count_up(10), TWO: count_up(10, num_columns=2)}
    build_arrays(tmp_path, arrays)
    assert sorted(zarr.open_group(tmp_path, mode="r").array_keys()) == ["one", "two"]
    group = zarr.open_group(tmp_path, mode="r", use_consolidated=False)
    np.testing.assert_array_equal(group["two"][:], arrays[TWO])
    assert zarr.open_array(tmp_path / "one", mode="r").metadata.dimension_names == ("row",)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("length", range(1, 14))
def test_padding_never_leaks(tmp_path: Path, codec: Any, length: int) -> None:
    """The values beyond the array's end are in the file, and nobody can ask for them."""
    values = count_up(length)
    build_arrays(tmp_path, {ONE: values}, ChunkGrid(3, 6, codec))
    array = open_store(tmp_path)["one"]
    assert -1 not in np.asarray(array)
    assert -1 not in array[-100:100]
    assert array[-1] == length - 1
    with pytest.raises(IndexError, match=rf"rows \[0, {length + 1}\) are outside one of length"):
        array.read(0, length + 1)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_every_span_of_a_small_array(tmp_path: Path, codec: Any) -> None:
    values = count_up(20, num_columns=2)
    build_arrays(tmp_path, {TWO: values}, ChunkGrid(3, 6, codec))
    array = open_store(tmp_path)["two"]
    for fresh in (True, False):  # the first touch verifies, later ones do not
        for start in range(21):
            for stop in range(start, 21):
                if fresh:
                    forget()
                np.testing.assert_array_equal(array.read(start, stop), values[start:stop])


def test_more_chunks_than_one_system_call_takes(tmp_path: Path) -> None:
    values = count_up(3000)
    build_arrays(tmp_path, {ONE: values}, ChunkGrid(1, 2000))
    np.testing.assert_array_equal(open_store(tmp_path)["one"], values)


@pytest.mark.parametrize("step", [1, 3, 4, 16, 17, 100])
def test_the_kernel_may_give_bytes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    values = count_up(20)
    build_arrays(tmp_path, {ONE: values})

    def read_some(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        content = os.pread(descriptor, min(step, sum(map(len, buffers))), offset)
        rest = content
        for buffer in buffers:
            part, rest = rest[: len(buffer)], rest[len(buffer) :]
            buffer[: len(part)] = part
        return len(content)

    monkeypatch.setattr(reader.os, "preadv", read_some)
    array = open_store(tmp_path)["one"]
    np.testing.assert_array_equal(array.read(1, 20), values[1:])
    np.testing.assert_array_equal(array.read(0, 19), values[:19])


# --- indexing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        np.int64(3),
        np.uint8(3),
        (),
        (3,),
        (3, 1),
        (3, -1),
        (3, slice(None)),
        (3, None),
        (slice(2, 5), 0),
        (slice(5, 2), 0),
        (Ellipsis, 1),
        Ellipsis,
        [4, 0, 4],
        np.array([9, 0]),
        slice(None, None, 3),
        slice(9, None, -2),
        slice(4, 4, 2),
        slice(8, 2, 2),
    ],
    ids=repr,
)
def test_indices_mean_what_they_mean_in_numpy(tmp_path: Path, index: Any) -> None:
    values = count_up(10, num_columns=2)
    build_arrays(tmp_path, {TWO: values})
    np.testing.assert_array_equal(open_store(tmp_path)["two"][index], values[index])


@pytest.mark.parametrize("index", [10, -11, 2**70, -(2**70), np.int64(10)])
def test_rows_that_are_not_there(tmp_path: Path, index: int) -> None:
    build_arrays(tmp_path, {ONE: count_up(10)})
    message = f"index {index} is out of range for one of length 10"
    with pytest.raises(IndexError, match=re.escape(message)):
        open_store(tmp_path)["one"][index]


@pytest.mark.parametrize("span", [(-1, 3), (3, 2), (0, 11), (11, 11)])
def test_spans_that_are_not_there(tmp_path: Path, span: tuple[int, int]) -> None:
    build_arrays(tmp_path, {ONE: count_up(10)})
    message = f"rows [{span[0]}, {span[1]}) are outside one of length 10"
    with pytest.raises(IndexError, match=re.escape(message)):
        open_store(tmp_path)["one"].read(*span)


def test_numpy_protocol(tmp_path: Path) -> None:
    build_arrays(tmp_path, {ONE: count_up(10)})
    array = open_store(tmp_path)["one"]
    assert np.asarray(array, np.float32).dtype == np.float32
    assert np.array(array, copy=True).tolist() == list(range(10))
    assert repr(array) == "<LocalReader one (10,) int32>"
    assert list(array) == list(range(10))
    with pytest.raises(ValueError, match="read by position is always copied; leave copy out"):
        np.array(array, copy=False)


def test_a_row_reader_alone_reads_nothing() -> None:
    with pytest.raises(NotImplementedError):
        RowReader(ArrayLayout.plan(ONE, 3, np.int32, GRID)).read(0, 1)


# --- damage ---------------------------------------------------------------------------------


class Damaged:
    """A small store, one file of which may be changed and put back."""

    def __init__(self, root: Path, codec: Any) -> None:
        self.root = root
        # Ten elements: each array has a full shard and one with a missing second chunk.
        self.arrays = {ONE: count_up(9), TWO: count_up(8, dtype="int16", num_columns=2)}
        build_arrays(root, self.arrays, ChunkGrid(3, 6, codec))
        self.files = all_files(root)
        self.values = {spec.name: values for spec, values in self.arrays.items()}

    def check(self, key: str, content: bytes | None) -> str:
        """Read all with one file changed; return the error's text, or "" if all is right."""
        path = self.root / key
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        forget()
        message = ""
        try:
            store = open_store(self.root)
            for name, values in self.values.items():
                for span in ((0, len(values)), (1, len(values) - 1)):
                    forget()
                    try:
                        got = store[name].read(*span)
                    except VerificationError as error:
                        message = str(error)
                    else:
                        np.testing.assert_array_equal(got, values[slice(*span)])
        except StoreError as error:
            message = str(error)
        except VerificationError as error:
            message = str(error)
        path.write_bytes(self.files[key])
        return message


@pytest.fixture(params=["none", "zstd"])
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Damaged:
    return Damaged(tmp_path / "store", request.param)


SHARDS = ["one/c/0", "one/c/1", "two/c/0/0", "two/c/1/0"]


@pytest.mark.parametrize("key", SHARDS)
def test_every_flipped_bit_of_a_shard_is_detected(damaged: Damaged, key: str) -> None:
    """Values, padding, checksums, offsets and lengths: no bit of a shard is without a guard."""
    content = damaged.files[key]
    for position in range(8 * len(content)):
        changed = flipped(content, position // 8, 1 << position % 8)
        assert key in damaged.check(key, changed), position


@pytest.mark.parametrize("key", SHARDS)
def test_every_truncation_of_a_shard_is_detected(damaged: Damaged, key: str) -> None:
    for nbytes in range(len(damaged.files[key])):
        assert key in damaged.check(key, damaged.files[key][:nbytes]), nbytes
    assert f"{key} is missing" in damaged.check(key, None)
    assert key in damaged.check(key, damaged.files[key] + b"\0")
    assert damaged.check(key, damaged.files[key]) == ""


def test_a_flipped_bit_in_any_byte_of_the_root_metadata_is_detected(tmp_path: Path) -> None:
    """The arrays' own zarr.json and the files of _zindex are not read, so they need no guard."""
    build_arrays(tmp_path, {ONE: count_up(9)})
    path = tmp_path / "zarr.json"
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(flipped(content, position, 1 << position % 8))
        with pytest.raises((StoreError, VerificationError), match=re.escape(str(tmp_path))):
            open_store(tmp_path)


def test_every_truncation_of_the_root_metadata_is_detected(damaged: Damaged) -> None:
    content = damaged.files["zarr.json"]
    for nbytes in range(0, len(content), 29):
        assert "zarr.json must hold JSON" in damaged.check("zarr.json", content[:nbytes])
    assert "is not built yet: 4 of 4 shards" in damaged.check("zarr.json", None)


def test_the_error_names_chunk_and_shard(damaged: Damaged) -> None:
    # The checksum of the second chunk, before the table of two.
    message = damaged.check("one/c/0", flipped(damaged.files["one/c/0"], -36 - 8 - 1))
    assert message.startswith("chunk 1 of shard one/c/0 ")


def test_a_chunk_that_the_index_puts_elsewhere_is_read_from_there(tmp_path: Path) -> None:
    """Zarr allows chunks in any order; a gap between them only ends a long read."""
    values = count_up(6)
    (layout,) = build_arrays(tmp_path, {ONE: values}).layouts
    path = tmp_path / "one" / "c" / "0"
    content = path.read_bytes()
    index = struct.pack("<4Q", 16 + 5, 16, 0, 16)
    index += google_crc32c.value(index).to_bytes(4, "little")
    path.write_bytes(content[16:32] + bytes(5) + content[:16] + content[32:40] + index)
    np.testing.assert_array_equal(LocalReader(tmp_path, layout), values)


def test_a_shard_that_shrinks_under_its_reader_is_an_error_and_no_signal(tmp_path: Path) -> None:
    build_arrays(tmp_path, {ONE: count_up(6)})
    array = open_store(tmp_path)["one"]
    assert array[0] == 0
    os.truncate(tmp_path / "one" / "c" / "0", 20)
    message = "shard one/c/0 must hold 16 bytes at 16, it ends after 4; `zindex verify`"
    with pytest.raises(VerificationError, match=re.escape(message)):
        array.read(3, 6)
    os.truncate(tmp_path / "one" / "c" / "0", 0)
    with pytest.raises(
        VerificationError, match=r"one/c/0 must end with an index of \d+ bytes, got 0"
    ):
        array.read(1, 2)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_file_that_another_client_has_replaced_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any
) -> None:
    """NFS answers ESTALE for the descriptor of a file that is gone on the server."""
    build_arrays(tmp_path, {ONE: count_up(12)}, ChunkGrid(3, 6, codec))
    array = open_store(tmp_path)["one"]
    np.testing.assert_array_equal(array, count_up(12))
    reader.table.decoded.clear()
    reader.table.decoded_nbytes = 0
    real, stale = os.preadv, [array.bind().files[0].number]

    def read(descriptor: int, buffers: Any, offset: int) -> int:
        if descriptor in stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(reader.os, "preadv", read)
    held = array.bind().files[0]  # so that its number is not given to the next file
    np.testing.assert_array_equal(array.read(1, 9), count_up(12)[1:9])
    assert array.bind().files[0] is not held
    stale.append(array.bind().files[0].number)
    reader.table.decoded.clear()
    reader.table.decoded_nbytes = 0
    monkeypatch.setattr(reader.table, "open", lambda array, shard: held)
    with pytest.raises(OSError, match="Stale file handle"):
        array.read(1, 5)


def fail_with(code: int) -> Callable[..., Any]:
    """Return a system call that fails."""

    def fail(*args: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_system_errors_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any, call: str
) -> None:
    build_arrays(tmp_path, {ONE: count_up(12)}, ChunkGrid(3, 6, codec))
    array = open_store(tmp_path)["one"]
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_with(errno.EIO))
        message = rf"{tmp_path}/one/c/1 must be readable, the system says: Input/output error; che"
        with pytest.raises(StoreUnreadableError, match=message) as caught:
            array.read(6, 9)
    assert type(caught.value.__cause__) is OSError
    assert caught.value.errno == errno.EIO
    np.testing.assert_array_equal(array, count_up(12))


def test_many_spans_that_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way they are read: one by one, or by a kernel."""
    build_arrays(tmp_path, {ONE: count_up(12)}, GRID)
    starts = np.arange(12)
    for spans in (0, reader.SPANS_BEFORE_KERNEL):
        monkeypatch.setattr("zindex.store.reader._num_spans", spans)
        # Loading and compiling the kernel opens files of its own.
        open_store(tmp_path)["one"].read_spans(starts, starts + 1)
        reader.forget_all_files()
        array = open_store(tmp_path)["one"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail_with(errno.EACCES))
            with pytest.raises(StoreUnreadableError, match="the system says: Permission denied"):
                array.read_spans(starts, starts + 1)
        assert array.read_spans(starts, starts + 1).tolist() == list(range(12))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_opening_a_store_reads_its_current_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Removed and built again with other values: the old files must not be read on.

    A worker gets the opened store from its client, and never opens one itself.
    """
    if elsewhere:
        monkeypatch.setattr("zindex.store.open.forget_open_shards", lambda root: None)
    for offset in range(3):
        build_arrays(tmp_path, {ONE: count_up(10) + np.int32(offset)}, spec={"offset": offset})
        store = open_store(tmp_path)
        array = (pickle.loads(pickle.dumps(store)) if elsewhere else store)["one"]
        assert array[3] == 3 + offset
        shutil.rmtree(tmp_path)


def test_a_repaired_shard_is_seen_when_the_store_is_opened_again(tmp_path: Path) -> None:
    build_arrays(tmp_path, {ONE: count_up(10)})
    path = tmp_path / "one" / "c" / "0"
    good = path.read_bytes()
    path.write_bytes(b"\1" + good[1:])
    with pytest.raises(VerificationError, match="chunk 0 of shard one/c/0 fails its checksum"):
        open_store(tmp_path)["one"].read(0, 1)
    path.unlink()
    path.write_bytes(good)
    assert open_store(tmp_path)["one"][0] == 0


# --- processes and threads ------------------------------------------------------------------


@pytest.fixture
def long_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LocalReader, Values]]:
    """An array of 400 shards: more than one process keeps open."""
    monkeypatch.setattr(table, "budget", 256)
    values = count_up(2400)
    build_arrays(tmp_path, {ONE: values})
    forget()
    yield open_store(tmp_path)["one"], values
    forget()


def test_descriptors_are_bounded(long_store: tuple[LocalReader, Values]) -> None:
    array, values = long_store
    assert num_descriptors(array.root) == 0
    np.testing.assert_array_equal(array, values)
    assert num_descriptors(array.root) == 256
    for start in range(0, 2400, 7):
        assert array[start] == start
    assert num_descriptors(array.root) == 256
    forget()
    assert num_descriptors(array.root) == 0


def test_a_shard_in_use_goes_last(long_store: tuple[LocalReader, Values]) -> None:
    array, _ = long_store
    for shard in range(255):
        array.read(6 * shard, 6 * shard + 1)
    assert array[0] == 0
    array.read(6 * 255, 6 * 255 + 1)
    array.read(6 * 256, 6 * 256 + 1)
    held = array.bind().files
    assert 0 in held
    assert 1 not in held


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_threads_share_a_reader(
    tmp_path: Path, codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "budget", 256)
    values = count_up(3000)
    build_arrays(tmp_path, {ONE: values}, ChunkGrid(5, 10, codec))
    array = open_store(tmp_path)["one"]
    forget()
    barrier = threading.Barrier(8)

    def work(seed: int) -> int:
        rng = random.Random(seed)
        barrier.wait()
        for _ in range(300):
            start = rng.randint(0, 3000)
            stop = rng.randint(start, min(3000, start + 40))
            np.testing.assert_array_equal(array.read(start, stop), values[start:stop])
        return num_descriptors(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(work, range(8)))
    # Besides the budget: one that each thread opens, and those that kernel calls keep open.
    assert max(held) <= 256 + 8 + 256 // 8 + 8
    assert num_descriptors(tmp_path) <= 256


def test_files_opened_during_a_kernel_call_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "budget", 16)
    values = count_up(600)
    build_arrays(tmp_path, {ONE: values}, ChunkGrid(5, 10))
    array = open_store(tmp_path)["one"]
    forget()
    held = []

    def work() -> None:
        for row in range(0, 600, 10):
            np.testing.assert_array_equal(array.read(row, row + 10), values[row : row + 10])
            held.append(num_descriptors(tmp_path))

    ticket = table.begin_read()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(work)
        while num_descriptors(tmp_path) <= 16 + 8:
            assert not reading.done()
        table.end_read(ticket)
        reading.result()
    assert max(held) <= 16 + 8 + 1


def test_fork_in_the_middle_of_use(long_store: tuple[LocalReader, Values]) -> None:
    array, values = long_store
    np.testing.assert_array_equal(array, values)
    held = num_descriptors(array.root)

    def read() -> None:
        assert num_descriptors(array.root) == 0
        np.testing.assert_array_equal(array, values)

    for _ in range(3):
        children = [fork(read) for _ in range(4)]
        np.testing.assert_array_equal(array, values)
        assert [exit_code(child) for child in children] == [0] * 4
        assert num_descriptors(array.root) == held


def test_fork_beside_threads_that_read(long_store: tuple[LocalReader, Values]) -> None:
    """A lock that another thread holds at that moment must not stop the child."""
    array, values = long_store
    stop = threading.Event()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            start = rng.randrange(2400)
            assert array[start] == start

    def read() -> None:
        np.testing.assert_array_equal(array.read(0, 600), values[:600])

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work, seed) for seed in range(3)]
        try:
            for _ in range(25):
                assert exit_code(fork(read)) == 0
        finally:
            stop.set()
        for future in futures:
            future.result()


def test_fork_while_the_lock_is_held(long_store: tuple[LocalReader, Values]) -> None:
    array, values = long_store
    with table.lock:
        child = fork(lambda: np.testing.assert_array_equal(array, values))
        assert exit_code(child) == 0


def test_pickling_carries_no_file(long_store: tuple[LocalReader, Values]) -> None:
    array, values = long_store
    np.testing.assert_array_equal(array, values)
    content = pickle.dumps(array)
    assert len(content) < 1000
    copy = pickle.loads(content)
    assert copy.layout == array.layout
    np.testing.assert_array_equal(copy, values)
    assert num_descriptors(array.root) == 256


def test_a_target_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    build_arrays(tmp_path, {ONE: count_up(12)})
    reader = open_store(tmp_path)[ONE.name]
    for out in (np.zeros(3, reader.dtype), np.zeros(4, "S1"), np.zeros(8, reader.dtype)[::2]):
        with pytest.raises(
            ValueError, match=rf"shape \(4,\) and {reader.dtype}, got \({out.size},\)"
        ):
            reader.read(2, 6, out)
    np.testing.assert_array_equal(reader[1:11:3], count_up(12)[1:11:3])
