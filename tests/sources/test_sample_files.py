"""Files cut into parts."""

from dataclasses import replace
from pathlib import Path

import pytest

from zindex.errors import ConfigError
from zindex.io.file_list import SourceFile
from zindex.io.objects import ObjectPath
from zindex.sources.sample_files import PartGrid

FILES = [
    SourceFile("a", Path("/x/y/a"), 25),
    SourceFile("b", Path("/x/b"), 0),
    SourceFile("c.gz", Path("/x/y/c.gz"), 99, "gzip"),
    SourceFile("d", Path("/x/y/d"), 20),
]


def test_bounds() -> None:
    grid = PartGrid(FILES, 10)
    assert grid.num_parts == 7
    assert [grid.parts_of(number) for number in range(4)] == [
        range(3),
        range(3, 4),
        range(4, 5),
        range(5, 7),
    ]
    assert [grid.locate(part) for part in range(7)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
    ]
    assert [grid.bounds(part) for part in range(7)] == [
        (0, 10),
        (10, 20),
        (20, 25),
        (0, 0),
        (0, 99),
        (0, 10),
        (10, 20),
    ]


def test_objects_are_one_part_of_unknown_size() -> None:
    grid = PartGrid([SourceFile("s3://b/a", ObjectPath("s3", "b", "a"), None)], 10)
    assert (grid.num_parts, grid.bounds(0)) == (1, (0, None))


def test_the_fingerprint_is_that_of_names_sizes_and_grid() -> None:
    same = PartGrid(FILES, 10).fingerprint(kind="tar")
    moved = [replace(file, place=Path("/other") / file.place) for file in FILES]
    moved = [replace(file, place=Path("/z") / str(file.place)[3:]) for file in FILES]
    assert PartGrid(moved, 10).fingerprint(kind="tar") == same
    for other in (
        PartGrid(FILES, 11).fingerprint(kind="tar"),
        PartGrid(FILES, 10).fingerprint(kind="jsonl"),
        PartGrid(FILES[:3], 10).fingerprint(kind="tar"),
        PartGrid([*FILES[1:], FILES[0]], 10).fingerprint(kind="tar"),
        PartGrid([replace(FILES[0], nbytes=26), *FILES[1:]], 10).fingerprint(kind="tar"),
        PartGrid([replace(FILES[0], place=Path("/x/e")), *FILES[1:]], 10).fingerprint(kind="tar"),
    ):
        assert other != same


def test_refused() -> None:
    with pytest.raises(ConfigError, match="part_nbytes must be at least 1, got 0"):
        PartGrid(FILES, 0)
    grid = PartGrid(FILES, 10)
    for part in (-1, 7):
        with pytest.raises(IndexError, match=rf"a part must be in \[0, 7\), got {part}"):
            grid.locate(part)
    with pytest.raises(IndexError, match=r"a file must be in \[0, 4\), got 4"):
        grid.parts_of(4)
