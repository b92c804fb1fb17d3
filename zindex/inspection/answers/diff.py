"""Compare the samples of two runs, of two loader states, or of a run before and after an edit."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import ConfigError, StateMismatchError
from zindex.inspection.answers.run_order import RunLike, RunOrder, Samples
from zindex.inspection.answers.screen import fit, fit_lines, fit_table
from zindex.inspection.answers.tokens_seen import Seen, count_tokens_only, estimate_tokens_only
from zindex.inspection.answers.traced import TracedSample, describe_samples, sample_lines
from zindex.inspection.tables.formatting import format_share
from zindex.loading.state import parse_state, read_state
from zindex.maintenance.edits.draws import Draws
from zindex.wording import count_noun

#: A state of a loader, or the path of its JSON file.
StateLike = Mapping[str, Any] | str | os.PathLike[str]

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
    #: Number of samples in each, or consumed by the loader states.
    num_samples: tuple[int, int]
    #: Distinct tokens that only the first has, and only the second; estimates unless all positions
    #: were compared, and None if that would read whole orders.
    num_tokens_only: tuple[int | None, int | None]
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
        lines = [fit(f"{self.split} of {first}: {count_noun(self.num_samples[0], 'sample')}")]
        lines.append(fit(f"{self.split} of {second}: {count_noun(self.num_samples[1], 'sample')}"))
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
        lines += ["", *fit_table(rows, text_columns=("dataset",), wide="dataset"), ""]
        for which, count in zip(("first", "second"), self.num_tokens_only, strict=True):
            known = "not counted" if count is None else f"{about}{count:,}"
            lines.append(f"tokens of the {which} only: {known}")
        if None in self.num_tokens_only:
            lines.append("  `zindex build --inverse` stores what is needed to count them")
        if self.samples:
            lines += ["", f"position {self.first_difference:,}, first and second:"]
            for sample in self.samples:
                lines += sample_lines([sample], {})
        return fit_lines(lines)


def diff(
    first: RunLike | RunOrder,
    second: RunLike | RunOrder | None = None,
    *,
    states: Sequence[StateLike] = (),
    split: str = "train",
    max_positions: int = MAX_POSITIONS,
) -> RunDifference:
    """Compare the samples of two runs, of loader states, or before and after the last edit.

    Parameters
    ----------
    first, second
        A ``RunConfig``, its mapping, the path of a YAML file, or an opened `RunOrder`. If
        ``second`` is None, there must be states, or the first run is compared without and with its
        last edit.
    states
        Up to two states of loaders, ``state_dict()`` or the paths of JSON files with them: only the
        samples that they have consumed are compared. The first belongs to the first run, and the
        other to the second run, if any. One state alone is compared with its whole run, or with
        the second run.
    split
        The split to compare; ignored for opened runs.
    max_positions
        Runs up to this length are compared in full. Of longer runs, a quarter as many positions
        are sampled at even spacing, unless the plans prove that the runs are identical.

    Returns
    -------
    difference
        Lengths, first difference, share of differing positions, counts per dataset, and the tokens
        that only one has.
        Samples are equal if they hold the same tokens of the same documents. Datasets are equal if
        their documents have the same lengths, regardless of their paths.

    Raises
    ------
    ConfigError
        If ``second`` is None and the first run has no edit, or there are more than two states.
    StateMismatchError
        If a state does not belong to its run, or is not a state.

    Notes
    -----
    Cost: reads at most ``max_positions`` samples of each run; the first difference is found by
    searching between two sampled positions. Of longer runs, the tokens of only one are estimated by
    finding those of some samples, if both orders can be searched; see `zindex.find`. Nothing is
    written.
    """
    if len(states) > 2:
        raise ConfigError(f"at most two states can be compared, got {len(states)}; give two")
    a = first if isinstance(first, RunOrder) else RunOrder(first, split)
    name = str(first) if isinstance(first, str | os.PathLike) else "the first run"
    if second is None and not states:
        if not a.num_edits:
            raise ConfigError(
                "a run must have an edit to be compared with itself, it has none; give two runs, "
                "or loader states as states (--state)"
            )
        before = RunOrder(a.config, a.split, num_edits=a.num_edits - 1)
        names = (f"{name} before its last edit", f"{name} after it")
        return _compare((before, a), names, (len(before), len(a)), max_positions)
    b, other = a, name
    if second is not None:
        b = second if isinstance(second, RunOrder) else RunOrder(second, split)
        other = str(second) if isinstance(second, str | os.PathLike) else "the second run"
    lengths = [len(a), len(b)]
    names_of = [name, other]
    for number, (order, state) in enumerate(zip((a, b), states, strict=False)):
        lengths[number] = min(_count_consumed(order, state), len(order))
        names_of[number] += " consumed"
    return _compare((a, b), (names_of[0], names_of[1]), (lengths[0], lengths[1]), max_positions)


def _count_consumed(order: RunOrder, state: StateLike) -> int:
    """Return the samples that a loader has consumed, after checking that it read this run."""
    content: Any = state
    where = ""
    if isinstance(state, str | os.PathLike):
        where = os.fspath(state)
        content = read_state(where)
    *before, own = order.fingerprints
    ancestors = [*zip(before, order.edit_positions, strict=True)]
    try:
        found = parse_state(
            content,
            fingerprint=own,
            num_positions=len(order),
            num_samples=None,
            ancestors=ancestors,
        )
    except StateMismatchError as error:
        raise StateMismatchError(f"{where}: {error}" if where else str(error)) from error
    return found.consumed_samples


def _compare(
    orders: tuple[RunOrder, RunOrder],
    names: tuple[str, str],
    lengths: tuple[int, int],
    max_positions: int,
) -> RunDifference:
    """Return the differences between the first samples of two opened orders."""
    a, b = orders
    is_proven = a is b or _have_same_plans(a, b)
    is_short = max(lengths) <= max_positions
    common = min(lengths)
    num_drawn = max_positions if is_short else max_positions // 4
    keys = {number: _dataset_keys(order) for number, order in enumerate(orders)}

    def is_same(positions: Int64Array) -> BoolArray:
        return _is_same(a, b, positions, keys[0], keys[1])

    positions = _draw(0 if is_proven else common, num_drawn)
    blocks = [is_same(positions[i : i + _BLOCK]) for i in range(0, len(positions), _BLOCK)]
    same = np.concatenate([np.ones(0, np.bool_), *blocks])
    where = _find_first(is_same, positions, same)
    if where is None and lengths[0] != lengths[1]:
        where = common
    samples: tuple[TracedSample, ...] = ()
    if where is not None:
        at = np.array([where])
        samples = tuple(
            sample
            for order, length in zip(orders, lengths, strict=True)
            for sample in (describe_samples(order, order.read(at)) if where < length else ())
        )
    return RunDifference(
        split=a.split,
        names=names,
        num_samples=lengths,
        num_tokens_only=(0, 0) if where is None else _count_only(orders, lengths, keys, is_short),
        is_exact=is_short or (is_proven and where is None),
        first_difference=where,
        share_changed=1 - float(same.mean()) if len(same) else 0.0,
        datasets=_count_datasets(orders, lengths, keys, num_drawn),
        samples=samples,
    )


def _count_only(
    orders: tuple[RunOrder, RunOrder],
    lengths: tuple[int, int],
    keys: dict[int, list[tuple[str, int]]],
    is_short: bool,
) -> tuple[int | None, int | None]:
    """Return the distinct tokens of only the first, and of only the second."""
    ids = {key: number for number, key in enumerate(dict.fromkeys([*keys[0], *keys[1]]))}
    first, second = (
        Seen(order, length, np.array([ids[key] for key in keys[number]], np.int64))
        for number, (order, length) in enumerate(zip(orders, lengths, strict=True))
    )
    if is_short:
        return count_tokens_only(first, second)
    if not all(order.is_searchable for order in orders):
        return None, None
    return estimate_tokens_only(first, second), estimate_tokens_only(second, first)


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
    # Samples of one plan may hold the same tokens, but not twice in an epoch.
    moved = np.flatnonzero((dataset_a == dataset_b) & (plan_a == plan_b) & (places_a != places_b))
    if moved.size:
        epochs_a = a.find_epochs(Draws(sources_a[moved], places_a[moved]))
        is_unknown[moved] |= epochs_a != b.find_epochs(Draws(sources_b[moved], places_b[moved]))
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
    orders: tuple[RunOrder, RunOrder],
    lengths: tuple[int, int],
    keys: dict[int, list[tuple[str, int]]],
    num_drawn: int,
) -> tuple[DatasetDifference, ...]:
    """Return the number of samples of each dataset in both orders."""
    paths: dict[tuple[str, int], str] = {}
    counts: list[dict[tuple[str, int], float]] = []
    for number, order in enumerate(orders):
        positions = _draw(lengths[number], num_drawn)
        sources, _ = order.find_draws(positions)
        drawn = np.bincount(order.dataset_of[sources], minlength=len(order.paths))
        scale = lengths[number] / max(1, len(positions))
        counts.append(dict(zip(keys[number], (drawn * scale).tolist(), strict=True)))
        for key, path in zip(keys[number], order.paths, strict=True):
            paths.setdefault(key, path)
    return tuple(
        DatasetDifference(path, *(round(each.get(key, 0)) for each in counts))
        for key, path in paths.items()
    )
