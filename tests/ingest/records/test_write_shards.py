"""The write stage: the streams that overlap a shard."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import numbers
from tests.ingest.records.sources import draw_files
from zindex.errors import SourceError
from zindex.ingest.records import read_partitions as reading
from zindex.ingest.records.import_records import RecordTable, StreamSpan, store_stream_shard
from zindex.ingest.records.read_partitions import Partition, Settings, read_partition
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_reader
from zindex.store.records import Form, encode_value


@pytest.mark.parametrize("seed", numbers(4, 30))
def test_any_shard_is_what_the_records_say(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BUFFER_NBYTES", 300)
    source = draw_files(seed)
    results = [
        read_partition(source, tmp_path, Partition(f"p{part}", part, (number,)), Settings())
        for part, (number, _) in enumerate(source.parts)
    ]
    table = RecordTable(results, Settings())
    records = source.records()
    assert table.num_records == len(records)
    grid = ChunkGrid(24, 72)
    for field in table.fields:
        pairs = [
            encode_value(record[field.name]) if field.name in record else (Form.NONE, b"")
            for record in records
        ]
        expected = {
            "value": list(b"".join(content for _, content in pairs)),
            "offset": np.cumsum([0, *(len(content) for _, content in pairs)]).tolist(),
            "form": [int(form) for form, _ in pairs],
        }
        for layout in field.layouts(len(records), grid):
            kind = layout.name.rpartition("_")[2]
            kind = {"text": "value", "bound": "offset"}.get(kind, kind)
            for shard in range(layout.num_shards):
                spans = tuple(table.spans(field, kind, *layout.shard_bounds(shard)))
                store_stream_shard(tmp_path, layout, shard, kind, spans)
            assert open_reader(tmp_path, layout)[:].tolist() == expected[kind]
        assert field.has_forms == (len(set(expected["form"])) > 1)


def test_scratch_files_without_the_field_have_no_stream(tmp_path: Path) -> None:
    source = draw_files(0)
    source.parts = [(0, [{"x": "abc"}]), (0, [{}, {}]), (0, [{"x": "d"}])]
    results = [
        read_partition(source, tmp_path, Partition(f"p{part}", part, (0,)), Settings())
        for part in range(3)
    ]
    table = RecordTable(results, Settings())
    x = table.fields[1]
    names = ["p0-000000", None, "p2-000000"]
    assert [span.name for span in table.spans(x, "form", 0, 4)] == names
    assert [span.before for span in table.spans(x, "offset", 0, 5)] == [0, 3, 3, 4]
    assert list(table.spans(x, "offset", 4, 5)) == [StreamSpan(None, 0, 0, 0, 1, 4)]
    assert [span.name for span in table.spans(x, "value", 1, 4)] == [names[0], names[2]]
    assert table.count_of_urls(2).tolist() == [4, 0]


def test_fields_of_no_record_are_refused(tmp_path: Path) -> None:
    source = draw_files(0)
    source.parts = [(0, [{"x": "abc"}])]
    settings = Settings(fields=("x", "y"))
    result = read_partition(source, tmp_path, Partition("p", 0, (0,)), settings)
    with pytest.raises(SourceError, match=r"got 'y', which no record has; there are \['x'\]"):
        RecordTable([result], settings)
    settings = Settings(fields=("y",))
    result = read_partition(source, tmp_path, Partition("q", 0, (0,)), settings)
    with pytest.raises(
        SourceError, match=r"got 'y', which no record has; there are \['x'\]; name one of"
    ):
        RecordTable([result], settings)
    source.parts = [(0, [{}])]
    result = read_partition(source, tmp_path, Partition("r", 0, (0,)), settings)
    with pytest.raises(SourceError, match="got 'y', which no record has; there are no others"):
        RecordTable([result], settings)


def test_metadata_must_be_joined_to_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draw_files(0)
    source.parts = [(0, [{"x": "abc", "y": None}]), (0, [{"z": 1}])]
    results = [
        read_partition(source, tmp_path, Partition(f"p{part}", part, (0,)), Settings())
        for part in range(2)
    ]
    assert [result.names for result in results] == [("x",), ("z",)]
    RecordTable(results, Settings(), ["x", "z"])
    problem = (
        r"must name metadata of some sample, no record has 'y': only samples with a member \.id"
    )
    with pytest.raises(SourceError, match=problem):
        RecordTable(results, Settings(), ["x", "y"])
    RecordTable([], Settings(), ["y"])
    # More fields than are reported: the field may exist.
    monkeypatch.setattr(reading, "MAX_NAMES", 1)
    monkeypatch.setattr("zindex.ingest.records.import_records.MAX_NAMES", 1)
    source.parts = [(0, [{"x": "abc", "z": 1}])]
    result = read_partition(source, tmp_path, Partition("q", 0, (0,)), Settings())
    assert len(result.names) == 1
    RecordTable([result], Settings(), ["x", "z"])
