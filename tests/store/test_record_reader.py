"""Records by number: one, or many in two rounds, here and in an object store."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.damage import flip
from tests.ingest.records.sources import ListFiles, draw_files
from zindex.errors import ConfigError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records.import_records import import_records
from zindex.store import record_reader
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_store
from zindex.store.reader import forget_all_files
from zindex.store.record_reader import RecordReader
from zindex.store.rows import Spans

SMALL = ChunkGrid(chunk_length=32, shard_length=128)


@pytest.fixture
def source() -> ListFiles:
    return draw_files(11)


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, source: ListFiles, tmp_path: Path) -> Store:
    place = tmp_path / "s" if request.param == "local" else request.getfixturevalue("objects")
    return import_records(source, place, client=SerialExecutor(), grid=SMALL)


def test_many_records_are_what_each_of_them_is(
    store: Store, source: ListFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = source.records()
    reader = pickle.loads(pickle.dumps(RecordReader(store)))
    rows = np.random.default_rng(1).integers(0, len(expected), 50)
    for spans in (1024, 0):  # by single reads, and by the kernel
        monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", spans)
        assert reader.read_many(rows) == [expected[row] for row in rows]
        assert reader.read_many(rows.tolist()) == [expected[row] for row in rows]
    assert [reader.read(i) for i in range(len(reader))] == expected


def test_many_records_take_two_rounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    read_many = record_reader.read_many

    def count(wanted: list[Spans]) -> Any:
        rounds.append(len(wanted))
        return read_many(wanted)

    monkeypatch.setattr(record_reader, "read_many", count)
    RecordReader(store).read_many(range(20))
    assert len(rounds) == 2


def test_only_what_is_wanted_is_read(store: Store, source: ListFiles) -> None:
    name = next(name for record in source.records() for name in record if name[:2] != "__")
    reader = RecordReader(store, [name])
    for found, record in zip(reader.read_many(range(len(reader))), source.records(), strict=True):
        assert found == {k: v for k, v in record.items() if k in (name, "__key__", "__url__")}
    with pytest.raises(ConfigError, match=r"a field of .* must be one of .*, got 'no'"):
        RecordReader(store, ["no"])
    assert set(RecordReader(store, []).read(0)) == {"__key__", "__url__"}


def test_numbers_of_a_batch_stand_alone(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"x": [1, 2]}, {"x": [3]}]]})
    store = import_records(source, tmp_path / "s", dtypes={"x": int}, client=SerialExecutor())
    one, other = (record["x"] for record in RecordReader(store).read_many([0, 1]))
    assert one.base is None
    one[:] = 0
    assert other.tolist() == [3]


def test_damage_is_found(tmp_path: Path, source: ListFiles) -> None:
    root = tmp_path / "s"
    import_records(source, root, client=SerialExecutor(), grid=SMALL)
    path = root / "key_text/c/0"
    flip(path, 3)
    forget_all_files()
    reader = RecordReader(open_store(root))
    with pytest.raises(VerificationError, match="key_text/c/0 fails its checksum"):
        reader.read(0)
    with pytest.raises(VerificationError, match="key_text/c/0 fails its checksum"):
        reader.read_many([0, 1, 2])
