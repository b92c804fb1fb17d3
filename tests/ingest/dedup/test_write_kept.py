"""Kept lines, and lists of dropped ones, of a block."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sources.archives import write_jsonl
from zindex.ingest.dedup.duplicates import Reason
from zindex.ingest.dedup.sketches import Block, Sketcher, sketch_partition
from zindex.ingest.dedup.write_kept import Dropped, Written, write_kept
from zindex.ingest.records.read_partitions import Partition
from zindex.sources.jsonl_files import JsonlFiles


@pytest.fixture
def made(tmp_path: Path) -> tuple[Sketcher, Path, Path, Block]:
    paths = [
        write_jsonl(
            tmp_path / f"{name}.jsonl", [{"text": f"{name}{number}"} for number in range(3)]
        )
        for name in "ab"
    ]
    sketcher, root = Sketcher(JsonlFiles(paths)), tmp_path / "work"
    [block] = sketch_partition(sketcher, root, Partition("p", 0, (0, 1))).blocks
    return sketcher, root, tmp_path / "out", block


def make_dropped(*rows: tuple[int, int, int, int, float]) -> Dropped:
    """Return dropped records: number, reason, file and line of the other, and similarity."""
    columns = np.array(rows, np.float64).reshape(-1, 5).T
    return Dropped(*columns[:4].astype(np.int64), columns[4])


def test_lines_and_list(made: Any) -> None:
    sketcher, _, folder, block = made
    dropped = make_dropped((2, Reason.EXACT, 0, 1, 0.0), (4, Reason.NEAR, 1, 0, 0.875))
    written = write_kept(*made[:3], "part-000000", block, dropped, True)
    texts = [json.loads(x)["text"] for x in (folder / "part-000000.jsonl").read_text().splitlines()]
    assert texts == ["a0", "a1", "b0", "b2"]
    assert written == Written(4, (folder / "part-000000.jsonl").stat().st_size)
    first, second = sketcher.source.urls
    lines = (folder / "dropped/part-000000.ndjson").read_text().splitlines()
    assert list(map(json.loads, lines)) == [
        {"file": first, "line": 3, "reason": "exact", "of": {"file": first, "line": 2}},
        {
            **{"file": second, "line": 2, "reason": "near"},
            **{"of": {"file": second, "line": 1}, "similarity": 0.875},
        },
    ]


def test_nothing_is_written_of_nothing(made: Any) -> None:
    *_, folder, block = made
    every = make_dropped(*((row, Reason.EXACT, 0, 0, 0.0) for row in range(6)))
    assert write_kept(*made[:3], "all", block, every, True) == Written(0, 0)
    assert write_kept(*made[:3], "none", block, make_dropped(), False).num_kept == 6
    assert [path.name for path in folder.rglob("*.*")] == ["all.ndjson"]


def test_finished_files_are_not_written_again(made: Any) -> None:
    sketcher, root, folder, block = made
    dropped = make_dropped((2, Reason.EXACT, 0, 1, 0.0))
    written = write_kept(sketcher, root, folder, "a", block, dropped, True)
    inodes = [path.stat().st_ino for path in sorted(folder.rglob("a.*"))]
    assert write_kept(sketcher, root, folder, "a", block, dropped, True) == written
    assert [path.stat().st_ino for path in sorted(folder.rglob("a.*"))] == inodes
