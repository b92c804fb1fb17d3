"""The read stage: a partition becomes scratch files, once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ingest.records.sources import ListFiles
from zindex.errors import SourceError
from zindex.ingest.records import read_partitions as reading
from zindex.ingest.records.read_partitions import (
    FieldStreams,
    Partition,
    ReadResult,
    RecordStreams,
    Settings,
    read_partition,
)
from zindex.store.scratch import SCRATCH_KEY, read_stream

SOURCE = ListFiles({"a": [[{"x": "ab"}, {}, {"x": 5, "y": b"\x00"}]], "b": [[{"y": ""}]]})
PARTITION = Partition("p", 0, (0, 1))


def test_streams_hold_values_lengths_and_forms(tmp_path: Path) -> None:
    result = read_partition(SOURCE, tmp_path, PARTITION, Settings())
    key = FieldStreams("__key__", 12, 12, 1 << 2)
    x, y = FieldStreams("x", 3, 3, 0b1101), FieldStreams("y", 1, 1, 0b111)
    [streams] = result.streams
    assert streams == RecordStreams("p-000000", 4, ((0, 3), (1, 1)), (key, x, y))
    found = {}
    for field in streams.fields:
        bases, sizes = streams.bases()[field.name], field.sizes(4)
        for base, size in zip(bases, sizes, strict=True):
            out = np.zeros(size, np.uint8)
            read_stream(tmp_path, streams.name, base, size, 0, out)
            found.setdefault(field.name, []).append(out)
    assert [values.tobytes() for values, _, _ in found.values()] == [
        b"0/00/10/21/0",
        b"ab5",
        b"\x00",
    ]
    assert found["x"][1].view(np.int64).tolist() == [2, 0, 1, 0]
    assert found["x"][2].tolist() == [2, 0, 3, 0]
    assert found["y"][2].tolist() == [0, 0, 1, 2]


def test_results_come_back_from_json(tmp_path: Path) -> None:
    result = read_partition(SOURCE, tmp_path, PARTITION, Settings())
    assert ReadResult.from_json(result.to_json()) == result
    broken = ListFiles({})  # not read: all is there
    assert read_partition(broken, tmp_path, PARTITION, Settings()) == result


@pytest.mark.parametrize("lost", ["p-000000", "p.json"])
def test_incomplete_partitions_are_reread(tmp_path: Path, lost: str) -> None:
    result = read_partition(SOURCE, tmp_path, PARTITION, Settings())
    contents = {path.name: path.read_bytes() for path in (tmp_path / SCRATCH_KEY).iterdir()}
    (tmp_path / SCRATCH_KEY / lost).unlink()
    assert read_partition(SOURCE, tmp_path, PARTITION, Settings()) == result
    for name, content in contents.items():
        assert (tmp_path / SCRATCH_KEY / name).read_bytes() == content


def test_scratch_files_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BUFFER_NBYTES", 25)
    result = read_partition(SOURCE, tmp_path, PARTITION, Settings())
    assert [item.num_records for item in result.streams] == [2, 1, 1]
    assert [item.urls for item in result.streams] == [((0, 2),), ((0, 1),), ((1, 1),)]


def test_a_record_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"y": 1, "x": [1]}, {"y": 2, "x": "no"}, {"y": 3}]]})
    result = read_partition(
        source, tmp_path, Partition("p", 0, (0,)), Settings(dtypes={"x": "int8"}, skip_damaged=True)
    )
    [streams] = result.streams
    assert (streams.num_records, result.num_skipped) == (2, 1)
    assert streams.fields[2] == FieldStreams("x", 1, 1, 1 << 4 | 1)
    problem = r"a value must be a list of whole numbers, got 'no', in field 'x', in record '0/1' of"
    with pytest.raises(SourceError, match=problem):
        read_partition(
            source, tmp_path / "b", Partition("p", 0, (0,)), Settings(dtypes={"x": "int8"})
        )


def test_records_must_have_keys(tmp_path: Path) -> None:
    class Keyless(ListFiles):
        def read_part(self, part: int) -> Any:
            yield {"x": 1}

    with pytest.raises(
        SourceError, match=r"each record must have a __key__, got \['x'\], in record"
    ):
        read_partition(Keyless({"a": [[]]}), tmp_path, Partition("p", 0, (0,)), Settings())
