"""Compute the samples and epochs that a run draws of each source."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from zindex.errors import ConfigError
from zindex.mixing.percent_schedules import mean_percents
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
    lengths: Lengths, dataset: Any, *, num_samples: int | None = None, num_tokens: int | None = None
) -> tuple[SourceDraws, ...]:
    """Return the draws of a run from each source, by the percents of all levels.

    Parameters
    ----------
    lengths
        The result of `count_lengths` for the dataset.
    dataset
        The `MergedDataset`, or one source. Unless it is ``cyclic``, a source gives one epoch, and
        its turns then go to the others.
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
            "a run must be given by num_samples (--samples) or by num_tokens (--tokens), at least "
            f"1, got {num_samples} and {num_tokens}; give one of them"
        )
    check_lengths(lengths, dataset)
    known = {source.name: source for source in lengths}
    if num_tokens is None:
        drawn = _draw_each(dataset, known, float(wanted))
    else:
        drawn = _draw_tokens(dataset, known, num_tokens)
    total = sum(drawn.values())
    given = {name: number for name, number in drawn.items() if number}
    rounded = largest_remainder([*given.values()], round(total)).tolist() if given else []
    counts = dict(zip(given, rounded, strict=True))
    return tuple(
        SourceDraws(
            name=name,
            share=number / (total or 1.0),
            num_samples=counts.get(name, 0),
            num_tokens=round(number * known[name].mean_length),
            num_epochs=number / max(1, known[name].num_samples),
        )
        for name, number in drawn.items()
    )


def find_shares(dataset: Any) -> dict[str, float]:
    """Return each source's share of all samples, by the percents of all levels."""
    return _draw_each(dataset, None, 1.0)


def _name_of(source: Any) -> str:
    return list_sources(source)[0].name


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


def distribute(total: float, weights: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Distribute a total by weight, with an upper limit for each.

    The excess over all limits is dropped.

    Examples
    --------
    >>> distribute(100, [1, 1, 2], [10, 1000, 1000])
    [10, 30.0, 60.0]
    """
    dealt = [0.0] * len(weights)
    left, open_ones = float(total), {i for i, weight in enumerate(weights) if weight}
    while open_ones:
        unit = left / sum(weights[i] for i in open_ones)
        full = {i for i in open_ones if weights[i] * unit >= limits[i]}
        for i in full or open_ones:
            dealt[i] = limits[i] if full else weights[i] * unit
            left -= limits[i] if full else 0.0
        open_ones = open_ones - full if full else set()
    return dealt


def _capacity(dataset: Any, known: Known | None, cyclic: bool) -> float:
    """Return the number of samples that a dataset can give."""
    if known is None:
        return _NO_LIMIT
    if isinstance(dataset, MergedDataset):
        read = [child for child in dataset.datasets if child.percent]
        parts = [_capacity(child, known, dataset.cyclic) for child in read]
        if not dataset.stop_on_first:
            return sum(parts)
        percents = mean_percents([child.percent for child in read], sum(parts))
        pairs = zip(parts, percents, strict=True)
        return float(min(part * sum(percents) / percent for part, percent in pairs if percent))
    num_samples = known[_name_of(dataset)].num_samples
    num_epochs = getattr(dataset, "max_epochs", None) or _NO_LIMIT
    return num_samples * num_epochs if cyclic and num_samples else float(num_samples)


def _draw_each(dataset: Any, known: Known | None, total: float) -> dict[str, float]:
    """Return the draws of each source, without limits if lengths are unknown."""
    total = min(total, _capacity(dataset, known, cyclic=True))
    if not isinstance(dataset, MergedDataset):
        return {_name_of(dataset): total}
    percents = mean_percents([child.percent for child in dataset.datasets], total)
    limits = [_capacity(child, known, dataset.cyclic) for child in dataset.datasets]
    drawn: dict[str, float] = {}
    for child, part in zip(dataset.datasets, distribute(total, percents, limits), strict=True):
        drawn |= _draw_each(child, known, part)
    return drawn


def _draw_tokens(dataset: Any, known: Known, num_tokens: int) -> dict[str, float]:
    """Return the draws of each source for a number of tokens, or all if there are fewer."""
    for source in known.values():
        if source.unit != "tokens":
            raise ConfigError(
                f"num_tokens (--tokens) needs lengths in tokens, those of {source.name!r} are in "
                f"{source.unit or 'nothing, as it is empty'}; count them with length_of "
                "(--tokenizer FILE), or give num_samples (--samples)"
            )

    def has_tokens(whole: float) -> bool:
        drawn = _draw_each(dataset, known, whole)
        return sum(part * known[name].mean_length for name, part in drawn.items()) >= num_tokens

    # Without an end, find an upper bound by doubling.
    capacity = _capacity(dataset, known, cyclic=True)
    high = capacity if capacity < _NO_LIMIT else 1.0
    while capacity == _NO_LIMIT and not has_tokens(high):
        high *= 2
        if high > 1e30:
            raise ConfigError(
                "num_tokens (--tokens) needs samples that have tokens, all that were counted are "
                "empty; give num_samples (--samples)"
            )
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if has_tokens(middle) else (middle, high)
    return _draw_each(dataset, known, high)


_RED, _GREEN, _PLAIN = "\033[31m", "\033[32m", "\033[0m"


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
    rows = list(_flatten(info, 0))
    whole = sum(required for _, _, required in rows) or 1
    colors, cells = [""], [("dataset", "samples", "required", "percent")]
    for name, length, required in rows:
        shown = "?" if length is None else f"{length:,}"
        cells.append((name, shown, f"{required:,}", f"{100 * required / whole:.1f}%"))
        is_short = length is not None and length < required / 4
        is_plenty = length is not None and length > 2 * required
        colors.append(_RED if is_short else _GREEN if is_plenty else "")
    first, *widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for color, (name, *numbers) in zip(colors, cells, strict=True):
        aligned = [text.rjust(width) for text, width in zip(numbers, widths, strict=True)]
        line = "  ".join([name.ljust(first), *aligned])
        print(f"{color}{line}{_PLAIN}" if color and file.isatty() else line, file=file)


def _flatten(info: Sequence[Any], depth: int) -> Iterator[tuple[str, int | None, int]]:
    """Yield the datasets of all levels, with names indented by level."""
    for entry in info:
        if isinstance(entry, list):
            yield from _flatten(entry, depth + 1)
        else:
            name, length, required = entry
            yield "  " * depth + name, length, required
