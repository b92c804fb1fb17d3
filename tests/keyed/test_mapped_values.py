"""Mapped values of one key: shared maps, pickling and errors."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

from tests.keyed.small_stores import write_sft
from tests.keyed.upstream_files import write_bin
from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.keyed.bin_folder import read_bin_shards
from zindex.formats.keyed.keyed_array import KeyedArray
from zindex.keyed import MmapStore
from zindex.keyed.columns import Column, column_of_files, read_columns
from zindex.keyed.mapped_values import CopySpans, MappedValues


def column_of(folder: Path, key: str = "sequence") -> Column:
    return column_of_files([shard.arrays[key] for shard in read_bin_shards(folder)])


def values_of(folder: Path) -> MappedValues:
    values = column_of(folder).values
    assert isinstance(values, MappedValues)
    return values


def read(column: Column, start: int, stop: int) -> list[int]:
    target = np.empty(stop - start, column.dtype)
    spans = CopySpans(*(np.array([value]) for value in (start, stop, 0)))
    read_columns([column.read(spans, target)])
    return target.tolist()


def test_records_and_values_continue_across_shards(tmp_path: Path) -> None:
    column = column_of(write_sft(tmp_path, (3, 2), num_shards=2))
    assert (column.length, column.num_records, column.lengths) == (10, 4, None)
    assert column.record_offset(0, 4).tolist() == [0, 3, 5, 8, 10]
    assert column.record_offset(1, 3).tolist() == [3, 5, 8]
    starts, stops = column.record_spans(np.array([3, 0]))
    assert (starts.tolist(), stops.tolist()) == ([8, 0], [10, 3])
    items = column.find_items(np.array([3, 0]))
    assert (items.counts.tolist(), items.lengths.tolist()) == ([1, 1], [2, 3])
    assert read(column, 2, 7) == [2, 3, 4, 5, 6]


def test_it_pickles_without_its_values(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(100_000, dtype=np.int32)]})
    column = column_of(tmp_path)
    assert read(column, 7, 9) == [7, 8]
    text = pickle.dumps(column)
    assert len(text) < 2_000
    assert read(pickle.loads(text), 99_998, 100_000) == [99_998, 99_999]


def test_maps_are_read_only_and_shared_by_keys(tmp_path: Path) -> None:
    tokens = np.arange(50, dtype=np.int32)
    write_bin(tmp_path, {"sequence": [tokens]})
    first, second = values_of(tmp_path), values_of(tmp_path)
    mapped = first.table.owners[0]
    assert mapped is second.table.owners[0]
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    fetched = MmapStore().load(tmp_path).fetch(0, 5, "sequence")
    fetched += 1
    assert (np.fromfile(tmp_path / "sequence.bin", np.int32) == tokens).all()


def test_unaligned_values_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "askew"
    tokens = np.arange(9, dtype=np.int32)
    path.write_bytes(b"x" + tokens.tobytes())
    array = KeyedArray("sequence", str(path), "int32", np.array([1]), np.array([0, 9]))
    assert read(column_of_files([array]), 2, 5) == [2, 3, 4]


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    column = column_of(write_sft(tmp_path, (6,), num_shards=1))
    os.truncate(tmp_path / "shard_0000" / "sequence.bin", 20)
    with pytest.raises(
        SourceError, match=r"must have at least 24 bytes, as when .* it has 20; load"
    ):
        read(column, 0, 1)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    column = column_of(write_sft(tmp_path, (6,), num_shards=1))
    (tmp_path / "shard_0000" / "sequence.bin").unlink()
    with pytest.raises(StoreNotFoundError, match=r"sequence\.bin must still be there"):
        read(column, 0, 1)


def test_replaced_files_are_mapped_again(tmp_path: Path) -> None:
    for start in (0, 40):
        folder = tmp_path / "shard"
        if folder.exists():
            folder.rename(tmp_path / "old")
        write_bin(folder, {"sequence": [np.arange(start, start + 5, dtype=np.int32)]})
        assert read(column_of(folder), 1, 3) == [start + 1, start + 2]


def test_a_child_of_a_fork_reads_the_same_maps(tmp_path: Path) -> None:
    dataset = MmapStore().load(write_sft(tmp_path))
    wanted = dataset.fetch(3, 9, "sequence")
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        assert torch.equal(pool.apply(dataset.fetch, (3, 9, "sequence")), wanted)


def test_concurrent_threads_share_one_table(tmp_path: Path) -> None:
    folder = write_sft(tmp_path)
    for _ in range(20):
        values = values_of(folder)
        barrier = Barrier(4)

        def touch(values: MappedValues = values, barrier: Barrier = barrier) -> object:
            barrier.wait()
            return values.table

        with ThreadPoolExecutor(4) as pool:
            tables = [task.result() for task in [pool.submit(touch) for _ in range(4)]]
        assert {id(table) for table in tables} == {id(values.table)}
