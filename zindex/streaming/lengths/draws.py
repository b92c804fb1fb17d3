"""How many samples of each source a run draws, and how many epochs of it these are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zindex.errors import ConfigError
from zindex.plan.largest_remainder import largest_remainder
from zindex.streaming.lengths.statistics import Lengths, SourceLengths, list_leaves
from zindex.streaming.merged_dataset import MergedDataset

Known = Mapping[str, SourceLengths]

_NO_LIMIT = float("inf")
# Halvings of the range in which the samples of a number of tokens are looked for.
_HALVINGS = 80


@dataclass(frozen=True, slots=True)
class SourceDraws:
    """What a run draws of one source."""

    name: str
    #: Its part of all samples, by the percents of all levels.
    share: float
    num_samples: int
    #: In the unit of the source's lengths.
    num_tokens: int
    #: How often each sample comes, on average; 0 for an empty source.
    num_epochs: float

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def epochs_of(
    lengths: Lengths,
    dataset: Any,
    *,
    num_samples: int | None = None,
    num_tokens: int | None = None,
) -> tuple[SourceDraws, ...]:
    """Return what a run draws of each source, through the percents of all levels.

    Parameters
    ----------
    lengths
        What `count_lengths` told of the dataset.
    dataset
        The `MergedDataset`, or one source. Where it is not ``cyclic``, a source gives one epoch,
        and the others have its turns after that.
    num_samples
        Samples that the run draws, of all ranks and before a ``customized_yield_fn``.
    num_tokens
        Or the tokens that it draws.

    Returns
    -------
    draws
        One for each source, in the order of the dataset.

    Raises
    ------
    ConfigError
        If not one of both numbers is given, the lengths are of another dataset, or tokens are asked
        for where lengths count something else.
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
    drawn = _deal(dataset, known, whole)
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
    """Return whole numbers in proportion to shares, some of which are 0."""
    given = [i for i, share in enumerate(shares) if share > 0]
    counts = [0] * len(shares)
    if given:
        rounded = largest_remainder([shares[i] for i in given], total).tolist()
        for i, count in zip(given, rounded, strict=True):
            counts[i] = count
    return counts


def find_shares(dataset: Any) -> dict[str, float]:
    """Return each source's part of all samples, by the percents of all levels."""
    if not isinstance(dataset, MergedDataset):
        return {list_leaves(dataset)[0].name: 1.0}
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
    names = [leaf.name for leaf in list_leaves(dataset)]
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


def fill(total: float, weights: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Return a total dealt out by weight, none getting more than its limit.

    What is beyond the limits of all is left over.

    Examples
    --------
    >>> fill(100, [1, 1, 2], [10, 1000, 1000])
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
    """Return how many samples a dataset can give."""
    if isinstance(dataset, MergedDataset):
        parts = [_capacity(child, known, dataset.cyclic) for child in dataset.datasets]
        if not dataset.stop_on_first:
            return sum(parts)
        whole = sum(child.percent for child in dataset.datasets)
        pairs = zip(parts, dataset.datasets, strict=True)
        return float(min(part * whole / child.percent for part, child in pairs))
    num_samples = known[list_leaves(dataset)[0].name].num_samples
    return _NO_LIMIT if cyclic and num_samples else float(num_samples)


def _deal(dataset: Any, known: Known, total: float) -> dict[str, float]:
    """Return the samples that are drawn of each source."""
    total = min(total, _capacity(dataset, known, cyclic=True))
    if not isinstance(dataset, MergedDataset):
        return {list_leaves(dataset)[0].name: total}
    percents = [child.percent for child in dataset.datasets]
    limits = [_capacity(child, known, dataset.cyclic) for child in dataset.datasets]
    drawn: dict[str, float] = {}
    for child, part in zip(dataset.datasets, fill(total, percents, limits), strict=True):
        drawn |= _deal(child, known, part)
    return drawn


def _find_samples(dataset: Any, known: Known, num_tokens: int) -> float:
    """Return how many samples make a number of tokens, or all that there are."""

    def tokens(whole: float) -> float:
        return sum(
            part * known[name].mean_length for name, part in _deal(dataset, known, whole).items()
        )

    # Where nothing ends, tokens grow evenly; else they are looked for between 0 and all.
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
