"""Values of one key in files: shared descriptors, pickling and errors."""

import os
import pickle
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

from tests.io.test_leased_maps import can_map
from tests.keyed.small_stores import write_sft
from tests.keyed.upstream_files import write_bin, write_h5
from zindex.errors import SourceError, StoreNotFoundError, VerificationError
from zindex.formats.keyed.bin_folder import read_bin_shards
from zindex.formats.keyed.keyed_array import KeyedArray
from zindex.keyed import DatasetFactory, H5Store, MmapStore, file_values
from zindex.keyed.columns import Column, column_of_files, read_columns
from zindex.keyed.file_values import CopySpans, FileValues


def column_of(folder: Path, key: str = "sequence") -> Column:
    return column_of_files([shard.arrays[key] for shard in read_bin_shards(folder)])


def values_of(folder: Path) -> FileValues:
    values = column_of(folder).values
    assert isinstance(values, FileValues)
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


@pytest.mark.parametrize("spans", [2, 1 << 60])
def test_files_that_are_gone_are_still_read(
    tmp_path: Path, spans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_values, "SPANS_BEFORE_MAPS", spans)
    column = column_of(write_sft(tmp_path, (9,), num_shards=1))
    assert read(column, 2, 4) == [2, 3]
    (tmp_path / "shard_0000/sequence.bin").unlink()
    assert read(column, 3, 5) == [3, 4]
    assert read(column, 4, 6) == [4, 5]


def test_it_pickles_without_its_values(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(100_000, dtype=np.int32)]})
    column = column_of(tmp_path)
    assert read(column, 7, 9) == [7, 8]
    text = pickle.dumps(column)
    assert len(text) < 2_000
    assert read(pickle.loads(text), 99_998, 100_000) == [99_998, 99_999]


def test_all_keys_of_a_file_share_its_descriptor(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    write_h5(tmp_path / "a.h5", {key: [np.arange(5)] for key in ("a", "b")})
    store = H5Store().load(tmp_path)
    for key in store.keys:
        assert store.fetch(1, 3, key).tolist() == [1, 2]
    opened = [os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")]
    assert opened.count(str(tmp_path / "a.h5")) == 1


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("train_type", ["seq", "sft"])
def test_a_file_that_is_cut_under_a_reader_is_an_error(
    tmp_path: Path, train_type: str, is_mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_mapped:
        monkeypatch.setattr(file_values, "SPANS_BEFORE_MAPS", 1)
    tokens = np.arange(100_000, dtype=np.int32)
    write_bin(tmp_path, {"sequence": [tokens], "loss_mask": [tokens % 2 == 0]})
    dataset = DatasetFactory.load(train_type, tmp_path, 64)
    assert dataset[0]["input_ids"].tolist() == tokens[:64].tolist()
    if is_mapped and can_map(tmp_path / "sequence.bin"):
        assert str(tmp_path / "sequence.bin") in Path("/proc/self/maps").read_text()
    os.truncate(tmp_path / "sequence.bin", 4 * 64_000)
    if not is_mapped:  # a file that is open is not opened again
        assert dataset[900]["input_ids"].tolist() == tokens[64 * 900 : 64 * 901].tolist()
    with pytest.raises(VerificationError, match=r"sequence\.bin must hold"):
        dataset[1001]


def test_files_may_be_mapped(tmp_path: Path) -> None:
    folder = write_sft(tmp_path)
    plain, mapped = (
        DatasetFactory.load("sft", folder, 16, storage_type=kind) for kind in ("bin", "mapped_bin")
    )
    assert mapped.fingerprint == plain.fingerprint
    for dataset in (mapped, pickle.loads(pickle.dumps(mapped))):
        batch, wanted = dataset.__getitems__([0, 9, 3]), plain.__getitems__([0, 9, 3])
        for sample, right in zip(batch, wanted, strict=True):
            assert all(torch.equal(sample[name], value) for name, value in right.items())
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert {line.split()[1] for line in lines if str(tmp_path) in line} == {"r--s"}


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    column = column_of(write_sft(tmp_path, (3, 2), num_shards=40))

    def read_all() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 16, hard))
        starts = np.arange(0, 200, 5)
        target = np.empty((40, 5), np.int32)
        for _ in range(2):
            target[:] = -1
            read_columns([column.read(CopySpans(starts, starts + 5, starts), target)])
            assert target.tolist() == np.arange(200).reshape(40, 5).tolist()

    process = torch.multiprocessing.get_context("fork").Process(target=read_all)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_values_need_no_alignment(tmp_path: Path) -> None:
    path = tmp_path / "askew"
    tokens = np.arange(9, dtype=np.int32)
    path.write_bytes(b"x" + tokens.tobytes())
    array = KeyedArray("sequence", str(path), "int32", np.array([1]), np.array([0, 9]))
    assert read(column_of_files([array]), 2, 5) == [2, 3, 4]


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    column = column_of(write_sft(tmp_path, (6,), num_shards=1))
    os.truncate(tmp_path / "shard_0000" / "sequence.bin", 20)
    with pytest.raises(SourceError, match=r"bin must be as it was when it was described"):
        read(column, 0, 1)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    column = column_of(write_sft(tmp_path, (6,), num_shards=1))
    (tmp_path / "shard_0000" / "sequence.bin").unlink()
    with pytest.raises(StoreNotFoundError, match=r"sequence\.bin must still be there"):
        read(column, 0, 1)


def test_replaced_files_are_opened_again(tmp_path: Path) -> None:
    for start in (0, 40):
        folder = tmp_path / "shard"
        if folder.exists():
            folder.rename(tmp_path / "old")
        write_bin(folder, {"sequence": [np.arange(start, start + 5, dtype=np.int32)]})
        assert read(column_of(folder), 1, 3) == [start + 1, start + 2]


def test_a_child_of_a_fork_reads_the_same_values(tmp_path: Path) -> None:
    dataset = MmapStore().load(write_sft(tmp_path))
    wanted = dataset.fetch(3, 9, "sequence")
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        assert torch.equal(pool.apply(dataset.fetch, (3, 9, "sequence")), wanted)


def test_concurrent_threads_share_one_table(tmp_path: Path) -> None:
    folder = write_sft(tmp_path)
    for _ in range(20):
        values = values_of(folder)
        barrier = Barrier(4)

        def touch(values: FileValues = values, barrier: Barrier = barrier) -> object:
            barrier.wait()
            return values.table

        with ThreadPoolExecutor(4) as pool:
            tables = [task.result() for task in [pool.submit(touch) for _ in range(4)]]
        assert {id(table) for table in tables} == {id(values.table)}
