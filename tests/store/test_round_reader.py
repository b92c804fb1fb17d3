"""Rounds over several arrays: the same rows as one by one, with the kernel and without."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.damage import flip, flipped
from tests.store.stores import ONE, TWO, build_arrays, count_up
from zindex.errors import VerificationError
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.open_files import table
from zindex.store.reader import forget_all_files, kernel_pays
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.shard import decode_chunk
from zindex.store.tokens import FlatFile

VALUES = count_up(50, dtype="uint16")


@pytest.fixture(params=["kernel", "plain"], autouse=True)
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_all_files()
    kernel = request.param == "kernel"
    monkeypatch.setattr("zindex.store.reader.FEW_SPANS", 0)
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 0 if kernel else 10**9)


@pytest.fixture
def readers(tmp_path: Path) -> dict[str, Any]:
    """One array in each way to hold it."""
    made: dict[str, Any] = {}
    for codec in ("none", "zstd"):
        build_arrays(tmp_path / codec, {ONE: VALUES}, ChunkGrid(4, 12, codec))
        made[codec] = open_store(tmp_path / codec)["one"]
    made["always"] = open_store(tmp_path / "none", verify="always")["one"]
    made["never"] = open_store(tmp_path / "none", verify="never")["one"]
    (tmp_path / "tokens.bin").write_bytes(VALUES.tobytes())
    made["flat"] = FlatFile(str(tmp_path / "tokens.bin"), VALUES.nbytes, "uint16")
    made["memory"] = VALUES
    return made


def of(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def test_arrays_of_all_kinds_in_one_round(readers: dict[str, Any]) -> None:
    starts, stops = of(3, 40, 7, 0, 20), of(9, 50, 7, 50, 21)
    expected = np.concatenate([VALUES[a:b] for a, b in zip(starts, stops, strict=True)])
    for _ in range(2):  # the first time chunks are verified, then they are known
        wide = np.full((len(readers), len(expected)), -1, np.int64)
        narrow = [Spans(reader, starts, stops) for reader in readers.values()]
        flat, base = wide.reshape(-1), np.cumsum(stops - starts) - (stops - starts)
        placed = [
            Spans(reader, starts, stops, flat, base + row * len(expected))
            for row, reader in enumerate(readers.values())
        ]
        results = read_many([*narrow, *placed])
        for got in results[: len(narrow)]:
            assert got.dtype == np.uint16
            assert got.flags.writeable
            np.testing.assert_array_equal(got, expected)
        assert all(got is flat for got in results[len(narrow) :])
        np.testing.assert_array_equal(wide, np.broadcast_to(expected, wide.shape))


def test_small_results_do_not_touch_each_other(readers: dict[str, Any]) -> None:
    rows = np.arange(3)
    wanted = [Spans(readers["none"], rows + i, rows + i + 1) for i in range(40)]
    results = read_many(wanted)
    for i, got in enumerate(results):
        np.testing.assert_array_equal(got, VALUES[i : i + 3])
        got[:] = 0
    for got in results:
        assert got.tolist() == [0, 0, 0]


def test_results_of_every_size(tmp_path: Path) -> None:
    values = count_up(30_000, dtype="int16", num_columns=2)
    build_arrays(tmp_path, {TWO: values}, ChunkGrid(1000, 4000))
    array = open_store(tmp_path)["two"]
    bounds = [(0, 0), (5, 4100), (1, 2), (0, 30_000), (29_999, 30_000), (3, 3), (0, 4095)]
    results = read_many([Spans(array, of(start), of(stop)) for start, stop in bounds])
    for (start, stop), got in zip(bounds, results, strict=True):
        assert got.dtype == values.dtype
        np.testing.assert_array_equal(got, values[start:stop])
    np.testing.assert_array_equal(array.take(of(7, 3, 3)), values[[7, 3, 3]])


def test_no_spans(readers: dict[str, Any]) -> None:
    none = of()
    assert read_many([]) == []
    for reader in readers.values():
        (got,) = read_many([Spans(reader, none, none)])
        assert (got.shape, got.dtype) == ((0,), np.uint16)
    got, rows = read_many(
        [Spans(readers["none"], none, none), Spans(readers["flat"], of(4), of(6))]
    )
    assert (got.tolist(), rows.tolist()) == ([], [4, 5])


@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_the_kernel_decodes_and_checks_compressed_chunks(
    tmp_path: Path, verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_arrays(tmp_path, {ONE: VALUES}, ChunkGrid(4, 12, "zstd"))
    reader = open_store(tmp_path, verify=verify)["one"]
    expected = np.concatenate([VALUES[3:9], VALUES[40:50]])
    for shard in range(len(VALUES) // 12 + 1):
        reader[12 * shard]  # open
    is_kernel = kernel_pays()
    numbers: list[int] = []

    def count(*arguments: Any, **settings: Any) -> Any:
        numbers.append(arguments[2])
        return decode_chunk(*arguments, **settings)

    monkeypatch.setattr("zindex.store.chunk_reader.decode_chunk", count)
    for dtype in (np.int64, np.uint16):
        out = np.zeros(16, dtype)
        reader.read_spans(of(3, 40), of(9, 50), out)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(reader.read(0, 50), VALUES)
    assert not is_kernel or not numbers
    path = tmp_path / "one" / "c" / "0"
    content = flipped(path.read_bytes(), 5)
    with open(path, "r+b") as stream:  # the open file
        stream.write(content)
    table.decoded.clear()
    table.decoded_nbytes = 0
    if verify != "never":
        with pytest.raises(VerificationError, match="fails its checksum"):
            reader.read_spans(of(0, 12, 24, 36), of(4, 16, 28, 40))


def test_rows_between_places_stay(readers: dict[str, Any]) -> None:
    for reader in readers.values():
        out = np.full(12, -1, np.int64)
        read_many([Spans(reader, of(1, 5), of(3, 8), out, of(9, 2))])
        assert out.tolist() == [-1, -1, 5, 6, 7, -1, -1, -1, -1, 1, 2, -1]


@pytest.mark.parametrize("kind", ["none", "zstd", "always", "never", "flat"])
class TestRefusals:
    """What cannot be read is an error that names the array, and nothing is written outside."""

    @pytest.mark.parametrize("span", [(-1, 2), (49, 51), (51, 51), (5, 4), (2**62, 2**62)])
    def test_spans(self, readers: dict[str, Any], kind: str, span: tuple[int, int]) -> None:
        reader: RowReader = readers[kind]
        for spans in (Spans(reader, of(span[0]), of(span[1])), Spans(reader, *of2((0, 3), span))):
            with pytest.raises(IndexError, match=rf"rows \[{span[0]}, {span[1]}\) are outside"):
                read_many([spans])

    @pytest.mark.parametrize("places", [(0, -1), (0, 9), (10, 0), (2**62, 0), (-(2**62), 0)])
    def test_places(self, readers: dict[str, Any], kind: str, places: tuple[int, int]) -> None:
        out = np.zeros(10, np.int64)
        with pytest.raises(ValueError, match=r"places must put rows into \[0, 10\) of out"):
            read_many([Spans(readers[kind], of(0, 5), of(2, 7), out, of(*places))])

    def test_too_little_room(self, readers: dict[str, Any], kind: str) -> None:
        out = np.zeros(3, np.uint16)
        with pytest.raises(ValueError, match=r"places must put rows into \[0, 3\) of out"):
            read_many([Spans(readers[kind], of(0, 5), of(2, 7), out)])

    def test_numbers_of_spans(self, readers: dict[str, Any], kind: str) -> None:
        with pytest.raises(ValueError, match="must be as many, got 2, 1 and none"):
            read_many([Spans(readers[kind], of(0, 5), of(2))])
        with pytest.raises(ValueError, match="must be as many, got 2, 2 and 1"):
            read_many([Spans(readers[kind], of(0, 5), of(2, 7), np.zeros(9), of(1))])

    def test_a_target_that_is_not_to_be_changed(self, readers: dict[str, Any], kind: str) -> None:
        out = np.zeros(10, np.uint16)
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            read_many([Spans(readers[kind], of(0), of(7), out)])
        assert not out.any()

    def test_targets_of_other_kinds(self, readers: dict[str, Any], kind: str) -> None:
        """They are filled as numpy does it."""
        for out in (np.zeros(20, np.float64), np.zeros(40, np.int64)[::2], np.zeros(20, np.int32)):
            read_many([Spans(readers[kind], of(3, 40), of(9, 50), out)])
            np.testing.assert_array_equal(out[:16], np.r_[VALUES[3:9], VALUES[40:50]])


def of2(*spans: tuple[int, int]) -> tuple[Any, Any]:
    """Return the starts and the stops of spans."""
    return of(*(start for start, _ in spans)), of(*(stop for _, stop in spans))


@pytest.mark.parametrize("spans", [(of(0, 0), of(1, 1 << 45)), (of(0), of(1 << 62))])
def test_rows_that_are_not_there_take_no_memory(readers: dict[str, Any], spans: Any) -> None:
    for name in ("none", "zstd", "flat"):
        with pytest.raises(IndexError, match=rf"rows \[0, {int(spans[1][-1])}\) are outside"):
            readers[name].read_spans(*spans)


def test_a_round_reads_ahead_what_is_new(
    readers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *span: advised.append(span[:2]))
    monkeypatch.setattr("zindex.store.open_array._WINDOW_NBYTES", 16)
    spans = of2((2, 10), (41, 42), (1, 3))
    for kind, expected in (
        ("flat", [(0, 16), (16, 16), (80, 16)]),
        ("none", [(0, 24), (24, 12), (0, 24)]),  # two chunks of 12 bytes, the third, and two more
        ("never", []),  # the same files
    ):
        assert np.asarray(read_many([Spans(readers[kind], *spans)])).sum() == 88
        assert advised == expected
        advised.clear()
        read_many([Spans(readers[kind], *spans)])
        assert not advised
    read_many([Spans(readers["zstd"], *spans)])
    assert [offset for offset, _ in advised] == [0, 42, 0]  # chunks of 21 bytes


def test_an_array_of_too_many_windows_is_not_read_ahead(
    readers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: pytest.fail("it is read ahead"))
    monkeypatch.setattr("zindex.store.open_array._MAX_WINDOWS", 0)
    for kind in ("flat", "none", "zstd", "never"):
        rows = read_many([Spans(readers[kind], *of2((2, 10), (41, 42), (1, 3)))])
        assert np.asarray(rows).sum() == 88


def test_damage_in_a_round(readers: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "none" / "one" / "c" / "1"
    flip(path, 13)
    with pytest.raises(VerificationError, match="chunk 1 of shard one/c/1 fails its checksum"):
        read_many([Spans(readers["flat"], of(0), of(50)), Spans(readers["none"], of(0), of(50))])
    (got,) = read_many([Spans(readers["never"], of(0), of(50))])
    assert (got != VALUES).sum() == 1


def test_a_flat_file_that_is_cut_or_gone(readers: dict[str, Any], tmp_path: Path) -> None:
    flat, path = readers["flat"], tmp_path / "tokens.bin"
    assert flat[49] == 49
    with path.open("r+b") as stream:
        stream.truncate(60)
    with pytest.raises(VerificationError, match=r"tokens.bin must hold .* bytes at .*, it ends"):
        read_many([Spans(flat, of(2, 25), of(3, 50))])
    path.unlink()
    with pytest.raises(VerificationError, match=r"file .*tokens.bin is missing; restore its files"):
        read_many([Spans(flat, of(2, 25), of(3, 50))])
