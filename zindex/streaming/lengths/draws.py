"""Compute the samples and epochs that a run draws of each source."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from zindex.errors import ConfigError
from zindex.plan.blend_plan import largest_remainder
from zindex.streaming.lengths.statistics import Lengths, SourceLengths, list_sources
from zindex.streaming.merged_dataset import MergedDataset

Known = Mapping[str, SourceLengths]

_NO_LIMIT = float("inf")
# Steps of the bisection from tokens to samples.
_HALVINGS = 80


@dataclass(frozen=True, slots=True)
class SourceDraws:
    """Samples that a run draws of one source."""

    name: str
    #: Share of all samples, by the percents of all levels.
    share: float
    num_samples: int
    #: In the unit of the source's lengths.
    num_tokens: int
    #: Mean number of times that each sample is drawn; 0 for an empty source.
    num_epochs: float


def epochs_of(
    lengths: Lengths,
    dataset: Any,
    *,
    num_samples: int | None = None,
    num_tokens: int | None = None,
) -> tuple[SourceDraws, ...]:
    """Return the draws of a run from each source, by the percents of all levels.

    Parameters
    ----------
    lengths
        The result of `count_lengths` for the dataset.
    dataset
        The `MergedDataset`, or one source. If it is not ``cyclic``, a source gives one epoch, and
        its turns go to the others after that.
    num_samples
        Samples that the run draws, for all ranks and before a ``customized_yield_fn``.
    num_tokens
        Tokens that the run draws, as an alternative.

    Returns
    -------
    draws
        One for each source, in the order of the dataset.

    Raises
    ------
    ConfigError
        If not exactly one number is given, the lengths are of another dataset, or ``num_tokens`` is
        given and lengths are in another unit.
    """
    wanted = num_samples if num_tokens is None else num_tokens
    if (num_samples is None) == (num_tokens is None) or wanted is None or wanted < 1:
        raise ConfigError(
            "a run must be given by num_samples or by num_tokens, at least 1, got num_samples="
            f"{num_samples} and num_tokens={num_tokens}; give one of them (--samples or --tokens)"
        )
    check_lengths(lengths, dataset)
    known = {source.name: source for source in lengths}
    if num_tokens is not None:
        _check_units(lengths)
        whole = _find_samples(dataset, known, num_tokens)
    else:
        whole = float(wanted)
    drawn = _draw_each(dataset, known, whole)
    total = sum(drawn.values())
    shares = [drawn[source.name] / (total or 1.0) for source in lengths]
    counts = _round(shares, round(total))
    return tuple(
        SourceDraws(
            name=source.name,
            share=share,
            num_samples=count,
            num_tokens=round(drawn[source.name] * source.mean_length),
            num_epochs=drawn[source.name] / source.num_samples if source.num_samples else 0.0,
        )
        for source, share, count in zip(lengths, shares, counts, strict=True)
    )


def _round(shares: Sequence[float], total: int) -> list[int]:
    """Round shares of a total to whole numbers; 0 stays 0."""
    given = [i for i, share in enumerate(shares) if share > 0]
    counts = [0] * len(shares)
    if given:
        rounded = largest_remainder([shares[i] for i in given], total).tolist()
        for i, count in zip(given, rounded, strict=True):
            counts[i] = count
    return counts


def find_shares(dataset: Any) -> dict[str, float]:
    """Return each source's share of all samples, by the percents of all levels."""
    if not isinstance(dataset, MergedDataset):
        return {list_sources(dataset)[0].name: 1.0}
    whole = sum(child.percent for child in dataset.datasets)
    return {
        name: share * child.percent / whole
        for child in dataset.datasets
        for name, share in find_shares(child).items()
    }


def check_lengths(lengths: Lengths, dataset: Any) -> None:
    """Check that lengths are of a dataset.

    Raises
    ------
    ConfigError
        If they are not.
    """
    names = [source.name for source in list_sources(dataset)]
    counted = [source.name for source in lengths]
    if names != counted:
        raise ConfigError(
            f"lengths must be of the sources {names}, got those of {counted}; count_lengths of "
            "this dataset"
        )


def _check_units(lengths: Lengths) -> None:
    other = [source for source in lengths if source.unit != "tokens"]
    if other:
        raise ConfigError(
            f"num_tokens needs lengths in tokens, those of {other[0].name!r} are in "
            f"{other[0].unit or 'nothing, as it is empty'}; give length_of to count_lengths "
            "(--tokenizer FILE), or num_samples (--samples)"
        )


def distribute(total: float, weights: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Distribute a total by weight, with an upper limit for each.

    The excess over all limits is dropped.

    Examples
    --------
    >>> distribute(100, [1, 1, 2], [10, 1000, 1000])
    [10, 30.0, 60.0]
    """
    dealt = [0.0] * len(weights)
    left, open_ones = float(total), set(range(len(weights)))
    while open_ones:
        unit = left / sum(weights[i] for i in open_ones)
        full = {i for i in open_ones if weights[i] * unit >= limits[i]}
        for i in full or open_ones:
            dealt[i] = limits[i] if full else weights[i] * unit
            left -= limits[i] if full else 0.0
        open_ones = open_ones - full if full else set()
    return dealt


def _capacity(dataset: Any, known: Known, cyclic: bool) -> float:
    """Return the number of samples that a dataset can give."""
    if isinstance(dataset, MergedDataset):
        parts = [_capacity(child, known, dataset.cyclic) for child in dataset.datasets]
        if not dataset.stop_on_first:
            return sum(parts)
        whole = sum(child.percent for child in dataset.datasets)
        pairs = zip(parts, dataset.datasets, strict=True)
        return float(min(part * whole / child.percent for part, child in pairs))
    num_samples = known[list_sources(dataset)[0].name].num_samples
    return _NO_LIMIT if cyclic and num_samples else float(num_samples)


def _draw_each(dataset: Any, known: Known, total: float) -> dict[str, float]:
    """Return the draws of each source."""
    total = min(total, _capacity(dataset, known, cyclic=True))
    if not isinstance(dataset, MergedDataset):
        return {list_sources(dataset)[0].name: total}
    percents = [child.percent for child in dataset.datasets]
    limits = [_capacity(child, known, dataset.cyclic) for child in dataset.datasets]
    drawn: dict[str, float] = {}
    for child, part in zip(dataset.datasets, distribute(total, percents, limits), strict=True):
        drawn |= _draw_each(child, known, part)
    return drawn


def _find_samples(dataset: Any, known: Known, num_tokens: int) -> float:
    """Return how many samples have a number of tokens, or the number of all samples."""

    def tokens(whole: float) -> float:
        return sum(
            part * known[name].mean_length
            for name, part in _draw_each(dataset, known, whole).items()
        )

    # Without an end, find an upper bound by doubling.
    capacity = _capacity(dataset, known, cyclic=True)
    high = capacity if capacity < _NO_LIMIT else 1.0
    while capacity == _NO_LIMIT and tokens(high) < num_tokens:
        high *= 2
        if high > 1e30:
            raise ConfigError(
                "num_tokens needs samples that have tokens, all that were counted are empty; give "
                "num_samples"
            )
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens(middle) < num_tokens else (low, middle)
    return high


_RED, _GREEN, _PLAIN = "\033[31m", "\033[32m", "\033[0m"
_HEADERS = ("dataset", "samples", "required", "percent")


def print_dataset_length_stats(info: Sequence[Any], file: TextIO | None = None) -> None:
    """Print the result of `MergedDataset.check_length`, one line per dataset.

    On a terminal, a line is red if the dataset has less than a quarter of the required samples, and
    green if more than twice as many. Percents are of the whole run.

    Parameters
    ----------
    info
        ``(name, samples, required)`` of each dataset, in nested lists; samples are None if
        unknown.
    file
        Output stream; standard output if None.

    Examples
    --------
    >>> print_dataset_length_stats([("a", 100, 300), [("b", None, 100)]])
    dataset  samples  required  percent
    a            100       300    75.0%
      b            ?       100    25.0%
    """
    file = sys.stdout if file is None else file
    in_color = file.isatty()
    rows = list(_flatten(info, 0))
    whole = sum(required for _, _, required in rows) or 1
    cells = [
        (
            name,
            "?" if length is None else f"{length:,}",
            f"{required:,}",
            f"{100 * required / whole:.1f}%",
        )
        for name, length, required in rows
    ]
    widths = [max(map(len, column)) for column in zip(_HEADERS, *cells, strict=True)]
    colors = [_PLAIN, *(_color(length, required) for _, length, required in rows)]
    for color, (name, *numbers) in zip(colors, [_HEADERS, *cells], strict=True):
        aligned = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        line = "  ".join([name.ljust(widths[0]), *aligned])
        print(f"{color}{line}{_PLAIN}" if in_color and color != _PLAIN else line, file=file)


def _flatten(info: Sequence[Any], depth: int) -> Iterator[tuple[str, int | None, int]]:
    """Yield the datasets of all levels, with names indented by level."""
    for entry in info:
        if isinstance(entry, list):
            yield from _flatten(entry, depth + 1)
        else:
            name, length, required = entry
            yield "  " * depth + name, length, required


def _color(length: int | None, required: int) -> str:
    if length is None:
        return _PLAIN
    if length < required / 4:
        return _RED
    return _GREEN if length > 2 * required else _PLAIN
