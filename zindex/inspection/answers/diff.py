"""What differs between two runs, or before and after the last edit of one."""

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

#: Positions up to which all are compared; a quarter as many are drawn of longer runs.
MAX_POSITIONS = 1 << 17
# Positions that are compared at a time.
_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True)
class DatasetDifference:
    """How many samples two runs draw of one dataset."""

    #: Path in the first run that has it.
    dataset: str
    #: Samples in each run; estimates unless all positions were compared.
    num_first: int
    num_second: int


@dataclass(frozen=True, slots=True)
class RunDifference:
    """The differences of two orders."""

    split: str
    #: Names of the two.
    names: tuple[str, str]
    #: Samples of each.
    num_samples: tuple[int, int]
    #: Whether all positions were compared; otherwise shares and counts are estimates.
    is_exact: bool
    #: First position with another sample, or at which one has ended; None without any.
    first_difference: int | None
    #: Share of the positions of both with another sample.
    share_changed: float
    datasets: tuple[DatasetDifference, ...]
    #: The samples of both at the first difference, if both have one there.
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
        """Return the differences as lines of a terminal."""
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
    """Return how the samples of two runs differ, or those of one before and after its last edit.

    Parameters
    ----------
    first, second
        A ``RunConfig``, the mapping of one, the path of its YAML file, or an opened `RunOrder`.
        None compares the first one without its last edit, and with it.
    split
        The split; that of opened runs stays.
    max_positions
        Samples of a run up to which all positions are compared. Of longer runs a quarter as many
        are drawn, spread evenly, unless their plans prove them to be the same.

    Returns
    -------
    difference
        Lengths, first difference, share of positions with another sample, and counts per dataset.
        Samples are the same if they hold the same tokens of the same documents; datasets are if
        their documents have the same lengths, whatever their paths.

    Raises
    ------
    ConfigError
        If there is no second run, and the first one has no edit.

    Notes
    -----
    Cost: at most ``max_positions`` samples of each; the first difference is searched between two
    drawn positions. Nothing is written.
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
    """Return the differences of two opened orders."""
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
    """Return whether two orders must be the same, by their plans and datasets."""
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
    """Return all positions, or some that are spread evenly, at random in their strides."""
    if num_positions <= num_drawn:
        return np.arange(num_positions)
    edges = np.linspace(0, num_positions, num_drawn + 1).astype(np.int64)
    drawn: Int64Array = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    return drawn


def _find_first(
    is_same: Callable[[Int64Array], BoolArray], positions: Int64Array, same: BoolArray
) -> int | None:
    """Return the first difference after the last position before that is known to be the same."""
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
    """Return the identity of each dataset: its lengths, and its place among equal ones."""
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
    """Return whether two orders have the same samples at positions."""
    (sources_a, places_a), (sources_b, places_b) = (x.find_draws(positions) for x in (a, b))
    ids = {key: number for number, key in enumerate(dict.fromkeys([*keys_a, *keys_b]))}
    dataset_a = np.array([ids[key] for key in keys_a])[a.dataset_of[sources_a]]
    dataset_b = np.array([ids[key] for key in keys_b])[b.dataset_of[sources_b]]
    names_a, names_b = ([source.identity for source in order.sources] for order in (a, b))
    known = {name: row for row, name in enumerate(dict.fromkeys([*names_a, *names_b]))}
    # A source without an identity of its own is compared by its parts.
    plan_a = np.array([-1 if name is None else known[name] for name in names_a])[sources_a]
    plan_b = np.array([-2 if name is None else known[name] for name in names_b])[sources_b]
    same: BoolArray = (dataset_a == dataset_b) & (plan_a == plan_b) & (places_a == places_b)
    rest = np.flatnonzero((dataset_a == dataset_b) & (plan_a != plan_b))
    if rest.size:
        same[rest] = _have_same_parts(a.read(positions[rest]), b.read(positions[rest]))
    return same


def _have_same_parts(a: Samples, b: Samples) -> BoolArray:
    """Return whether the samples of two orders hold the same tokens of the same documents."""
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
    """Return the samples of each dataset in both orders."""
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
