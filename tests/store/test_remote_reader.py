"""Arrays in object stores: right rows, few requests, bounded memory."""

import threading
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import reset_cache
from tests.damage import flipped
from tests.store.stores import ONE, TWO, build_arrays, count_up
from zindex.errors import VerificationError
from zindex.io import files, object_client
from zindex.io.objects import ObjectPath
from zindex.store import chunk_fetch, remote_reader
from zindex.store.chunk_cache import cache, reader_statistics, set_chunk_cache
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.remote_reader import RemoteReader
from zindex.store.rows import RowReader, Spans, read_many

# 4 elements of 4 bytes per chunk, 10 chunks per shard.
GRID = ChunkGrid(4, 40)

_numbers = count()


def open_one(root: ObjectPath, length: int = 100, grid: ChunkGrid = GRID) -> RowReader:
    build_arrays(root, {ONE: count_up(length)}, grid)
    return open_store(root)["one"]


def take(reader: RowReader, *rows: int) -> list[int]:
    result: list[int] = reader.take(np.array(rows, np.int64)).tolist()
    return result


@settings(max_examples=40)
@given(data=st.data())
def test_spans_are_those_of_the_array(objects: ObjectPath, data: st.DataObject) -> None:
    chunk = data.draw(st.integers(1, 5), "chunk")
    grid = ChunkGrid(
        chunk, chunk * data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["none", "zstd"]))
    )
    one = count_up(data.draw(st.integers(1, 60), "length"), dtype="uint16")
    two = count_up(data.draw(st.integers(1, 30)), dtype="int64", num_columns=2)
    root = objects / str(next(_numbers))  # the store outlives an example
    build_arrays(root, {ONE: one, TWO: two}, grid)
    store = open_store(root, verify=data.draw(st.sampled_from(["first", "always", "never"])))
    cache.set_limit(data.draw(st.sampled_from([0, 30, 200, 10_000])))
    wanted, expected = [], []
    for name, values in (("one", one), ("two", two), ("one", one)):
        bounds = st.tuples(*[st.integers(0, len(values))] * 2).map(sorted)
        spans = np.array(data.draw(st.lists(bounds, min_size=0, max_size=6)), np.int64)
        starts, stops = spans.reshape(-1, 2).T
        wanted.append(Spans(store[name], starts, stops))
        parts = [values[i:j] for i, j in spans.tolist()]
        expected.append(np.concatenate([values[:0], *parts]))
    for got, right in zip(read_many(wanted), expected, strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right)
    np.testing.assert_array_equal(store["two"], two)


def test_rows_go_where_they_are_wanted(objects: ObjectPath) -> None:
    reader = open_one(objects)
    out = np.full(6, -1, np.int64)
    places = np.array([4, 0])
    reader.read_spans(np.array([7, 90]), np.array([9, 92]), out, places)
    assert out.tolist() == [90, 91, -1, -1, 7, 8]
    with pytest.raises(IndexError, match=r"rows \[90, 101\) are outside one of length 100"):
        reader.read_spans(np.array([0, 90]), np.array([2, 101]))
    with pytest.raises(ValueError, match=r"places must put rows into \[0, 6\) of out"):
        reader.read_spans(np.array([7]), np.array([9]), out, np.array([5]))


def test_neighbours_share_a_request(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_fetch, "GAP_NBYTES", 20)
    monkeypatch.setattr(chunk_fetch, "REQUEST_NBYTES", 80)
    reader = open_one(objects)
    reader_statistics(reset=True)
    # Chunk 0; chunks 2 and 3, with a gap of one; 5, one more; 8 is too far; 10 is another shard.
    assert take(reader, 0, 8, 12, 20, 32, 40) == [0, 8, 12, 20, 32, 40]
    counts = reader_statistics()
    assert (counts.num_requests, counts.num_hits, counts.num_misses) == (4 + 2, 0, 6)
    assert counts.nbytes == 20 * (4 + 1 + 1 + 1) + 2 * (20 * 10 + 4)
    assert take(reader, 1, 9, 13, 21, 33, 41) == [1, 9, 13, 21, 33, 41]
    assert reader_statistics().num_requests == 4 + 2
    assert reader_statistics().num_hits == 6


def test_all_requests_of_a_round_are_made_side_by_side(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_arrays(objects, {ONE: count_up(100), TWO: count_up(40, num_columns=2)}, GRID)
    store = open_store(objects)
    # Nobody goes on before four have come: one after the other they would wait for ever.
    meeting = threading.Barrier(4, timeout=60)
    get_ranges = object_client.get_ranges

    def meet(*args: Any) -> list[memoryview]:
        meeting.wait()
        return get_ranges(*args)

    monkeypatch.setattr(object_client, "get_ranges", meet)
    one, two = np.array([0, 40, 80]), np.array([0, 39])
    # Shards 0 to 2 of one array; of the other the chunks 0 and 9, which are near: 3 + 1, and 1.
    monkeypatch.setattr(chunk_fetch, "GAP_NBYTES", 0)
    first, second = read_many(
        [Spans(store["one"], one, one + 1), Spans(store["two"], two, two + 1)]
    )
    assert first.tolist() == [0, 40, 80]
    assert second.tolist() == [[0, 1], [78, 79]]


def test_a_chunk_is_fetched_once_by_many_threads(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_one(objects)
    reader_statistics(reset=True)
    go_on = threading.Event()
    get_ranges = object_client.get_ranges

    def wait(*args: Any) -> list[memoryview]:
        go_on.wait(60)
        return get_ranges(*args)

    monkeypatch.setattr(object_client, "get_ranges", wait)
    rows: list[list[int]] = []
    threads = [threading.Thread(target=lambda i=i: rows.append(take(reader, i))) for i in range(4)]
    for thread in threads:
        thread.start()
    while reader_statistics().num_hits < 3:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert sorted(rows) == [[0], [1], [2], [3]]
    assert reader_statistics().num_requests == 2  # the chunk, and the index of its shard


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_array_that_is_read_in_order_is_fetched_ahead(objects: ObjectPath, codec: Any) -> None:
    reader = open_one(objects, 400, ChunkGrid(4, 40, codec))
    reader_statistics(reset=True)
    for row in range(0, 400, 3):
        assert take(reader, row) == [row]
    counts = reader_statistics()
    assert counts.num_misses == 2
    assert counts.num_ahead == 98
    # Farther and farther ahead, up to the ends of the shards.
    assert counts.num_requests < (40 if codec == "none" else 50)


def test_random_reads_are_not_fetched_ahead(objects: ObjectPath) -> None:
    reader = open_one(objects, 400)
    reader_statistics(reset=True)
    for row in (0, 300, 100, 200, 50, 350, 50):
        take(reader, row)
    assert reader_statistics().num_ahead == 0


def test_memory_is_bounded(objects: ObjectPath) -> None:
    reader = open_one(objects)
    set_chunk_cache(4 * 16)
    # Indices of shards are kept too, but need not be.
    assert take(reader, 0, 40, 80) == [0, 40, 80]
    reader_statistics(reset=True)
    for row in (0, 20, 44, 60, 84, 44, 60, 20):  # all but the first are still there
        take(reader, row)
    assert (reader_statistics().num_misses, reader_statistics().num_hits) == (5, 3)
    take(reader, 0)
    assert reader_statistics().num_misses == 6
    set_chunk_cache(0)
    take(reader, 0)
    assert reader_statistics().num_misses == 7


def test_a_long_pass_pushes_nothing_out(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reader, "_ROUND_NBYTES", 10 * 16)
    reader = open_one(objects, 1000)
    set_chunk_cache(20 * 16)
    take(reader, 999)
    np.testing.assert_array_equal(reader.read(0, 990), np.arange(990))
    reader_statistics(reset=True)
    take(reader, 999)
    assert reader_statistics().num_hits == 1


def test_a_missing_shard(objects: ObjectPath) -> None:
    reader = open_one(objects)
    files.remove_file(objects / "one/c/1")
    assert take(reader, 0) == [0]
    for _ in range(2):
        with pytest.raises(VerificationError, match=r"shard s3://memory/store/one/c/1 is missing"):
            take(reader, 0, 40)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_every_damaged_byte_is_found(objects: ObjectPath, codec: Any) -> None:
    reader = open_one(objects, 8, ChunkGrid(4, 8, codec))
    path = objects / "one/c/0"
    sound = files.read_file(path)
    for place in range(len(sound)):
        files.write_once(path, [flipped(sound, place, 4)], replace=True)
        reset_cache()
        with pytest.raises(VerificationError, match=r"shard one/c/0"):
            reader.read(0, 8)
    files.write_once(path, [sound[:-1]], replace=True)
    reset_cache()
    files.write_once(path, [sound], replace=True)
    assert reader.read(0, 8).tolist() == list(range(8))


def test_the_index_of_a_shard_has_the_last_word(objects: ObjectPath) -> None:
    """Another writer may order chunks in another way; then their checksums are elsewhere."""
    reader = RemoteReader(objects, open_one(objects, 8, ChunkGrid(4, 8)).layout)
    path = objects / "one/c/0"
    sound = files.read_file(path)
    pairs = np.array([[20, 20], [0, 20]], "<u8").tobytes()
    import google_crc32c

    footer = pairs + google_crc32c.value(pairs).to_bytes(4, "little")
    files.write_once(path, [sound[20:40], sound[:20], sound[40:48], footer], replace=True)
    assert reader.read(0, 8).tolist() == list(range(8))


def test_checksums_are_left_out_on_request(objects: ObjectPath) -> None:
    reader = open_one(objects, 8, ChunkGrid(4, 8))
    path = objects / "one/c/0"
    files.write_once(path, [flipped(files.read_file(path), 0, 4)], replace=True)
    assert isinstance(reader, RemoteReader)
    assert take(open_store(objects, verify="never")["one"], 0, 1) == [4, 1]
    with pytest.raises(VerificationError, match=r"chunk 0 of shard one/c/0 fails its checksum"):
        take(reader, 0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_missing_shard_only_affects_its_rows(objects: ObjectPath, codec: Any) -> None:
    """What is fetched ahead reaches into it before any of its rows is wanted."""
    reader = open_one(objects, grid=ChunkGrid(4, 40, codec))
    files.remove_file(objects / "one/c/1")
    for row in range(40):
        assert reader[row] == row
    with pytest.raises(VerificationError, match=r"shard .*one/c/1 is missing"):
        take(reader, 39, 40)
    set_chunk_cache(0)
    assert take(reader, 39, 80) == [39, 80]


@pytest.mark.parametrize("name", ["get_ranges", "get_tail"])
def test_a_reader_retries_if_the_request_it_waits_for_fails(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The first one asks before the shard is there."""
    reader = open_one(objects)
    reader_statistics(reset=True)
    go_on, calls, real = threading.Event(), count(), getattr(object_client, name)

    def come_too_early(*args: Any) -> Any:
        # An index that is missing is asked for twice.
        if next(calls) < (1 if name == "get_ranges" else 2):
            go_on.wait(60)
            raise FileNotFoundError
        return real(*args)

    monkeypatch.setattr(object_client, name, come_too_early)
    answers: list[Any] = []

    def read(row: int) -> None:
        try:
            answers.append(take(reader, row))
        except VerificationError as error:
            answers.append(error)

    threads = [threading.Thread(target=read, args=(row,)) for row in (0, 1)]
    threads[0].start()
    while reader_statistics().num_misses < 1:
        pass
    threads[1].start()
    while reader_statistics().num_hits < 1:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert [1] in answers
    assert all(answer in ([0], [1]) or "is missing" in str(answer) for answer in answers)
    assert len(answers) == 2


def test_chunks_that_cannot_be_prefetched_are_fetched_on_demand(
    objects: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a thread reads on while its process ends."""
    reader = open_one(objects)
    fetch_ahead = chunk_fetch._fetch_ahead

    def refuse(*args: Any) -> Any:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def refuse_more(*args: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cache.pool, "submit", refuse)
            fetch_ahead(*args)

    monkeypatch.setattr(chunk_fetch, "_fetch_ahead", refuse_more)
    for row in range(40):
        assert reader[row] == row
