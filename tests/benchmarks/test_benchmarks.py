"""Every benchmark runs in its short form: nothing about time is asserted.

Where contenders must make the same, each benchmark compares that itself and fails; see
`turns.take_turns`.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks.record import Record
from tests.benchmarks.suite import BENCHMARKS, Benchmark
from tests.benchmarks.turns import TOGETHER
from tests.forked import run_python

#: Those that have tests of their own.
_TESTED_ELSEWHERE = {"bench_peers"}
_TESTED = {
    each.name: each
    for each in BENCHMARKS
    if each.exists and each.short and each.name not in _TESTED_ELSEWHERE
}


@pytest.mark.parametrize("name", _TESTED)
def test_short_form(tmp_path: Path, name: str) -> None:
    record = run_benchmark(_TESTED[name], tmp_path)
    assert record.benchmark == name
    assert record.command.startswith(f"python -m tests.benchmarks.{name} ")
    for table in record.tables:
        assert table.key
        assert table.title
        assert table.rows
        rivals = table.rival.values() if isinstance(table.rival, dict) else [table.rival]
        for rival in {*rivals} - {None}:
            assert table.row(rival) is not None
        for row in table.rows:
            assert row.figures
            for figure, runs in row.figures.items():
                assert all(value >= 0 for value in runs), (row.contender, figure)
            assert any(value > 0 for runs in row.figures.values() for value in runs)
        compared = [row for row in table.rows if table.ratio(row) is not None]
        assert len(table.rows) == 1 or table.rival is None or compared
    assert len({table.key for table in record.tables}) == len(record.tables) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bench_blend", "bench_kernels", "bench_load", "bench_packing"])
def test_every_contender(tmp_path: Path, name: str) -> None:
    """Each contender is a process of its own; some of them run by default."""
    benchmark = _TESTED[name]
    arguments = benchmark.arguments(short=True)
    for option in ("--contenders", "--kinds"):
        if option in arguments:
            start = arguments.index(option)
            rest = [i for i in range(start + 1, len(arguments)) if arguments[i].startswith("--")]
            del arguments[start : rest[0] if rest else None]
    few = run_benchmark(benchmark, tmp_path)
    everyone = run_benchmark(benchmark, tmp_path, arguments)
    counts = [sum(len(table.rows) for table in record.tables) for record in (few, everyone)]
    assert counts[0] < counts[1]


def run_benchmark(
    benchmark: Benchmark, tmp_path: Path, arguments: Sequence[str] | None = None
) -> Record:
    """Return the record of a benchmark's short form."""
    pytest.importorskip("megatron.core")
    figures = tmp_path / f"{benchmark.name}.json"
    if arguments is None:
        arguments = benchmark.arguments(short=True)
    done = run_python(
        *("-W", "ignore", "-m", f"tests.benchmarks.{benchmark.name}"),
        *(*arguments, "--json", str(figures)),
        env=os.environ | {TOGETHER: "1"},
        check=True,
    )
    record = Record.read(figures)
    assert all(table.title in done.stdout for table in record.tables)
    return record
