"""Imported records as a torch dataset."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.ingest.records.sources import ListFiles, draw_files
from tests.killing import exit_code, fork
from zindex.datasets.record_dataset import RecordDataset
from zindex.errors import ConfigError, NotReadyError, StoreError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records.import_records import import_records
from zindex.store.layout import ChunkGrid

SMALL = ChunkGrid(chunk_length=32, shard_length=128)


@pytest.fixture
def source() -> ListFiles:
    return draw_files(11)


@pytest.fixture
def path(source: ListFiles, tmp_path: Path) -> Path:
    import_records(source, tmp_path / "s", client=SerialExecutor(), grid=SMALL)
    return tmp_path / "s"


def count_fields(records: Iterator[dict[str, Any]]) -> Iterator[int]:
    for record in records:
        yield len(record)


def drop_some(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (record for record in records if record["__key__"] != "0/2")


def test_items_are_the_records(path: Path, source: ListFiles) -> None:
    records = source.records()
    dataset = RecordDataset(path)
    assert len(dataset) == len(records)
    assert [dataset[i] for i in range(len(dataset))] == records
    assert [dataset[i - len(records)] for i in range(len(dataset))] == records
    assert list(dataset) == records  # ends by itself, as a list does
    numbers = [3, -1, 3, 0, np.int32(5), torch.tensor(2)]
    assert dataset.__getitems__(numbers) == [records[int(i)] for i in numbers]


@pytest.mark.parametrize("offset", [0, 1, 1000])
def test_positions_out_of_range(path: Path, offset: int) -> None:
    dataset = RecordDataset(path)
    length = len(dataset)
    for index in (length + offset, -length - 1 - offset):
        problem = rf"within \[-{length}, {length}\), but {index} was asked of .*/s; take it modulo"
        with pytest.raises(IndexError, match=problem):
            dataset[index]
        with pytest.raises(IndexError, match=problem):
            dataset.__getitems__([0, index])
    with pytest.raises(TypeError):
        dataset[1.0]  # type: ignore[index]


def test_fields_and_process_functions(path: Path, source: ListFiles) -> None:
    name = RecordDataset(path).fields[0]
    dataset = RecordDataset(path, fields=[name], process_fn=count_fields)
    expected = [2 + (name in record) for record in source.records()]
    assert [dataset[i] for i in range(len(dataset))] == expected
    assert dataset.__getitems__(range(len(dataset))) == expected
    assert dataset.fields == (name,)
    with pytest.raises(ConfigError, match=r"a field of .* must be one of .*, got 'no'"):
        RecordDataset(path, fields=["no"])


def test_a_process_function_must_make_one_item_of_each(path: Path) -> None:
    dataset = RecordDataset(path, process_fn=drop_some)
    keys = [record["__key__"] for record in RecordDataset(path)]
    place = keys.index("0/2")
    assert dataset[place - 1]["__key__"] == "0/1"
    problem = r"must yield one item for each, <function drop_some .*> yields 0 for 1, of keys '0/2'"
    with pytest.raises(ConfigError, match=problem):
        dataset[place]
    with pytest.raises(ConfigError, match=r"yields 2 for 3, of keys '0/0', '0/1', '0/2'; let it"):
        dataset.__getitems__([place - 2, place - 1, place])


def test_it_pickles_for_other_processes(path: Path, source: ListFiles) -> None:
    dataset = RecordDataset(path)
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 20_000
    assert again.fingerprint == dataset.fingerprint
    assert again[5] == source.records()[5]

    def read() -> None:
        assert dataset[7] == source.records()[7]

    assert exit_code(fork(read)) == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_reads_batches(path: Path, source: ListFiles, num_workers: int) -> None:
    loader = torch.utils.data.DataLoader(
        RecordDataset(path), batch_size=7, num_workers=num_workers, collate_fn=list
    )
    assert [record for batch in loader for record in batch] == source.records()


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    one, other = ListFiles({"a": [[{"x": 1}]]}), ListFiles({"a": [[{"x": 1}, {"x": 2}]]})
    for name, source in (("a", one), ("b", one), ("c", other)):
        import_records(source, tmp_path / name, client=SerialExecutor())
    prints = [RecordDataset(tmp_path / name).fingerprint for name in "abc"]
    assert prints[0] == prints[1] != prints[2]


def test_other_stores_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no zindex store at"):
        RecordDataset(tmp_path / "nothing")
    root = path / "zarr.json"
    content = root.read_bytes()
    root.unlink()
    with pytest.raises(NotReadyError, match="is not built yet"):
        RecordDataset(path)
    root.write_bytes(b"{}")
    with pytest.raises(StoreError, match="must be a store written by zindex"):
        RecordDataset(path)
    root.write_bytes(content)
    assert len(RecordDataset(path)) > 0
