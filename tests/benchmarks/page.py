"""The page of all benchmarks, its figures and the README's headlines, from the recorded JSON.

``python -m tests.benchmarks.page`` reads ``tests/benchmarks/results/*.json`` and writes
``tests/benchmarks/README.md``, ``tests/benchmarks/figures/*.svg`` and the section "Measured" of the
top README; ``--check`` only says what differs. No number is typed by hand.
"""

import argparse
import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.claims import CLAIMS, Claim, find, rival_name
from tests.benchmarks.drawing import Figure, drawn_digest
from tests.benchmarks.figures import FIGURES
from tests.benchmarks.record import ROOT, Record, Table, code_version
from tests.benchmarks.suite import NAMES
from tests.benchmarks.units import cell, format_ratio, short_number, table_units

HERE = Path(__file__).parent
_COMMAND = "python -m tests.benchmarks.page"
#: Figures of the same work that say how fast a contender is, besides that of a table's ratio.
_STEPS = re.compile(r"(opening|first_samples?|first_batch|pass|loader_worker)_seconds|\w+_[num]s")
_CODE = "<!-- code: {} -->"
BEGIN = f"<!-- measured: written by {_COMMAND} -->"
END = "<!-- measured: end -->"
_README_FIGURE = "blend-cost"
_OPENING = f"""# Benchmarks

Written by `{_COMMAND}` from the records in [results](results); nothing here is typed by hand.

Each table compares contenders that did the same work on the same data, in one run of one command,
taking turns. Figures are medians; where a contender ran more than once, the range follows in
parentheses. A ratio says how many times better a row is than its rival, by medians. The
machines are shared with others: a single run may be some tenths off, and ratios of figures that
were taken together say more than the figures. Rivals run with their defaults where no note says
otherwise.

All of it again, and then this page: some 40 minutes on two idle cores without `--all`, which adds
the longest and those that rarely change; `--stale` leaves out what the code as it is has a record
of:

```sh
python -m tests.benchmarks --all --stale
{_COMMAND}
```
"""


@dataclass(frozen=True)
class Places:
    """Where records are read from, and where is written what follows from them."""

    results: Path = HERE / "results"
    page: Path = HERE / "README.md"
    readme: Path = ROOT / "README.md"
    claims: tuple[Claim, ...] = CLAIMS

    @property
    def figures(self) -> Path:
        """The folder of figures, next to the page."""
        return self.page.parent / "figures"


def read_records(folder: Path) -> dict[str, Record]:
    """Return all records of a folder by the names of their benchmarks, in the page's order."""
    found = [Record.read(path) for path in sorted(folder.glob("*.json"))]
    places = {name: place for place, name in enumerate(NAMES)}
    found.sort(key=lambda record: (places.get(record.benchmark, len(places)), record.benchmark))
    return {record.benchmark: record for record in found}


def make_page(records: Mapping[str, Record], code: str) -> str:
    """Return the page.

    Parameters
    ----------
    records
        By the names of their benchmarks.
    code
        What `code_version` returned when the page was written: other records are of older code.
    """
    older = [_link_to(record) for record in records.values() if record.code != code]
    parts = [_OPENING, _CODE.format(code)]
    if older:
        text = "Measured with an older version of `zindex` than that of this page: "
        parts.append(f"{text}{', '.join(older)}.\n")
    parts += _contents(records)
    bars, slower = list(_bars(records)), list(_slower(records))
    if bars or slower:
        parts += ["## Bars\n", *("\n".join(lines) + "\n" for lines in (bars, slower) if lines)]
    for record in records.values():
        parts += _section(record, [figure for figure in FIGURES if figure.data(records)], code)
    return "\n".join(parts)


def read_code(page: str) -> str:
    """Return the version of the code that a page was written for."""
    found = re.search(_CODE.format("(.*)"), page)
    return found[1] if found else ""


def _contents(records: Mapping[str, Record]) -> Iterator[str]:
    lines = []
    for record in records.values():
        lines.append(f"- {_link_to(record)}")
        lines += [f"  - {_link_to(record, table)}" for table in record.tables]
    yield "\n".join(lines) + "\n" if lines else "Nothing is recorded yet.\n"


def _bars(records: Mapping[str, Record]) -> Iterator[str]:
    """Yield a table of the notes that say whether a bar was reached, with links to their tables."""
    rows = []
    for record in records.values():
        for table in record.tables:
            link = _link_to(record, table)
            for note in table.notes:
                if re.search(r"\bbar\b", note):
                    asked, _, found = _line(note).partition("; ")
                    if not asked.startswith("bar: "):
                        asked, found = "", _line(note)
                    asked = asked.removeprefix("bar: ")
                    found = found.replace("missed", "**missed**", 1)
                    rows.append(f"| {link} | {asked} | {found} |")
    if rows:
        yield "What was asked before anything was measured, and why it is missed where it is.\n"
        yield "| | asked | measured |\n|---|---|---|"
        yield from rows


def _slower(records: Mapping[str, Record]) -> Iterator[str]:
    """Yield a table of all rows of ours that another contender of their table beats."""
    rows = []
    for record in records.values():
        for table in record.tables:
            others = [row for row in table.rows if not is_ours(row.contender)]
            for row in table.rows:
                for figure in row.figures if is_ours(row.contender) else ():
                    if not (
                        figure == table.ratio_of
                        or _STEPS.fullmatch(figure)
                        or (figure == "seconds" and table.ratio_of.endswith("_seconds"))
                    ):
                        continue
                    ratios = [
                        (ratio, other.contender)
                        for other in others
                        if (ratio := table.compare(row, other, figure))
                    ]
                    slowest, rival = min(ratios, default=(1.0, ""))
                    if slowest < 1:
                        what = (row.contender, rival, table_units(table)[figure].heading)
                        cells = [_link_to(record, table), *map(_line, what), format_ratio(slowest)]
                        rows.append(f"| {' | '.join(cells)} |")
    if rows:
        yield "Every row in which zindex is slower than a contender that is not zindex.\n"
        yield "| | row | slower than | in | ratio |\n|---|---|---|---|---:|"
        yield from rows


def is_ours(contender: str) -> bool:
    """Return whether a contender is zindex, in any of its ways."""
    return contender.startswith("zindex")


def _section(record: Record, figures: list[Figure], code: str) -> Iterator[str]:
    """Yield all of one benchmark."""
    yield f'<a id="{_anchor(record)}"></a>\n\n## {_title(record)}\n'
    sentence = _first_sentence(HERE / f"{record.benchmark.partition('-')[0]}.py")
    if sentence:
        yield f"{sentence}\n"
    for figure in figures:
        if figure.benchmark == record.benchmark:
            yield f"![{figure.caption}](figures/{figure.name}.svg)\n\n*{figure.caption}.*\n"
    for table in record.tables:
        yield from _table(record, table)
    yield f"`{record.command}`\n"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    age = "" if record.code == code else ", older than the code"
    took = f", in {record.seconds / 60:.1f} minutes" if record.seconds else ""
    dated = f"commit {record.commit}{age}, {record.date}{took}"
    yield f"{describe_machine(record)}; {versions}; {dated}.\n"


def _table(record: Record, table: Table) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield f'<a id="{_anchor(record, table)}"></a>\n\n### {_heading(table)}\n'
    units = table_units(table)
    ratios = {row.contender: table.ratio(row) for row in table.rows}
    has_ratio = any(ratio is not None for ratio in ratios.values())
    heads = ["", *(unit.heading for unit in units.values()), *(["ratio"] if has_ratio else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in table.rows:
        cells = [_line(row.contender), *(cell(units[figure], row, figure) for figure in units)]
        if has_ratio:
            ratio = ratios[row.contender]
            cells.append("" if ratio is None else format_ratio(ratio))
        lines.append("| " + " | ".join(cells) + " |")
    yield "\n".join(lines) + "\n"
    yield "\n".join(f"- {_line(note)}" for note in _notes(table, has_ratio)) + "\n"


def _notes(table: Table, has_ratio: bool) -> Iterator[str]:
    """Yield what one must know to judge a table."""
    runs = {len(each) for row in table.rows for each in row.figures.values()}
    if table.title.startswith("predicted"):
        pass  # nothing ran
    elif runs == {1}:
        yield "One run."
    elif runs:
        several = " to ".join(map(str, sorted({min(runs), max(runs)})))
        yield f"Medians of {several} runs, and their ranges."
    if has_ratio:
        compared: dict[str | None, list[str]] = {}
        for row in table.rows:
            if table.ratio(row) is not None:
                compared.setdefault(rival_name(table, row), []).append(row.contender)
        heading = table_units(table)[table.ratio_of].heading
        if len(compared) == 1:
            yield f"Ratio: {heading}, against {next(iter(compared))}."
        else:
            pairs = [f"{'; '.join(names)} against {rival}" for rival, names in compared.items()]
            yield f"Ratio: {heading}; {'. '.join(pairs)}."
    yield from table.notes


def make_headlines(
    records: Mapping[str, Record], link: str, code: str, claims: tuple[Claim, ...] = CLAIMS
) -> tuple[str, list[str]]:
    """Return the text between the README's markers, and warnings.

    Parameters
    ----------
    records
        By the names of their benchmarks.
    link
        Path of the page, from the README.
    code
        As of `make_page`: a row of older code names its commit.
    claims
        Rows of the README's table.
    """
    rows, small, warnings, used = [], [], [], {}
    for claim in claims:
        found = find(records, claim)
        if found is None:
            warnings.append(f"nothing is recorded of {claim.place}; the README leaves it out")
            continue
        record = records[claim.benchmark]
        used[record.benchmark] = record
        unit = table_units(found.table)[claim.figure]
        value = found.row.median(claim.figure) or 0.0
        ours, theirs = unit.quantity(value), ""
        if found.rival is not None:
            theirs = unit.quantity(found.rival.median(claim.figure) or 0.0)
            theirs = f"{_line(found.rival.contender)}: {theirs}"
        text = "details" if found.ratio is None else format_ratio(found.ratio)
        where = f"{link}#{_anchor(record, found.table)}"
        older = "" if record.code == code else f"; older code, commit {record.commit}"
        older = "; one run" * (len(found.row.figures[claim.figure]) == 1) + older
        if claim.small:
            theirs = theirs.rpartition(": ")[2]
            small.append(f"{claim.text} {ours} against {theirs} ([{text}]({where}){older})")
            continue
        work = (
            f"{claim.text[:1].upper()}{claim.text[1:]}<br><sub>{_heading(found.table)}{older}</sub>"
        )
        rows.append(f"| {work} | {theirs} | {ours} | [{text}]({where}) |")
    if not rows + small:
        return (
            f"Nothing is recorded yet; [the page of all benchmarks]({link}) says how.\n",
            warnings,
        )
    machines = dict.fromkeys(map(describe_machine, used.values()))
    dates = sorted({record.date for record in used.values()})
    text = "\n".join(["| | rival | zindex | ratio |", "|---|---|---|---|", *rows])
    text += (
        f"\n\nMedians, measured on {' and on '.join(machines)}, {' to '.join(_ends(dates))}. Each"
        f" figure is a row of [the page of all benchmarks]({link}), which has every range, the"
        " versions, the commands, what the rivals do and do not do, and which bars are missed.\n"
    )
    if small:
        text += (
            "\nSmall jobs from their first construction to a pass over all indices, with no "
            f"variable of the environment set, against Megatron Core's: {'; '.join(small)}.\n"
        )
    for figure in FIGURES:
        if figure.name == _README_FIGURE and figure.data(records):
            place = f"{Path(link).parent.as_posix()}/figures/{figure.name}.svg"
            text += f"\n![{figure.caption}]({place})\n\n*{figure.caption}.*\n"
    return text, warnings


def describe_machine(record: Record) -> str:
    """Return the machine of a record for people."""
    known = dict(record.machine)
    number, processor = known.pop("num_processors", "?"), known.pop("processor", "?")
    memory = known.pop("memory_nbytes", None)
    parts = [f"{number} processor{'s' * (number != 1)} of {_line(str(processor))}"]
    if memory is not None:
        parts.append(f"{short_number(memory / 2**30)} GiB")
    parts += [_line(str(value)) for value in known.values()]
    parts += [f"{name}={value}" for name, value in record.environment.items()]
    return ", ".join(parts)


def replace_section(readme: str, text: str) -> str:
    """Return the README with a text between its markers.

    Raises
    ------
    ValueError
        If it has not both markers once.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise ValueError(f"README.md must hold {BEGIN} and {END} once")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n{END}", readme)


def write_all(places: Places) -> list[str]:
    """Write the page, its figures and the README's section; return warnings."""
    records = read_records(places.results)
    places.page.write_text(make_page(records, code_version()))
    places.figures.mkdir(exist_ok=True)
    kept = set()
    for figure in FIGURES:
        if data := figure.data(records):
            figure.save(data, places.figures / f"{figure.name}.svg")
            kept.add(f"{figure.name}.svg")
    for path in places.figures.glob("*.svg"):
        if path.name not in kept:
            path.unlink()
    text, warnings = make_headlines(records, _link(places), code_version(), places.claims)
    places.readme.write_text(replace_section(places.readme.read_text(), text))
    return warnings


def check_all(places: Places) -> tuple[list[str], list[str]]:
    """Return what differs from what the records give, and warnings; nothing is written."""
    records = read_records(places.results)
    wrong = []
    page = places.page.read_text() if places.page.exists() else ""
    if page != make_page(records, read_code(page)):
        wrong.append(f"{places.page.name} of the benchmarks is not what the records give")
    text, warnings = make_headlines(records, _link(places), read_code(page), places.claims)
    readme = places.readme.read_text()
    if replace_section(readme, text) != readme:
        wrong.append("the README's section Measured is not what the records give")
    digests = {
        f"{figure.name}.svg": figure.digest(data)
        for figure in FIGURES
        if (data := figure.data(records))
    }
    there = {path.name: drawn_digest(path) for path in places.figures.glob("*.svg")}
    wrong += [
        f"figures/{name} is not drawn from the records"
        for name in sorted(digests.keys() | there.keys())
        if name not in digests or digests[name] != there.get(name)
    ]
    return wrong, warnings


def _link(places: Places) -> str:
    return Path(os.path.relpath(places.page, places.readme.parent)).as_posix()


def _title(record: Record) -> str:
    name = record.benchmark.removeprefix("bench_")
    return name.replace("_", " ").replace("-", ", ").capitalize()


def _link_to(record: Record, table: Table | None = None) -> str:
    """Return a link to a place on the page."""
    text = _title(record) if table is None else _heading(table)
    return f"[{text}](#{_anchor(record, table)})"


def _anchor(record: Record, table: Table | None = None) -> str:
    """Return the name of a place on the page; GitHub's own depend on titles."""
    return record.benchmark if table is None else f"{record.benchmark}-{table.key}"


def _first_sentence(module: Path) -> str:
    """Return what a benchmark says it compares; nothing where its module is gone."""
    if not module.exists():
        return ""
    paragraph = (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n\n")[0]
    text = re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0]
    return text.replace("``", "`")


def _line(text: str) -> str:
    """Return a text that fits into a cell of a table, with stars that are no emphasis."""
    parts = " ".join(text.replace("``", "`").replace("|", "\\|").split()).split("`")
    return "`".join(
        part.replace("*", "\\*") if number % 2 == 0 else part for number, part in enumerate(parts)
    )


def _heading(table: Table) -> str:
    """Return the heading of a table."""
    title = _line(table.title)
    return title[:1].upper() + title[1:]


def _ends(values: list[str]) -> list[str]:
    return values if len(values) == 1 else [values[0], values[-1]]


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Places.results, help="folder of records")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where it differs")
    options = parser.parse_args(arguments)
    places = Places(results=options.results)
    wrong, warnings = check_all(places) if options.check else ([], write_all(places))
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    for text in wrong:
        print(f"{text}; run {_COMMAND}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
