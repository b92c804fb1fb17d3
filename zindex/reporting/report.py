"""Report on a run, or compare two runs, in one HTML file that needs no network."""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, PlanError, StoreNotFoundError
from zindex.inspection.answers.diff import RunDifference, diff
from zindex.inspection.answers.run_order import RunLike
from zindex.inspection.answers.screen import WIDTH, fit, fit_lines
from zindex.inspection.tables.formatting import (
    format_epochs,
    format_nbytes,
    format_share,
)
from zindex.io.local import local_path, replacing
from zindex.reporting.elements import format_p, format_seconds
from zindex.reporting.figures import RunFigures, measure_run
from zindex.reporting.observations import MAX_OBSERVED
from zindex.reporting.page import DOCTYPE, make_page
from zindex.reporting.read_simulator import ReadSettings
from zindex.wording import count_noun


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `report`: the figures of one run, or of two."""

    runs: tuple[RunFigures, ...]
    #: Difference of two runs, or why their orders are not compared; None for one run.
    difference: RunDifference | str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        found = self.difference
        difference = found if found is None or isinstance(found, str) else found.to_json()
        return {"runs": [run.to_json() for run in self.runs], "difference": difference}

    def to_html(self) -> str:
        """Return the page, at most about 1 MB."""
        return make_page(self.runs, self.difference)

    def to_lines(self) -> list[str]:
        """Format the most important figures for a terminal."""
        return [line for run in self.runs for line in _summary_lines(run)]


def report(
    run: RunLike,
    other: RunLike | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    split: str = "train",
    reads: ReadSettings | Mapping[str, Any] | None = None,
    num_shown: int = 6,
    tokenizer: Any = True,
    max_observed: int = MAX_OBSERVED,
) -> Report:
    """Report on a run, or compare two runs.

    Parameters
    ----------
    run, other
        A ``RunConfig``, its mapping, or the path of a YAML file; a second one to compare with.
        Edits are applied. A run that is not built is reported as far as its plan is known.
    output
        Path of an HTML file to write; it is replaced. None writes nothing.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    reads
        Ranks, nodes, loader workers, cache and connection to simulate the reads of: a
        ``ReadSettings`` of ``zindex.reporting.read_simulator``, or some of its fields; by
        default 8 ranks of one node and steps of 256 samples.
    num_shown
        Samples to show with their texts, 0 for none.
    tokenizer
        A tokenizer, or the path of its file or folder; True takes the one that is kept with the
        corpora, or shows token numbers if there is none; None shows token numbers.
    max_observed
        Runs of up to this many samples are read in full; of longer ones, half as many are read, in
        blocks that are evenly spread over the run.

    Returns
    -------
    report
        The figures; ``to_json`` and ``to_html`` give them as values and as the page.

    Raises
    ------
    PlanError
        If the split has no samples.
    StoreNotFoundError, SourceError
        If a dataset is missing or damaged.

    Notes
    -----
    Cost: seconds, for any length of run; at most ``max_observed`` samples are read, and the tokens
    of ``num_shown`` of them. Nothing but the file is written.
    """
    settings = {"split": split, "reads": reads, "num_shown": num_shown, "tokenizer": tokenizer}
    path = None if output is None else _check_output(output)
    configs = [run] if other is None else [run, other]
    runs = tuple(measure_run(each, max_observed=max_observed, **settings) for each in configs)
    difference: RunDifference | str | None = None
    if other is not None:
        try:
            difference = diff(run, other, split=split, max_positions=max_observed)
        except (PlanError, StoreNotFoundError) as error:
            difference = str(error)
    found = Report(runs, difference)
    if path is not None:
        with replacing(path) as partial:
            Path(partial).write_text(found.to_html(), "utf-8")
    return found


def _check_output(output: str | os.PathLike[str]) -> Path:
    """Return the path of a page to write, after checking that nothing else is there."""
    path = local_path(output, "a report")
    if path.exists():
        if path.is_dir() or not path.read_bytes()[: len(DOCTYPE)] == DOCTYPE.encode():
            raise ConfigError(
                f"a report replaces only another report, {path} is something else; name another "
                "file with output (--output)"
            )
    elif not path.parent.is_dir():
        raise ConfigError(
            f"a report needs an existing folder, there is no {path.parent}; make it, or name "
            "another file with output (--output)"
        )
    return path


def _summary_lines(run: RunFigures) -> list[str]:
    """Format the most important figures of one run."""
    count = "datasets" if run.num_samples is None else count_noun(run.num_samples, "sample")
    lines = [fit(f"{run.split} of {run.name}: {count}, {run.sequence_length:,} tokens per sample")]
    if run.problem is not None:
        lines += [f"  {line}" for line in textwrap.wrap(run.problem, WIDTH - 2)]
    elif not run.is_exact:
        lines.append(f"  {run.num_observed:,} samples read, evenly spread")
    if run.mix is not None:
        points = f"{100 * run.mix.largest_deviation:.2g} percentage points"
        lines.append(f"  mix: within {points} of the weights in every part of the run")
    epochs = [item for item in run.datasets if item.num_epochs is not None]
    if epochs:
        most = max(epochs, key=lambda item: item.num_epochs or 0.0)
        lines.append(fit(f"  most epochs: {format_epochs(most.num_epochs or 0.0)}, {most.name}"))
    for test in run.tests:
        p_value = f" (p {format_p(test.p_value)})" if test.p_value is not None else ""
        lines.append(fit(f"  {test.name}: {test.words.rstrip('.').lower()}{p_value}"))
    if run.reads is not None:
        seconds = format_seconds(run.reads.first_batch_seconds)
        per_node = run.reads.nbytes / run.reads.num_steps / len(run.reads.nodes)
        lines.append(f"  reads: {seconds} to the first batch, {format_nbytes(round(per_node))} per")
        lines[-1] += f" step and node, {format_share(run.reads.hit_share)} cached"
    return fit_lines(lines)
