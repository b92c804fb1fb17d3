"""Report on the sources of a stream: lengths, draws of a run, and advice."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zindex.inspection.answers.file_mixing import WINDOW, FileMixing, measure_mixing
from zindex.inspection.tables.blend_table import largest_rows
from zindex.inspection.tables.formatting import (
    format_count,
    format_epochs,
    format_nbytes,
    format_share,
    table_lines,
)
from zindex.processing.sample_length import LengthOf
from zindex.streaming.lengths.advice import RunAdvice, advise
from zindex.streaming.lengths.statistics import Lengths, SourceLengths, count_lengths
from zindex.wording import count_noun

_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99}


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Lengths of the sources of a stream, and advice for a run."""

    lengths: Lengths
    advice: RunAdvice
    #: By source, of those whose samples can be read in any order, and have several files.
    mixing: Mapping[str, FileMixing] = field(default_factory=dict)

    def to_text(self) -> str:
        """Format the report as tables and advice."""
        blocks = [self._source_lines(), self._draw_lines(), self._sequence_lines()]
        if self.advice.advice:
            blocks.append([f"- {advice.text}" for advice in self.advice])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        mixing = {name: mixing._asdict() for name, mixing in self.mixing.items()}
        facts = {"lengths": self.lengths.to_json(), "advice": self.advice.to_json()}
        return facts | ({"mixing": mixing} if mixing else {})

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
        sources = [*self.lengths]
        # Sources without lengths are ranked by their samples.
        shown = largest_rows([source.num_tokens or source.num_samples for source in sources])
        cells = [_source_cells(sources[i], self.mixing.get(sources[i].name)) for i in shown]
        lines = table_lines(cells, text_columns=("unit", "source"))
        if len(shown) < len(sources):
            left = len(sources) - len(shown)
            lines.append(f"  and {left:,} smaller one{'s' if left > 1 else ''}; --json lists all")
        if any(source.is_estimate for source in sources):
            lines += ["", "~: estimated from the parts or items that were read"]
        if self.mixing:
            what = f"of the files of {WINDOW} adjacent samples / of random ones"
            lines += ["", f"mixing: entropy {what}, in bits"]
        return lines

    def _draw_lines(self) -> list[str]:
        draws = self.advice.draws
        if not draws:
            return []
        shown = largest_rows([drawn.num_samples for drawn in draws])
        limited = self.advice.limited
        lengthless = {source.name for source in self.lengths if source.unit == "samples"}
        cells = [
            {
                "share": format_share(drawn.share),
                "drawn": format_count(drawn.num_samples),
                "length": "-" if drawn.name in lengthless else format_count(drawn.num_tokens),
                "epochs": format_epochs(drawn.num_epochs),
                "equal epochs": format_share(self.advice.proportional[drawn.name]),
                "few repeats": format_share(limited[drawn.name]) if limited else "",
                "source": drawn.name,
            }
            for drawn in (draws[i] for i in shown)
        ]
        total = sum(drawn.num_samples for drawn in draws)
        first = count_noun(total, "sample", shown=format_count(total))
        return [f"a run of {first}:", *table_lines(cells, text_columns=("source",))]

    def _sequence_lines(self) -> list[str]:
        cells = [
            {
                "sequence length": f"{row.sequence_length:,}",
                "padding": format_share(row.padding),
                "cut off": format_share(row.truncated),
                "padding if packed": format_share(row.packed_padding),
                "split if packed": format_share(row.split),
            }
            for row in self.advice.sequence_lengths
        ]
        return table_lines(cells)


def _source_cells(source: SourceLengths, mixing: FileMixing | None) -> dict[str, str]:
    """Return the cells of a source by header."""
    mark = "~" if source.is_estimate else ""
    lengths = {
        "length": mark + format_count(source.num_tokens),
        "unit": source.unit,
        "mean": mark + f"{source.mean_length:,.1f}",
    }
    lengths |= {
        name: mark + format_count(source.quantile(share)) for name, share in _QUANTILES.items()
    }
    lengths["longest"] = mark + format_count(source.histogram.longest)
    return {
        "samples": mark + format_count(source.num_samples),
        **(dict.fromkeys(lengths, "-") if source.unit == "samples" else lengths),
        "bytes": "" if source.nbytes is None else format_nbytes(source.nbytes),
        "read": format_share(source.fraction_read),
        "mixing": "" if mixing is None else f"{mixing.adjacent:.2f}/{mixing.random:.2f}",
        "source": source.name,
    }


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
    work: dict[str, Any] = {"client": client, "num_processes": num_processes}
    lengths = count_lengths(dataset, length_of=length_of, num_samples=read_samples, **work)
    return LengthReport(lengths, advise(lengths, dataset, **run), measure_mixing(dataset))
