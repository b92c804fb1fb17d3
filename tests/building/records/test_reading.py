"""The first stage: parts become files of streams, once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.building.records.sources import ListFiles
from zindex.building.records import reading
from zindex.building.records.reading import (
    FieldPart,
    Portion,
    PortionResult,
    Segment,
    Settings,
    read_portion,
)
from zindex.errors import SourceError
from zindex.store.scratch import SCRATCH_KEY, read_stream

SOURCE = ListFiles({"a": [[{"x": "ab"}, {}, {"x": 5, "y": b"\x00"}]], "b": [[{"y": ""}]]})
PORTION = Portion("p", 0, (0, 1))


def test_streams_hold_values_lengths_and_forms(tmp_path: Path) -> None:
    result = read_portion(SOURCE, tmp_path, PORTION, Settings())
    key = FieldPart("__key__", 12, 12, 1 << 2)
    x, y = FieldPart("x", 3, 3, 0b1101), FieldPart("y", 1, 1, 0b111)
    [segment] = result.segments
    assert segment == Segment("p-000000", 4, ((0, 3), (1, 1)), (key, x, y))
    streams = {}
    for field in segment.fields:
        bases, sizes = segment.bases()[field.name], field.sizes(4)
        for base, size in zip(bases, sizes, strict=True):
            out = np.zeros(size, np.uint8)
            read_stream(tmp_path, segment.name, base, size, 0, out)
            streams.setdefault(field.name, []).append(out)
    assert [values.tobytes() for values, _, _ in streams.values()] == [
        b"0/00/10/21/0",
        b"ab5",
        b"\x00",
    ]
    assert streams["x"][1].view(np.int64).tolist() == [2, 0, 1, 0]
    assert streams["x"][2].tolist() == [2, 0, 3, 0]
    assert streams["y"][2].tolist() == [0, 0, 1, 2]


def test_results_come_back_from_json(tmp_path: Path) -> None:
    result = read_portion(SOURCE, tmp_path, PORTION, Settings())
    assert PortionResult.from_json(result.to_json()) == result
    broken = ListFiles({})  # asked for nothing, for all is there
    assert read_portion(broken, tmp_path, PORTION, Settings()) == result


@pytest.mark.parametrize("lost", ["p-000000", "p.json"])
def test_what_is_not_whole_is_read_again(tmp_path: Path, lost: str) -> None:
    result = read_portion(SOURCE, tmp_path, PORTION, Settings())
    contents = {path.name: path.read_bytes() for path in (tmp_path / SCRATCH_KEY).iterdir()}
    (tmp_path / SCRATCH_KEY / lost).unlink()
    assert read_portion(SOURCE, tmp_path, PORTION, Settings()) == result
    for name, content in contents.items():
        assert (tmp_path / SCRATCH_KEY / name).read_bytes() == content


def test_segments_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SEGMENT_NBYTES", 25)
    result = read_portion(SOURCE, tmp_path, PORTION, Settings())
    assert [segment.num_records for segment in result.segments] == [2, 1, 1]
    assert [segment.urls for segment in result.segments] == [((0, 2),), ((0, 1),), ((1, 1),)]


def test_a_record_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"y": 1, "x": [1]}, {"y": 2, "x": "no"}, {"y": 3}]]})
    result = read_portion(
        source,
        tmp_path,
        Portion("p", 0, (0,)),
        Settings(dtypes=(("x", "int8"),), skip_damaged=True),
    )
    [segment] = result.segments
    assert (segment.num_records, result.num_skipped) == (2, 1)
    assert segment.fields[2] == FieldPart("x", 1, 1, 1 << 4 | 1)
    problem = r"a value must be a list of whole numbers, got 'no', in field 'x', in record '0/1' of"
    with pytest.raises(SourceError, match=problem):
        read_portion(
            source, tmp_path / "b", Portion("p", 0, (0,)), Settings(dtypes=(("x", "int8"),))
        )


def test_records_must_have_keys(tmp_path: Path) -> None:
    class Keyless(ListFiles):
        def read_part(self, part: int) -> Any:
            yield {"x": 1}

    with pytest.raises(
        SourceError, match=r"each record must have a __key__, got \['x'\], in record"
    ):
        read_portion(Keyless({"a": [[]]}), tmp_path, Portion("p", 0, (0,)), Settings())
