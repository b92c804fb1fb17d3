"""The second stage: which streams cover which elements of which array."""

from pathlib import Path

import numpy as np
import pytest

from tests.building.records.sources import draw_files
from tests.conftest import numbers
from zindex.building.records import reading
from zindex.building.records.gathering import Gathered, Piece, store_gathered_shard
from zindex.building.records.reading import Portion, Settings, read_portion
from zindex.errors import SourceError
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_reader
from zindex.store.records import Form, encode_value


@pytest.mark.parametrize("seed", numbers(4, 30))
def test_any_shard_is_what_the_records_say(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SEGMENT_NBYTES", 300)
    source = draw_files(seed)
    results = [
        read_portion(source, tmp_path, Portion(f"p{part}", part, (number,)), Settings())
        for part, (number, _) in enumerate(source.parts)
    ]
    gathered = Gathered(results, Settings())
    records = source.records()
    assert gathered.num_records == len(records)
    grid = ChunkGrid(24, 72)
    for field in gathered.fields:
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
                pieces = tuple(gathered.pieces(field, kind, *layout.shard_bounds(shard)))
                store_gathered_shard(tmp_path, layout, shard, kind, pieces)
            assert open_reader(tmp_path, layout)[:].tolist() == expected[kind]
        assert field.has_forms == (len(set(expected["form"])) > 1)


def test_a_segment_without_the_field_gives_no_stream(tmp_path: Path) -> None:
    source = draw_files(0)
    source.parts = [(0, [{"x": "abc"}]), (0, [{}, {}]), (0, [{"x": "d"}])]
    results = [
        read_portion(source, tmp_path, Portion(f"p{part}", part, (0,)), Settings())
        for part in range(3)
    ]
    gathered = Gathered(results, Settings())
    x = gathered.fields[1]
    names = ["p0-000000", None, "p2-000000"]
    assert [piece.name for piece in gathered.pieces(x, "form", 0, 4)] == names
    assert [piece.before for piece in gathered.pieces(x, "offset", 0, 5)] == [0, 3, 3, 4]
    assert list(gathered.pieces(x, "offset", 4, 5)) == [Piece(None, 0, 0, 0, 1, 4)]
    assert [piece.name for piece in gathered.pieces(x, "value", 1, 4)] == [names[0], names[2]]
    assert gathered.count_of_urls(2).tolist() == [4, 0]


def test_fields_that_nobody_has_are_refused(tmp_path: Path) -> None:
    source = draw_files(0)
    source.parts = [(0, [{"x": "abc"}])]
    settings = Settings(fields=("x", "y"))
    result = read_portion(source, tmp_path, Portion("p", 0, (0,)), settings)
    with pytest.raises(SourceError, match=r"got 'y', which no record has; there are \['x'\]"):
        Gathered([result], settings)
    settings = Settings(fields=("y",))
    result = read_portion(source, tmp_path, Portion("q", 0, (0,)), settings)
    with pytest.raises(
        SourceError, match=r"got 'y', which no record has; there are \['x'\]; name one of"
    ):
        Gathered([result], settings)
    source.parts = [(0, [{}])]
    result = read_portion(source, tmp_path, Portion("r", 0, (0,)), settings)
    with pytest.raises(SourceError, match="got 'y', which no record has; there are no others"):
        Gathered([result], settings)


def test_metadata_must_be_joined_to_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draw_files(0)
    source.parts = [(0, [{"x": "abc", "y": None}]), (0, [{"z": 1}])]
    results = [
        read_portion(source, tmp_path, Portion(f"p{part}", part, (0,)), Settings())
        for part in range(2)
    ]
    assert [result.names for result in results] == [("x",), ("z",)]
    Gathered(results, Settings(), ["x", "z"])
    problem = (
        r"must name metadata of some sample, no record has 'y': only samples with a member \.id"
    )
    with pytest.raises(SourceError, match=problem):
        Gathered(results, Settings(), ["x", "y"])
    Gathered([], Settings(), ["y"])
    # More fields than are remembered: nothing is sure.
    monkeypatch.setattr(reading, "MAX_NAMES", 1)
    monkeypatch.setattr("zindex.building.records.gathering.MAX_NAMES", 1)
    source.parts = [(0, [{"x": "abc", "z": 1}])]
    result = read_portion(source, tmp_path, Portion("q", 0, (0,)), Settings())
    assert len(result.names) == 1
    Gathered([result], Settings(), ["x", "z"])
