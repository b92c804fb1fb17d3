"""The page of a report: one HTML file that loads nothing."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from zindex.inspection.answers.diff import RunDifference
from zindex.reporting import run_sections, sections
from zindex.reporting.elements import shorten, soft
from zindex.reporting.figures import RunFigures
from zindex.reporting.markup import Html, join, tag
from zindex.version import VERSION
from zindex.wording import count_noun

#: First line of a page.
DOCTYPE = "<!DOCTYPE html>"
#: Maximum rows of the tables of datasets together, which keeps the file below 1 MB.
MAX_ROWS = 1_000

#: A section: identifier, title, and the function that makes it of one run.
Section = tuple[str, str, Callable[[RunFigures], Html | None]]


def make_page(runs: Sequence[RunFigures], difference: RunDifference | str | None = None) -> str:
    """Return the HTML of the report of one run, or of two runs.

    Parameters
    ----------
    runs
        Figures of one or two runs.
    difference
        The difference between two runs, or why there is none.
    """
    made: list[tuple[str, str, Html]] = []
    if difference is not None:
        made.append(("differences", "Differences", run_sections.differences(runs, difference)))
    num_rows = MAX_ROWS // len(runs)
    every: list[Section] = [
        ("overview", "Overview", sections.overview),
        ("mix", "Mix and epochs", partial(sections.mix, colors=sections.choose_colors(runs))),
        ("datasets", "Datasets", partial(sections.datasets, max_rows=num_rows)),
        ("lengths", "Lengths and fill", sections.lengths),
        ("order", "Shuffle", sections.shuffle),
        ("reads", "Reads", run_sections.reads),
        ("build", "Build", run_sections.build),
        ("samples", "Samples", run_sections.samples),
    ]
    for name, title, make in every:
        contents = [make(run) for run in runs]
        if any(contents):
            made.append((name, title, join(*_with_names(runs, contents))))
    body = tag(
        "body",
        tag("header", tag("h1", _title(runs)), tag("p", _subtitle(runs), class_="soft")),
        tag("nav", *(tag("a", title, href=f"#{name}") for name, title, _ in made)),
        tag(
            "main",
            *(tag("section", tag("h2", title), content, id=name) for name, title, content in made),
        ),
        tag("footer", f"Made by zindex {VERSION}. The file loads nothing."),
        _script(),
    )  # fmt: skip
    return f"{DOCTYPE}\n{tag('html', _head(runs), body, lang='en')}\n"


def _with_names(runs: Sequence[RunFigures], contents: Sequence[Html | None]) -> list[Html]:
    """Return the contents of a section, with the names of the runs if there are two."""
    if len(runs) == 1:
        return [content for content in contents if content]
    return [
        tag(
            "div",
            tag("h3", f"{letter}: {shorten(run.name)}"),
            content or soft("nothing to show"),
            class_="run",
        )
        for letter, run, content in zip("AB", runs, contents, strict=True)
    ]


def _title(runs: Sequence[RunFigures]) -> str:
    """Return the title of the page."""
    names = " and ".join(shorten(run.name) for run in runs)
    return names if len(runs) == 1 else f"Comparison of {names}"


def _subtitle(runs: Sequence[RunFigures]) -> str:
    """Return the line below the title."""
    first = runs[0]
    if len(runs) > 1:
        return f"{first.split}, A and B"
    edits = f", {count_noun(first.num_edits, 'edit')}" if first.num_edits else ""
    return (
        f"{first.split}, order {first.plan.order}, {first.sequence_length:,} tokens per sample, "
        f"seed {first.plan.seed}{edits}"
    )


def _read(name: str) -> Html:
    """Return a file of this folder; these need no escaping."""
    return Html(Path(__file__).with_name(name).read_text("utf-8"))


def _script() -> Html:
    """Return the script."""
    return tag("script", _read("page.js"))


def _head(runs: Sequence[RunFigures]) -> Html:
    """Return the head: a policy forbids the page to load anything or to run another script."""
    digest = base64.b64encode(hashlib.sha256(_read("page.js").encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"zindex report: {_title(runs)}"),
        tag("style", _read("page.css")),
    )
