"""The table of compatibility in the guide is that of the last comparison."""

import json
from pathlib import Path

import pytest

from tests.oracle import compatibility
from tests.oracle.compatibility import AREAS, END, GUIDE, RECORD, START, Difference


def test_the_guide_has_the_recorded_table() -> None:
    record = json.loads(RECORD.read_text())
    assert all(list(cells) == list(AREAS) for cells in record.values())
    table = compatibility.render(record)
    assert f"{START}\n{table}\n{END}" in GUIDE.read_text("utf-8")
    reasons = {item.reason for item in compatibility.DIFFERENCES}
    for cells in record.values():
        for cell in cells.values():
            assert reasons >= cell["differences"].keys()


def test_every_comparison_has_a_row() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name not in compatibility.NO_COMPARISONS:
            assert any(path.name in pattern for row in AREAS.values() for pattern in row), path


def test_a_failure_without_a_name_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Difference("0.1", "test_merge.py::test_x*", r"in \d items", "merges differ")
    monkeypatch.setattr(compatibility, "DIFFERENCES", [known])
    found = {
        "passed": ["test_merge.py::test_x[1]", "test_overrides.py::test_datasets[a]"],
        "failed": {
            "test_merge.py::test_x[2]": "differ in 3 items",
            "test_merge.py::test_x[3]": "another fault",
            "test_merge.py::test_y": "in 3 items",
        },
    }
    cells, problems = compatibility.summarize("0.1.2", found)
    assert problems == [
        "0.1.2: test_merge.py::test_x[3]: another fault",
        "0.1.2: test_merge.py::test_y: in 3 items",
    ]
    row = cells[next(iter(AREAS))]
    assert row == {"equal": 1, "differences": {"merges differ": 1}}
    table = compatibility.render({"0.1.2": cells}).splitlines()
    assert table[0] == "| | 0.1.2 |"
    assert table[2].endswith("| 1 equal, 1 differ (1) |")
    assert table[-1] == "1. merges differ"
    _, problems = compatibility.summarize("0.2", found)
    assert problems[0] == "0.2: test_merge.py::test_x[2]: differ in 3 items"
