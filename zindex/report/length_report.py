"""What the sources of a stream hold, what a run draws of them, and what to do about it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zindex.report.blend_table import largest_rows
from zindex.report.formatting import (
    align_columns,
    format_count,
    format_epochs,
    format_nbytes,
    format_share,
)
from zindex.streaming.lengths.advice import MAX_EPOCHS, RunAdvice, advise
from zindex.streaming.lengths.sample_length import LengthOf
from zindex.streaming.lengths.statistics import Lengths, SourceLengths, count_lengths

_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99}


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Everything that people ask about the sources of a stream."""

    lengths: Lengths
    advice: RunAdvice

    def to_text(self) -> str:
        """Return tables of the sources and of sequence lengths, and the advice."""
        blocks = [self._source_lines(), self._draw_lines(), self._sequence_lines()]
        if self.advice.advice:
            blocks.append([f"- {advice.text}" for advice in self.advice])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"lengths": self.lengths.to_json(), "advice": self.advice.to_json()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "LengthReport":
        """Return the report that `to_json` wrote."""
        return cls(Lengths.from_json(fields["lengths"]), RunAdvice.from_json(fields["advice"]))

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a picture; its suffix says of which kind.

        Raises
        ------
        ConfigError
            If matplotlib is missing, or the file cannot be written.
        """
        from zindex.report.length_picture import draw_lengths

        draw_lengths(self.lengths, self.advice, path)

    def _source_lines(self) -> list[str]:
        headers = ("samples", "length", "unit", "mean", *_QUANTILES, "longest", "bytes", "read")
        sources = [*self.lengths]
        # Those without lengths go by their samples.
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
    """Return one source's texts in the order of the headers."""
    mark = "~" if source.is_estimate else ""
    lengths = (
        mark + format_count(source.num_tokens),
        source.unit,
        mark + f"{source.mean_length:,.1f}",
        *(mark + format_count(source.quantile(share)) for share in _QUANTILES.values()),
        mark + format_count(source.histogram.longest),
    )
    return (
        mark + format_count(source.num_samples),
        *(("-",) * len(lengths) if source.unit == "samples" else lengths),
        "" if source.nbytes is None else format_nbytes(source.nbytes),
        format_share(source.fraction_read),
    )


def report_lengths(
    dataset: Any,
    *,
    num_samples: int | None = None,
    num_tokens: int | None = None,
    length_of: LengthOf | None = None,
    read_samples: int | None = None,
    client: Any = None,
    num_processes: int | None = None,
    num_ranks: int = 1,
    num_workers: int = 1,
    sequence_lengths: Sequence[int] | None = None,
    max_epochs: float = MAX_EPOCHS,
) -> LengthReport:
    """Count the lengths of a dataset, and return them with advice for a run.

    Parameters
    ----------
    dataset
        A `MergedDataset`, or one source of it.
    num_samples, num_tokens
        What the run draws, one of them or none.
    length_of, client, num_processes
        As for `count_lengths`.
    read_samples
        Samples of each source to read at least; None reads everything.
    num_ranks, num_workers, sequence_lengths, max_epochs
        As for `advise`.

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
    advice = advise(
        lengths,
        dataset,
        num_samples=num_samples,
        num_tokens=num_tokens,
        num_ranks=num_ranks,
        num_workers=num_workers,
        sequence_lengths=sequence_lengths,
        max_epochs=max_epochs,
    )
    return LengthReport(lengths, advice)
