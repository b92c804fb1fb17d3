"""Files cut into parts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.io.file_list import SourceFile
from zindex.io.objects import ObjectPath
from zindex.sources.damage_log import DamageLog
from zindex.sources.part_files import PartFiles

FILES = [
    SourceFile("a", Path("/x/y/a"), 25),
    SourceFile("b", Path("/x/b"), 0),
    SourceFile("c.gz", Path("/x/y/c.gz"), 99, "gzip"),
    SourceFile("d", Path("/x/y/d"), 20),
]


class Unread(PartFiles):
    """Files that are not read."""

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        raise NotImplementedError


def part(files: list[SourceFile], part_nbytes: int, kind: str = "") -> PartFiles:
    """Return files in parts."""
    made = Unread(files, part_nbytes, DamageLog("files", "error"))
    made.kind = kind
    return made


def test_bounds() -> None:
    grid = part(FILES, 10)
    assert grid.num_parts == 7
    assert [grid.url_parts(number) for number in range(4)] == [
        range(3),
        range(3, 4),
        range(4, 5),
        range(5, 7),
    ]
    assert [grid.locate(number) for number in range(7)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
    ]
    assert [grid.bounds(number) for number in range(7)] == [
        (0, 10),
        (10, 20),
        (20, 25),
        (0, 0),
        (0, 99),
        (0, 10),
        (10, 20),
    ]


def test_objects_are_one_part_of_unknown_size() -> None:
    grid = part([SourceFile("s3://b/a", ObjectPath("s3", "b", "a"), None)], 10)
    assert (grid.num_parts, grid.bounds(0)) == (1, (0, None))


def test_the_fingerprint_is_that_of_names_sizes_and_grid() -> None:
    same = part(FILES, 10, "tar").fingerprint()
    moved = [replace(file, place=Path("/z") / str(file.place)[3:]) for file in FILES]
    assert part(moved, 10, "tar").fingerprint() == same
    for other in (
        part(FILES, 11, "tar"),
        part(FILES, 10, "jsonl"),
        part(FILES[:3], 10, "tar"),
        part([*FILES[1:], FILES[0]], 10, "tar"),
        part([replace(FILES[0], nbytes=26), *FILES[1:]], 10, "tar"),
        part([replace(FILES[0], place=Path("/x/e")), *FILES[1:]], 10, "tar"),
    ):
        assert other.fingerprint() != same


def test_refused() -> None:
    for size in (0, 1.5, "8", True):
        with pytest.raises(ConfigError, match=f"whole number of at least 1, got {size!r}"):
            part(FILES, size)  # type: ignore[arg-type]
    grid = part(FILES, 10)
    for number in (-1, 7):
        with pytest.raises(IndexError, match=rf"a part must be in \[0, 7\), got {number}"):
            grid.locate(number)
    with pytest.raises(IndexError, match=r"a file must be in \[0, 4\), got 4"):
        grid.url_parts(4)
