"""Tables and pictures of the statistics of stores."""

from pathlib import Path

import pytest

from zindex.errors import ConfigError
from zindex.inspection.answers.record_statistics import (
    FieldLengths,
    RecordStatistics,
    RewardStatistics,
    TargetShare,
)
from zindex.inspection.tables.record_report import draw_records, record_lines
from zindex.text.length_histogram import LengthHistogram

LENGTHS = LengthHistogram.of([4, 10, 10, 30])
REWARDS = RewardStatistics(
    2, 4, 0.5, 0.5, (0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0), 1, 1, (0.0, 0.5, 1.0), (2, 2)
)  # fmt: skip
SOURCES = tuple((f"s{number}", 90 - number) for number in range(90))
FOUND = RecordStatistics(
    "a.zarr",
    4_050,
    (FieldLengths("responses", "tokens", LENGTHS),),
    (TargetShare("responses", 54, 27, 1),),
    REWARDS,
    "file",
    SOURCES,
)


def test_tables() -> None:
    lines = record_lines(FOUND)
    assert lines[0] == "a.zarr: 4,050 records"
    assert lines[3].split() == [
        "54",
        "tokens",
        "13.5",
        "4",
        "4",
        "10",
        "10",
        "30",
        "30",
        "responses",
    ]
    assert lines[6].split() == ["27", "50%", "1", "responses"]
    assert lines[8] == (
        "rewards: 4 answers in 2 groups, of which 1 (50%) have one reward for all answers"
    )
    assert lines[9] == "  1 are NaN or infinite"
    assert lines[11].split() == ["0.5", "0.5", "0", "0", "0.5", "1", "1", "1"]
    assert lines[13] == "by file:"
    assert lines[15].split() == ["90", "2.22%", "s0"]
    assert lines[-1].endswith("smaller; --json lists all")


def test_pictures(tmp_path: Path) -> None:
    draw_records(FOUND, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text.startswith("<?xml")
    plain = RecordStatistics("b", 3, FOUND.lengths, (), None, "from", (("", 3),))
    draw_records(plain, tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match=r"suffix such as \.svg or \.png, got .*a\.none"):
        draw_records(FOUND, tmp_path / "a.none")
