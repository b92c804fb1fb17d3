"""Records: medians, ratios, bars, and what is kept of a command."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.record import Record, Row, Table, name_size, show
from tests.benchmarks.units import format_ratio


def make_table(**settings: object) -> Table:
    """Return a table in which ours is four times as fast as one rival and twice as the other."""
    runs = {
        "theirs": [{"seconds": 8.0}, {"seconds": 2.0}, {"seconds": 4.0}],
        "others": [{"seconds": 2.0}],
        "ours": [{"seconds": 1.0, "peak_nbytes": 2.0**20}, {"seconds": 1.0}],
    }
    return Table.of_runs("size-1e3", "work of 1,000", runs, **settings)


def test_every_run_is_kept_and_the_median_is_shown() -> None:
    table = make_table()
    assert table.rows[0] == Row("theirs", {"seconds": [8.0, 2.0, 4.0]})
    assert table.rows[0].median("seconds") == 4.0
    assert table.rows[0].median("peak_nbytes") is None
    assert table.rows[2].figures["peak_nbytes"] == [2.0**20]
    assert table.row("nobody") is None


def test_ratio_to_one_rival() -> None:
    table = make_table(rival="theirs")
    assert [table.ratio(row) for row in table.rows] == [None, 2.0, 4.0]


def test_ratio_to_a_rival_of_each() -> None:
    table = make_table(rival={"ours": "others"})
    assert [table.ratio(row) for row in table.rows] == [None, None, 2.0]


@pytest.mark.parametrize("rival", [None, "nobody", {"ours": "nobody"}])
def test_no_ratio_without_a_rival(rival: object) -> None:
    table = make_table(rival=rival)
    assert [table.ratio(row) for row in table.rows] == [None, None, None]


def test_no_ratio_of_a_figure_that_one_lacks() -> None:
    table = make_table(rival="theirs", ratio_of="peak_nbytes")
    assert [table.ratio(row) for row in table.rows] == [None, None, None]


def test_rates_are_better_when_larger() -> None:
    runs = {"theirs": [{"tokens_per_second": 2.0}], "ours": [{"tokens_per_second": 6.0}]}
    table = Table.of_runs("k", "t", runs, rival="theirs", ratio_of="tokens_per_second")
    assert table.ratio(table.rows[1]) == 3.0


def test_bar_that_is_reached() -> None:
    table = make_table(rival="theirs", notes=["known"]).with_bar("ours", 4, "bad luck")
    assert table.notes == ["known", "bar: ours at least 4x; reached, 4x"]


def test_bar_that_is_missed_says_why() -> None:
    table = make_table(rival="theirs").with_bar("ours", 4.5, "the disk is slow")
    assert table.notes == ["bar: ours at least 4.5x; missed, 4x: the disk is slow"]


def test_bar_of_another_figure_and_limits() -> None:
    runs = {
        "theirs": [{"seconds": 1.0, "pass_seconds": 6.0}],
        "ours": [{"seconds": 1.0, "pass_seconds": 2.0}],
    }
    table = Table.of_runs("k", "t", runs, rival="theirs").with_bar("ours", 3, figure="pass_seconds")
    table = table.with_limit("ours", "pass_seconds", 2).with_limit("ours", "seconds", 0.5)
    assert table.notes == [
        "bar: ours (pass) at least 3x; reached, 3x",
        "bar: ours (pass at most 2.00 s); reached, 2.00 s",
        "bar: ours (time at most 0.500 s); missed, 1.00 s",
    ]
    assert table.with_limit("nobody", "seconds", 1) is table


def test_a_target_against_another_rival_has_no_effect() -> None:
    table = make_table(rival="theirs")
    assert table.with_bar("nobody", 2) is table
    assert table.with_bar("theirs", 2) is table


def test_record_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    table = make_table(rival={"ours": "theirs"}, notes=["a note"])
    record = Record.of("bench_things", [table], str(tmp_path))
    assert record.environment["OMP_NUM_THREADS"] == "1"
    record.write(tmp_path / "bench_things.json")
    assert Record.read(tmp_path / "bench_things.json") == record
    record.write(None)


def test_record_without_later_fields_is_read(tmp_path: Path) -> None:
    record = replace(Record.of("bench_things", [make_table()]), environment={})
    path = tmp_path / "bench_things.json"
    record.write(path)
    fields = json.loads(path.read_text())
    del fields["environment"]
    path.write_text(json.dumps(fields))
    assert Record.read(path) == record


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], ""),
        (["--size", "1e8", "--json", "out.json"], " --size 1e8"),
        (["--folder", "/data", "--size", "1e8"], " --size 1e8"),
        (["--json=out.json", "--runs", "3", "--folder=/data"], " --runs 3"),
        (["--contenders", "one of them"], " --contenders 'one of them'"),
    ],
)
def test_command_without_places(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_things.py", *arguments])
    record = Record.of("bench_things", [])
    assert record.command == f"python -m tests.benchmarks.bench_things{command}"


@pytest.mark.parametrize(
    ("size", "name"),
    [(100_000_000, "1e8"), (20_000, "2e4"), (1000, "1e3"), (2.5e9, "2.5e9"), (7, "7e0")],
)
def test_sizes_in_keys(size: float, name: str) -> None:
    assert name_size(size) == name


def test_table_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(make_table(rival="theirs", notes=["a note"]))
    title, heading, *rows, note = capsys.readouterr().out.strip().splitlines()
    assert title == "work of 1,000"
    assert heading.strip().startswith("time, s")
    assert [row.split()[:2] for row in rows] == [
        ["theirs", "4.00"],
        ["others", "2.00"],
        ["ours", "1.00"],
    ]
    assert [row.split()[2:] for row in rows[:2]] == [[], [format_ratio(2)]]
    assert rows[2].endswith(format_ratio(4))
    assert note == "  a note"
