"""Report on the sources of a stream: lengths, draws of a run, and advice."""

import os
from dataclasses import dataclass
from typing import Any

from zindex.inspection.tables.blend_table import largest_rows
from zindex.inspection.tables.formatting import (
    align_columns,
    format_count,
    format_epochs,
    format_nbytes,
    format_share,
)
from zindex.streaming.lengths.advice import RunAdvice, advise
from zindex.streaming.lengths.sample_length import LengthOf
from zindex.streaming.lengths.statistics import Lengths, SourceLengths, count_lengths

_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99}


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Lengths of the sources of a stream, and advice for a run."""

    lengths: Lengths
    advice: RunAdvice

    def to_text(self) -> str:
        """Return the report as text: tables and advice."""
        blocks = [self._source_lines(), self._draw_lines(), self._sequence_lines()]
        if self.advice.advice:
            blocks.append([f"- {advice.text}" for advice in self.advice])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"lengths": self.lengths.to_json(), "advice": self.advice.to_json()}

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Plot the report to a file; the suffix selects the format.

        Raises
        ------
        ConfigError
            If matplotlib is missing, or the file cannot be written.
        """
        from zindex.inspection.tables.length_picture import draw_lengths

        draw_lengths(self.lengths, self.advice, path)

    def _source_lines(self) -> list[str]:
        headers = ("samples", "length", "unit", "mean", *_QUANTILES, "longest", "bytes", "read")
        sources = [*self.lengths]
        # Sources without lengths rank by their samples.
        shown = largest_rows([source.num_tokens or source.num_samples for source in sources])
        cells = [(*_source_cells(sources[i]), sources[i].name) for i in shown]
        lines = align_columns([(*headers, "source"), *cells], text_columns=("unit", "source"))
        if len(shown) < len(sources):
            left = len(sources) - len(shown)
            lines.append(f"  and {left:,} smaller one{'s' if left > 1 else ''}; --json lists all")
        if any(source.is_estimate for source in sources):
            lines += ["", "~: estimated from the parts or items that were read"]
        return lines

    def _draw_lines(self) -> list[str]:
        draws = self.advice.draws
        if not draws:
            return []
        shown = largest_rows([drawn.num_samples for drawn in draws])
        limited = self.advice.limited
        headers = ["share", "drawn", "length", "epochs", "equal epochs"]
        headers += [] if limited is None else ["few repeats"]
        lengthless = {source.name for source in self.lengths if source.unit == "samples"}
        cells = [
            (
                format_share(drawn.share),
                format_count(drawn.num_samples),
                "-" if drawn.name in lengthless else format_count(drawn.num_tokens),
                format_epochs(drawn.num_epochs),
                format_share(self.advice.proportional[drawn.name]),
                *(() if limited is None else (format_share(limited[drawn.name]),)),
                drawn.name,
            )
            for drawn in (draws[i] for i in shown)
        ]
        total = sum(drawn.num_samples for drawn in draws)
        first = f"a run of {format_count(total)} sample{'' if total == 1 else 's'}:"
        return [first, *align_columns([(*headers, "source"), *cells], text_columns=("source",))]

    def _sequence_lines(self) -> list[str]:
        if not self.advice.sequence_lengths:
            return []
        headers = ("sequence length", "padding", "cut off", "padding if packed", "split if packed")
        cells = [
            (
                f"{row.sequence_length:,}",
                format_share(row.padding),
                format_share(row.truncated),
                format_share(row.packed_padding),
                format_share(row.split),
            )
            for row in self.advice.sequence_lengths
        ]
        return align_columns([headers, *cells])


def _source_cells(source: SourceLengths) -> tuple[str, ...]:
    """Return the cells of a source in the order of the headers."""
    sample_state = "~" if source.is_estimate else ""
    lengths = (
        sample_state + format_count(source.num_tokens),
        source.unit,
        sample_state + f"{source.mean_length:,.1f}",
        *(sample_state + format_count(source.quantile(share)) for share in _QUANTILES.values()),
        sample_state + format_count(source.histogram.longest),
    )
    return (
        sample_state + format_count(source.num_samples),
        *(("-",) * len(lengths) if source.unit == "samples" else lengths),
        "" if source.nbytes is None else format_nbytes(source.nbytes),
        format_share(source.fraction_read),
    )


def report_lengths(
    dataset: Any,
    *,
    length_of: LengthOf | None = None,
    read_samples: int | None = None,
    client: Any = None,
    num_processes: int | None = None,
    **run: Any,
) -> LengthReport:
    """Count the lengths of a dataset, and advise on a run.

    Parameters
    ----------
    dataset
        A `MergedDataset`, or one source of it.
    length_of, client, num_processes
        As for `count_lengths`.
    read_samples
        Least number of samples to read of each source; None reads everything.
    run
        ``num_samples`` or ``num_tokens``, ``num_ranks``, ``num_workers``, ``sequence_lengths`` and
        ``max_epochs``, as for `advise`.

    Raises
    ------
    ConfigError
        If a number is out of range, or the dataset cannot be counted.
    SourceError
        If the samples of a source are of several units, or ``length_of`` returns no length.
    """
    lengths = count_lengths(
        dataset,
        length_of=length_of,
        client=client,
        num_processes=num_processes,
        num_samples=read_samples,
    )
    return LengthReport(lengths, advise(lengths, dataset, **run))
