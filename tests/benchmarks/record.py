"""What a benchmark measured, as text for people and as JSON for the page.

A record is one benchmark run: its command, machine, versions and date, and tables of contenders
that did the same work. Every run of every figure is kept; medians are taken where they are shown.
"""

import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from zindex.inspection.bench.machine import describe_machine, list_versions

ROOT = Path(__file__).parents[2]
#: Options that only say where files are or go.
_OUTPUTS = ("--json", "--folder", "--peers-folder")
#: Variables of the environment that decide how fast something is.
_VARIABLES = ("OMP_NUM_THREADS", "ZINDEX_BENCH_TOGETHER")
_START = time.monotonic()


@dataclass(frozen=True)
class Row:
    """One contender's figures."""

    contender: str
    #: Figure -> its value in each run. The last word of a name is its unit: ``seconds``,
    #: ``peak_nbytes``, ``written_nbytes``, ``sample_ns``, ``tokens_per_second``, ``num_chunks``.
    figures: dict[str, list[float]]

    def median(self, figure: str) -> float | None:
        """Return the median of a figure, or None where the contender has none."""
        runs = self.figures.get(figure)
        return statistics.median(runs) if runs else None


@dataclass(frozen=True)
class Table:
    """Contenders that did the same work."""

    #: Its name in the record; the page refers to ``benchmark/key``.
    key: str
    #: The work and its size, for people.
    title: str
    rows: list[Row]
    #: The contender, or by contender the one, that others are compared with; None: no ratio.
    rival: str | dict[str, str] | None = None
    #: The figure of the ratio; a rate (``..._per_second``) is better when larger.
    ratio_of: str = "seconds"
    #: What one must know to judge it: defaults named, what is left out, why a bar is missed.
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_runs(
        cls,
        key: str,
        title: str,
        runs: Mapping[str, Iterable[Mapping[str, float]]],
        **settings: Any,
    ) -> "Table":
        """Return the table of each contender's runs, as ``take_turns`` gives them."""
        rows = []
        for name, each in runs.items():
            figures: dict[str, list[float]] = {}
            for run in each:
                for figure, value in run.items():
                    figures.setdefault(figure, []).append(value)
            rows.append(Row(name, figures))
        return cls(key, title, rows, **settings)

    def row(self, contender: str) -> Row | None:
        """Return a contender's row, if it took part."""
        return next((row for row in self.rows if row.contender == contender), None)

    def ratio(self, row: Row, figure: str | None = None) -> float | None:
        """Return how many times better a row is than its rival, by medians.

        ``figure`` is by default that of the table's own ratio.
        """
        name = self.rival.get(row.contender) if isinstance(self.rival, dict) else self.rival
        rival = self.row(name) if name is not None and name != row.contender else None
        return None if rival is None else self.compare(row, rival, figure)

    def compare(self, row: Row, rival: Row, figure: str | None = None) -> float | None:
        """Return how many times better a row is than another one, by medians."""
        figure = figure or self.ratio_of
        ours, theirs = row.median(figure), rival.median(figure)
        if not ours or not theirs:
            return None
        return ours / theirs if figure.endswith("per_second") else theirs / ours

    def with_bar(
        self, contender: str, at_least: float, why: str = "", figure: str | None = None
    ) -> "Table":
        """Return the table with a note on whether a contender reached a bar that was set for it.

        Parameters
        ----------
        contender
            Its name; a table without its row stays as it is.
        at_least
            The ratio that it must have.
        why
            What explains a miss; told only then.
        figure
            What the ratio is of; by default that of the table's own.
        """
        row = self.row(contender)
        reached = self.ratio(row, figure) if row is not None else None
        if reached is None:
            return self
        verdict = "reached" if reached >= at_least else "missed"
        what = contender + (f" ({self._heading(figure)})" if figure else "")
        note = f"bar: {what} at least {at_least:g}x; {verdict}, {reached:.3g}x"
        if reached < at_least and why:
            note += f": {why}"
        return replace(self, notes=[*self.notes, note])

    def with_limit(self, contender: str, figure: str, at_most: float) -> "Table":
        """Return the table with a note on whether a contender's figure is small enough."""
        from tests.benchmarks.units import quantity

        row = self.row(contender)
        value = row.median(figure) if row is not None else None
        if value is None:
            return self
        verdict = "reached" if value <= at_most else "missed"
        limit = f"{self._heading(figure)} at most {quantity(figure, at_most)}"
        note = f"bar: {contender} ({limit}); {verdict}, {quantity(figure, value)}"
        return replace(self, notes=[*self.notes, note])

    def _heading(self, figure: str) -> str:
        """Return what a figure is called."""
        from tests.benchmarks.units import choose_unit

        return choose_unit(figure, []).name


@dataclass(frozen=True)
class Record:
    """One run of one benchmark."""

    #: The name of its file; what follows a hyphen tells forms of one module apart.
    benchmark: str
    command: str
    date: str
    #: Hash of the commit, with ``+`` where files were changed.
    commit: str
    machine: dict[str, Any]
    versions: dict[str, str]
    tables: list[Table]
    #: Of the variables that decide how fast something is, those that were set.
    environment: dict[str, str] = field(default_factory=dict)
    #: What `code_version` returned; empty in records of before it was kept.
    code: str = ""
    #: Of the whole command; 0 in records of before it was kept.
    seconds: float = 0.0

    @classmethod
    def of(cls, benchmark: str, tables: list[Table], folder: str | None = None) -> "Record":
        """Return the record of what was just measured by this process's own command.

        ``folder`` is where it worked; None: a temporary one.
        """
        return cls(
            benchmark=benchmark,
            command=shlex.join(
                ["python", "-m", f"tests.benchmarks.{benchmark}", *_without_outputs(sys.argv[1:])]
            ),
            date=datetime.date.today().isoformat(),
            commit=_commit(),
            machine=describe_machine(folder or tempfile.gettempdir())
            | {"load": f"load average {os.getloadavg()[2]:.1f}"},
            versions=list_versions(),
            tables=tables,
            environment={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            code=code_version(),
            seconds=round(time.monotonic() - _START, 1),
        )

    def write(self, path: str | Path | None) -> None:
        """Write the record as JSON; None: nowhere."""
        if path is not None:
            Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> "Record":
        """Return the record of a JSON file."""
        fields = json.loads(Path(path).read_text())
        tables = [
            Table(**(table | {"rows": [Row(**row) for row in table["rows"]]}))
            for table in fields["tables"]
        ]
        return cls(**(fields | {"tables": tables, "benchmark": Path(path).stem}))


def tables_in(records: Mapping[str, Record], module: str) -> list[Table]:
    """Return the tables of all forms of one benchmark."""
    return [
        table
        for name, record in records.items()
        for table in record.tables
        if name.partition("-")[0] == module
    ]


def name_size(size: float) -> str:
    """Return a size as in the key of a table: ``1e8``, ``2.5e9``."""
    mantissa, exponent = f"{size:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def show(table: Table) -> None:
    """Print one table: medians, in the page's units, and the ratio to the rival."""
    # Units are told of tables, which are described here.
    from tests.benchmarks.units import format_ratio, table_units

    units = table_units(table)
    lines = [["", *(unit.heading for unit in units.values()), "ratio"]]
    for row in table.rows:
        medians = [(unit, row.median(figure)) for figure, unit in units.items()]
        cells = ["" if value is None else unit.number(value) for unit, value in medians]
        ratio = table.ratio(row)
        lines.append([row.contender, *cells, "" if ratio is None else format_ratio(ratio)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{table.title}")
    for first, *rest in lines:
        cells = [f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([f"{first:{widths[0]}}", *cells]).rstrip())
    for note in table.notes:
        print(f"  {note}")
    sys.stdout.flush()


def code_version() -> str:
    """Return what tells the code of ``zindex`` from any other; a rebased commit keeps it."""
    return _ask_git("rev-parse", "--short=10", "HEAD:zindex", changed=("zindex",))


def _commit() -> str:
    """Return the commit of the sources, with ``+`` where they were changed since."""
    changed = ("zindex", "tests/benchmarks/*.py")
    return _ask_git("rev-parse", "--short=10", "HEAD", changed=changed) or "unknown"


def _ask_git(*command: str, changed: tuple[str, ...]) -> str:
    """Return what git prints, with ``+`` where some files were changed; nothing without git."""
    printed = []
    for each in (command, ("status", "--porcelain", "--", *changed)):
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *each], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        printed.append(done.stdout.decode().strip())
    return printed[0] + ("+" if printed[1] else "")


def _without_outputs(arguments: list[str]) -> list[str]:
    """Return a command's arguments without those that only say where files go."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument.partition("=")[0] not in _OUTPUTS:
            kept.append(argument)
        skip = not skip and argument in _OUTPUTS
    return kept
