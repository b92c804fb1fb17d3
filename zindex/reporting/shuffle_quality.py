"""Statistical tests of the order of a run: spread, neighbors, batches and mix.

The null hypothesis of each test is that the samples of every dataset are in random order. Tests
compare places within a dataset, so that they hold for any blend, and for samples of blocks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from zindex.arrays import AnyArray, Float64Array, Int64Array
from zindex.reporting.observations import Observations
from zindex.reporting.significance import chi_square_tail, normal_tails

#: Results with a smaller p-value are bad; those with one below `UNUSUAL` are unusual.
BAD, UNUSUAL = 1e-6, 1e-3
# Distances of draws whose places are compared.
_LAGS = (1, 2, 4, 8, 16, 32)
# Maximum number of spans of a dataset and of the run, and expected samples in each pair of them.
_MAX_SPANS, _LEAST_EXPECTED = 16, 8
# Windows of the run for the mix, and samples per dataset that each must expect.
_NUM_WINDOWS, _LEAST_MIX = 16, 5
# Samples of a batch.
_BATCH = 32

Verdict = Literal["good", "even", "unusual", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class ShuffleTest:
    """Result of one test of the order of a run."""

    name: str
    #: What the test asks.
    question: str
    #: ``"chi-square"`` with its degrees of freedom, or ``"z"`` with the number of pairs.
    statistic_name: str
    statistic: float
    degrees: int
    #: Probability of a result at least this extreme if the order is random; None without data.
    p_value: float | None
    #: Whether the order is more even than a random one, as a greedy blend is.
    is_even: bool = False

    @property
    def verdict(self) -> Verdict:
        """The result in one word."""
        if self.p_value is None:
            return "unknown"
        if self.p_value < BAD:
            return "bad"
        if self.is_even:
            return "even"
        return "unusual" if self.p_value < UNUSUAL else "good"

    @property
    def words(self) -> str:
        """The result in plain words."""
        if self.p_value is None:
            return "Too few samples to test."
        rarity = f"{1 / max(self.p_value, BAD):,.0f}"
        return {
            "good": "Indistinguishable from a random order.",
            "even": "More even than a random order.",
            "unusual": f"Unusual: one in {rarity} random orders looks like this.",
            "bad": f"Not random: fewer than one in {rarity} random orders look like this.",
        }[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, verdict and words as JSON values."""
        return asdict(self) | {"verdict": self.verdict, "words": self.words}


def measure_shuffle(seen: Observations, mixes: Sequence[tuple[int, int]] = ()) -> list[ShuffleTest]:
    """Return the results of all tests of an order.

    Parameters
    ----------
    seen
        Samples of the run.
    mixes
        Half-open ranges of positions that are each drawn from one blend; none without a blend.
    """
    places = rank_places(seen)
    tests = [_test_spread(seen, places), _test_neighbors(seen, places), _test_batches(seen, places)]
    return [*tests, _test_mix(seen, mixes)] if mixes else tests


def rank_places(seen: Observations) -> Float64Array:
    """Return the place of each sample in its dataset, by the rank of its first document.

    Returns
    -------
    places
        Shape (samples,), in (0, 1): the mean rank of samples with the same document, over the
        number of samples of the dataset.
    """
    documents = seen.documents
    by_place = np.lexsort((documents, seen.datasets))
    starts, sizes = _find_groups(seen.datasets[by_place])
    base = np.repeat(starts, sizes)
    keys = np.stack([seen.datasets, documents])[:, by_place]
    is_first = np.append(True, (np.diff(keys) != 0).any(0))
    firsts = np.flatnonzero(is_first)
    counts = np.diff(np.append(firsts, len(by_place)))
    middle = np.repeat(firsts + (counts - 1) / 2, counts) - base
    places = np.empty(len(by_place))
    places[by_place] = (middle + 0.5) / np.repeat(sizes, sizes)
    return places


def _find_groups(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the starts and sizes of runs of equal values."""
    starts = np.flatnonzero(np.append(True, np.diff(values) != 0))[: len(values)]
    return starts, np.diff(np.append(starts, len(values)))


def _by_dataset(seen: Observations) -> list[Int64Array]:
    """Return the samples of each dataset, in the order of the run."""
    rows = np.argsort(seen.datasets, kind="stable")
    starts, _ = _find_groups(seen.datasets[rows])
    return np.split(rows, starts[1:])


def _chi_square(table: AnyArray) -> tuple[float, int]:
    """Return the statistic of independence of a table of counts, and its degrees of freedom.

    It is scaled by (n - 1) / n, so that its mean over random orders is the degrees of freedom.
    """
    table = table[table.sum(1) > 0][:, table.sum(0) > 0].astype(np.float64)
    total = table.sum()
    expected = np.outer(table.sum(1), table.sum(0)) / total
    statistic = ((table - expected) ** 2 / expected).sum() * (total - 1) / total
    return float(statistic), (table.shape[0] - 1) * (table.shape[1] - 1)


def _one_sided(name: str, question: str, statistic: float, degrees: int) -> ShuffleTest:
    """Return the result of a chi-square test, for which only large statistics are bad."""
    if degrees < 1:
        return ShuffleTest(name, question, "chi-square", 0.0, 0, None)
    tail = chi_square_tail(statistic, degrees)
    return ShuffleTest(
        name, question, "chi-square", statistic, degrees, tail, is_even=1 - tail < BAD
    )


def _test_spread(seen: Observations, places: Float64Array) -> ShuffleTest:
    """Test whether every span of the run draws from all of its datasets alike."""
    statistic, degrees = 0.0, 0
    for rows in _by_dataset(seen):
        size = len(rows)
        num_spans = min(_MAX_SPANS, int(np.sqrt(size / _LEAST_EXPECTED)))
        if num_spans < 2:
            continue
        times = np.arange(size) * num_spans // size
        spans = (places[rows] * num_spans).astype(np.int64)
        table = np.bincount(times * num_spans + spans, minlength=num_spans**2)
        found = _chi_square(table.reshape(num_spans, num_spans))
        statistic, degrees = statistic + found[0], degrees + found[1]
    question = "Does every part of the run read from every part of each dataset?"
    return _one_sided("uniformity", question, statistic, degrees)


def _standardize(seen: Observations, places: Float64Array) -> Float64Array:
    """Return places with mean 0 and variance 1 in each dataset; 0 where all are equal."""
    out = np.zeros(len(places))
    for rows in _by_dataset(seen):
        values = places[rows] - places[rows].mean()
        deviation = float(np.sqrt((values**2).mean()))
        if deviation > 0:
            out[rows] = values / deviation
    return out


def _test_neighbors(seen: Observations, places: Float64Array) -> ShuffleTest:
    """Test whether consecutive draws of a dataset come from unrelated places."""
    values = _standardize(seen, places)
    sums, pairs = np.zeros(len(_LAGS)), np.zeros(len(_LAGS))
    for rows in _by_dataset(seen):
        own, blocks = values[rows], seen.blocks[rows]
        if not own.any():
            continue
        for number, lag in enumerate(_LAGS):
            is_pair = blocks[lag:] == blocks[:-lag]
            count = int(is_pair.sum())
            pairs[number] += count
            # Distinct places of one dataset have a correlation of -1 / (n - 1).
            sums[number] += (own[lag:] * own[:-lag])[is_pair].sum() + count / (len(own) - 1)
    known = np.flatnonzero(pairs >= _BATCH)
    question = "Are the samples that follow each other from unrelated places of the dataset?"
    if not known.size:
        return ShuffleTest("locality", question, "z", 0.0, 0, None)
    deviations = sums[known] / np.sqrt(pairs[known])
    worst = int(np.argmax(np.abs(deviations)))
    p_value = min(1.0, len(known) * normal_tails(float(deviations[worst])))
    number = int(pairs[known[worst]])
    return ShuffleTest("locality", question, "z", float(deviations[worst]), number, p_value)


def _test_batches(seen: Observations, places: Float64Array) -> ShuffleTest:
    """Test whether the means of batches vary as those of random batches do."""
    values = _standardize(seen, places)
    batches = seen.blocks * (1 + len(values)) + np.arange(len(values)) // _BATCH
    names, numbers = np.unique(batches, return_inverse=True)
    sums = np.bincount(numbers, values, len(names))
    # The variance of a sum of k of the n values of a dataset is k (n - k) / (n - 1).
    sizes = np.bincount(seen.datasets)
    varies = np.bincount(seen.datasets, values**2) > 0
    cells, counts = np.unique(numbers * len(sizes) + seen.datasets, return_counts=True)
    batch, dataset = np.divmod(cells, len(sizes))
    drawn = varies[dataset] * counts * (sizes[dataset] - counts)
    variances = np.bincount(batch, drawn / np.maximum(sizes[dataset] - 1, 1), len(names))
    kept = (variances > _BATCH / 4) & (np.bincount(numbers) == _BATCH)
    question = f"Does every batch of {_BATCH} samples cover the datasets as random batches do?"
    statistic = float((sums[kept] ** 2 / variances[kept]).sum())
    return _one_sided("batches", question, statistic, int(kept.sum()))


def _test_mix(seen: Observations, mixes: Sequence[tuple[int, int]]) -> ShuffleTest:
    """Test whether every span of a blend draws the datasets in the same shares."""
    statistic, degrees = 0.0, 0
    for start, stop in mixes:
        low, high = np.searchsorted(seen.positions, [start, stop])
        datasets = seen.datasets[low:high]
        size = len(datasets)
        num_windows = min(_NUM_WINDOWS, size // (2 * _LEAST_MIX))
        if num_windows < 2:
            continue
        counts = np.bincount(datasets)
        is_small = counts < _LEAST_MIX * num_windows
        groups = np.where(is_small, 0, 1 + np.cumsum(~is_small))[datasets]
        windows = np.arange(size) * num_windows // size
        width = int(groups.max()) + 1
        table = np.bincount(windows * width + groups, minlength=num_windows * width)
        found = _chi_square(table.reshape(num_windows, width))
        statistic, degrees = statistic + found[0], degrees + found[1]
    question = "Does every part of the run draw the datasets in the same shares?"
    return _one_sided("mix", question, statistic, degrees)
