"""Compare the samples of two runs, or of one run before and after its last edit."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import ConfigError
from zindex.inspection.answers.run_order import RunLike, RunOrder, Samples
from zindex.inspection.answers.screen import fit, fit_lines, fit_table
from zindex.inspection.answers.traced import TracedSample, describe_samples, sample_lines
from zindex.inspection.tables.formatting import format_share

#: Runs up to this length are compared in full; of longer runs a quarter as many are sampled.
MAX_POSITIONS = 1 << 17
# Positions compared per batch.
_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True)
class DatasetDifference:
    """Number of samples that two runs draw from one dataset."""

    #: Path of the dataset, in the first run that contains it.
    dataset: str
    #: Samples in each run; estimates unless all positions were compared.
    num_first: int
    num_second: int


@dataclass(frozen=True, slots=True)
class RunDifference:
    """Differences between the sample orders of two runs."""

    split: str
    #: Names of the two runs.
    names: tuple[str, str]
    #: Number of samples in each.
    num_samples: tuple[int, int]
    #: Whether all positions were compared; if not, shares and counts are estimates.
    is_exact: bool
    #: First position at which the samples differ or one run has ended; None if there is none.
    first_difference: int | None
    #: Share of the common positions at which the samples differ.
    share_changed: float
    datasets: tuple[DatasetDifference, ...]
    #: Samples of both runs at the first difference, if both have one there.
    samples: tuple[TracedSample, ...]

    @property
    def is_same(self) -> bool:
        """Whether no difference was found."""
        return self.first_difference is None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        samples = [sample.to_json() for sample in self.samples]
        return asdict(self) | {"is_same": self.is_same, "samples": samples}

    def to_lines(self) -> list[str]:
        """Format the differences for a terminal, one line each."""
        first, second = self.names
        about = "" if self.is_exact else "about "
        lines = [fit(f"{self.split} of {first}: {self.num_samples[0]:,} samples")]
        lines.append(fit(f"{self.split} of {second}: {self.num_samples[1]:,} samples"))
        if self.first_difference is None:
            where = "every position" if self.is_exact else "all positions that were drawn"
            return [*lines, f"the same samples at {where}"]
        lines.append(f"first difference at position {self.first_difference:,}")
        lines.append(f"{about}{format_share(self.share_changed)} of positions have another sample")
        rows = [
            {
                "dataset": item.dataset,
                "first": f"{item.num_first:,}",
                "second": f"{item.num_second:,}",
                "change": f"{item.num_second - item.num_first:+,}",
            }
            for item in self.datasets
        ]
        lines += ["", *fit_table(rows, text_columns=("dataset",), wide="dataset")]
        if self.samples:
            lines += ["", f"position {self.first_difference:,}, first and second:"]
            for sample in self.samples:
                lines += sample_lines([sample], {})
        return fit_lines(lines)


def diff(
    first: RunLike | RunOrder,
    second: RunLike | RunOrder | None = None,
    *,
    split: str = "train",
    max_positions: int = MAX_POSITIONS,
) -> RunDifference:
    """Compare the samples of two runs, or of one run before and after its last edit.

    Parameters
    ----------
    first, second
        A ``RunConfig``, its mapping, the path of a YAML file, or an opened `RunOrder`. If
        ``second`` is None, the first run is compared without and with its last edit.
    split
        The split to compare; ignored for opened runs.
    max_positions
        Runs up to this length are compared in full. Of longer runs, a quarter as many positions
        are sampled at even spacing, unless the plans prove that the runs are identical.

    Returns
    -------
    difference
        Lengths, first difference, share of differing positions, and counts per dataset.
        Samples are equal if they hold the same tokens of the same documents. Datasets are equal if
        their documents have the same lengths, whatever their paths.

    Raises
    ------
    ConfigError
        If ``second`` is None and the first run has no edit.

    Notes
    -----
    Cost: reads at most ``max_positions`` samples of each run; the first difference is found by
    searching between two sampled positions. Nothing is written.
    """
    a = first if isinstance(first, RunOrder) else RunOrder(first, split)
    name = str(first) if isinstance(first, str | os.PathLike) else "the first run"
    if second is None:
        if not a.num_edits:
            raise ConfigError(
                "a run must have an edit to be compared with itself, it has none; give two runs"
            )
        before = RunOrder(a.config, a.split, num_edits=a.num_edits - 1)
        names = (f"{name} before its last edit", f"{name} after it")
        return _compare(before, a, names, max_positions)
    b = second if isinstance(second, RunOrder) else RunOrder(second, split)
    other = str(second) if isinstance(second, str | os.PathLike) else "the second run"
    return _compare(a, b, (name, other), max_positions)


def _compare(a: RunOrder, b: RunOrder, names: tuple[str, str], max_positions: int) -> RunDifference:
    """Return the differences between two opened orders."""
    lengths = len(a), len(b)
    is_proven = _have_same_plans(a, b)
    common, is_exact = min(lengths), is_proven or max(lengths) <= max_positions
    num_drawn = max_positions if max(lengths) <= max_positions else max_positions // 4
    keys = {number: _dataset_keys(order) for number, order in enumerate((a, b))}

    def is_same(positions: Int64Array) -> BoolArray:
        return _is_same(a, b, positions, keys[0], keys[1])

    positions = _draw(0 if is_proven else common, num_drawn)
    blocks = [is_same(positions[i : i + _BLOCK]) for i in range(0, len(positions), _BLOCK)]
    same = np.concatenate([np.ones(0, np.bool_), *blocks])
    where = _find_first(is_same, positions, same)
    if where is None and lengths[0] != lengths[1]:
        where = common
    samples: tuple[TracedSample, ...] = ()
    if where is not None and where < common:
        at = np.array([where])
        samples = (*describe_samples(a, a.read(at)), *describe_samples(b, b.read(at)))
    return RunDifference(
        split=a.split,
        names=names,
        num_samples=lengths,
        is_exact=is_exact,
        first_difference=where,
        share_changed=1 - float(same.mean()) if len(same) else 0.0,
        datasets=_count_datasets((a, b), keys, num_drawn),
        samples=samples,
    )


def _have_same_plans(a: RunOrder, b: RunOrder) -> bool:
    """Return whether the plans and datasets of two orders prove them identical."""
    if a.num_edits or b.num_edits:
        return False
    facts = [
        (
            [plan.spec for plan in order.plans],
            [(source.identity, source.source.facts.digest) for source in order.sources],
        )
        for order in (a, b)
    ]
    return facts[0] == facts[1]


def _draw(num_positions: int, num_drawn: int) -> Int64Array:
    """Return all positions, or one random position per stride if there are too many."""
    if num_positions <= num_drawn:
        return np.arange(num_positions)
    edges = np.linspace(0, num_positions, num_drawn + 1).astype(np.int64)
    drawn: Int64Array = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    return drawn


def _find_first(
    is_same: Callable[[Int64Array], BoolArray], positions: Int64Array, same: BoolArray
) -> int | None:
    """Return the first difference after the last position known to be equal."""
    changed = np.flatnonzero(~same)
    if not changed.size:
        return None
    row = int(changed[0])
    start, stop = int(positions[row - 1]) + 1 if row else 0, int(positions[row])
    while start < stop:
        block = np.arange(start, min(start + _BLOCK, stop))
        found = np.flatnonzero(~is_same(block))
        if found.size:
            return start + int(found[0])
        start += _BLOCK
    return stop


def _dataset_keys(order: RunOrder) -> list[tuple[str, int]]:
    """Return a key for each dataset: its lengths, and its rank among equal datasets."""
    digests: dict[int, str] = {}
    for number, source in zip(order.dataset_of.tolist(), order.sources, strict=True):
        digests[number] = source.source.facts.digest
    keys: list[tuple[str, int]] = []
    for number, path in enumerate(order.paths):
        digest = digests.get(number, path)
        keys.append((digest, sum(known == digest for known, _ in keys)))
    return keys


def _is_same(
    a: RunOrder,
    b: RunOrder,
    positions: Int64Array,
    keys_a: list[tuple[str, int]],
    keys_b: list[tuple[str, int]],
) -> BoolArray:
    """Return, for each position, whether both orders have the same sample."""
    (sources_a, places_a), (sources_b, places_b) = (x.find_draws(positions) for x in (a, b))
    ids = {key: number for number, key in enumerate(dict.fromkeys([*keys_a, *keys_b]))}
    dataset_a = np.array([ids[key] for key in keys_a])[a.dataset_of[sources_a]]
    dataset_b = np.array([ids[key] for key in keys_b])[b.dataset_of[sources_b]]
    names_a, names_b = ([source.identity for source in order.sources] for order in (a, b))
    known = {name: row for row, name in enumerate(dict.fromkeys([*names_a, *names_b]))}
    # A source without a fingerprint is compared by its document spans.
    plan_a = np.array([-1 if name is None else known[name] for name in names_a])[sources_a]
    plan_b = np.array([-2 if name is None else known[name] for name in names_b])[sources_b]
    same: BoolArray = (dataset_a == dataset_b) & (plan_a == plan_b) & (places_a == places_b)
    is_unknown = plan_a != plan_b
    for order in (a, b):
        is_unknown[order.find_touched(positions)] = True
    rest = np.flatnonzero((dataset_a == dataset_b) & is_unknown)
    if rest.size:
        same[rest] = _have_same_parts(a.read(positions[rest]), b.read(positions[rest]))
    return same


def _have_same_parts(a: Samples, b: Samples) -> BoolArray:
    """Return, for each position, whether the samples hold the same tokens of the same documents."""
    size = len(a.positions)
    counts_a, counts_b = (np.bincount(each.parts.owners, minlength=size) for each in (a, b))
    same: BoolArray = counts_a == counts_b
    rows_a, rows_b = (np.flatnonzero(same[each.parts.owners]) for each in (a, b))
    for left, right in zip(a.parts[1:], b.parts[1:], strict=True):
        differs = left[rows_a] != right[rows_b]
        same[a.parts.owners[rows_a[differs]]] = False
    return same


def _count_datasets(
    orders: tuple[RunOrder, RunOrder], keys: dict[int, list[tuple[str, int]]], num_drawn: int
) -> tuple[DatasetDifference, ...]:
    """Return the number of samples of each dataset in both orders."""
    paths: dict[tuple[str, int], str] = {}
    counts: list[dict[tuple[str, int], float]] = []
    for number, order in enumerate(orders):
        positions = _draw(len(order), num_drawn)
        sources, _ = order.find_draws(positions)
        drawn = np.bincount(order.dataset_of[sources], minlength=len(order.paths))
        scale = len(order) / max(1, len(positions))
        counts.append(dict(zip(keys[number], (drawn * scale).tolist(), strict=True)))
        for key, path in zip(keys[number], order.paths, strict=True):
            paths.setdefault(key, path)
    return tuple(
        DatasetDifference(path, *(round(each.get(key, 0)) for each in counts))
        for key, path in paths.items()
    )
