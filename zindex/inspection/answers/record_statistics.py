"""Statistics of a keyed or record store: lengths, shares of target tokens, rewards, sources."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.errors import ConfigError
from zindex.formats.keyed.schema_presets import find_masks, find_token_keys
from zindex.inspection.answers.growing_records import open_records
from zindex.io.objects import PlaceLike
from zindex.store.open import Store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KEY, LENGTH_SUFFIX, Form, RecordField, read_fields
from zindex.text.length_histogram import LengthHistogram

REWARDS = "rewards"
# Records, and values, per read.
_BLOCK_RECORDS, _BLOCK_VALUES = 1 << 16, 1 << 24
# Bins of the rewards.
_NUM_BINS = 20


@dataclass(frozen=True, slots=True)
class FieldLengths:
    """Lengths of the values of one field: of records or, in groups, of their items."""

    name: str
    #: ``tokens``, ``numbers``, ``bytes`` or, for the sizes of groups, ``items``.
    unit: str
    histogram: LengthHistogram

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with quantiles."""
        quantiles = {f"{share:g}": self.histogram.quantile(share) for share in QUANTILES}
        sums = {"num_values": self.histogram.num_tokens, "count": self.histogram.num_samples}
        return asdict(self) | sums | {"quantiles": quantiles}


#: Shares of the quantiles of lengths and rewards.
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class TargetShare:
    """Target tokens of one field, according to its mask."""

    name: str
    num_tokens: int
    num_targets: int
    #: Records with no target token.
    num_untrained: int


@dataclass(frozen=True, slots=True)
class RewardStatistics:
    """Distribution of the rewards of groups of answers."""

    num_groups: int
    num_answers: int
    mean: float
    std: float
    #: By the shares of `QUANTILES`.
    quantiles: tuple[float, ...]
    #: Groups whose answers all have one reward: they give no advantage to learn from.
    num_constant: int
    #: Rewards that are NaN or infinite, which the other figures leave out.
    num_not_finite: int
    #: Edges of equal bins, and the answers in each.
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordStatistics:
    """Result of `measure_records`."""

    path: str
    num_records: int
    lengths: tuple[FieldLengths, ...]
    targets: tuple[TargetShare, ...]
    #: None if the store has no rewards.
    rewards: RewardStatistics | None
    #: What the sources are counted by: ``file`` or the name of a field.
    by: str
    #: Name of each source and its records, the largest first.
    sources: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"lengths": [item.to_json() for item in self.lengths]}


def measure_records(
    store_url: PlaceLike, *, by: str | None = None, generation: int | None = None
) -> RecordStatistics:
    """Return statistics of a keyed, record or growing store.

    Parameters
    ----------
    store_url
        Path or URL of the store.
    by
        A field of texts, JSON values or one number each, to count records by; None counts by
        source file.
    generation
        Generation of a growing store; None is its head.

    Returns
    -------
    statistics
        Lengths by field, the shares of target tokens, rewards, and records by source.

    Raises
    ------
    ConfigError
        If the store has no records, no such field, or the field holds bytes or other numbers.

    Notes
    -----
    Cost: reads offsets, masks, rewards and the field ``by``, but no tokens. Memory: 24 bytes per
    record, and the rewards.
    """
    store = open_records(store_url, generation)
    fields = read_fields(store.spec, store.root)
    fields.pop(KEY, None)
    num_records = int(store.spec["num_records"])
    if not num_records:
        raise ConfigError(f"{store.root} must have records to be measured, it has none")
    masks = find_masks(store.spec, fields)
    tokens = find_token_keys(store.spec) | masks.keys()
    hidden = {*masks.values(), *(f"{name}{LENGTH_SUFFIX}" for name in masks.values())}
    shown = [field for name, field in fields.items() if name not in hidden]
    return RecordStatistics(
        path=str(store.root),
        num_records=num_records,
        lengths=tuple(_measure_lengths(store, field, fields, tokens) for field in shown),
        targets=tuple(
            _measure_targets(store, field, fields[masks[field.name]])
            for field in shown
            if field.name in masks
        ),
        rewards=_measure_rewards(store, fields),
        by=by or "file",
        sources=_count_sources(store, by),
    )


def _measure_lengths(
    store: Store, field: RecordField, fields: dict[str, RecordField], tokens: frozenset[str]
) -> FieldLengths:
    """Return the lengths of one field."""
    unit = "bytes" if field.form != Form.NUMBERS else "numbers"
    if field.name in tokens:
        unit = "tokens"
    items = fields.get(f"{field.name}{LENGTH_SUFFIX}")
    if items is not None and items.form == Form.NUMBERS:
        found = LengthHistogram.union(map(LengthHistogram.of, _read_values(store, items)))
        if found.num_tokens == field.num_values:  # records are groups of items
            return FieldLengths(field.name, unit, found)
    if field.name.removesuffix(LENGTH_SUFFIX) in fields.keys() - {field.name}:
        unit = "items"
    return FieldLengths(field.name, unit, LengthHistogram.of(np.diff(_read_offsets(store, field))))


def _read_offsets(store: Store, field: RecordField) -> Int64Array:
    """Return the offsets of all records among the values of a field: one more than records."""
    offsets: Int64Array = store[field.offset.name][:]
    return offsets


def _read_values(store: Store, field: RecordField) -> Iterator[AnyArray]:
    """Yield all values of a field, block by block."""
    reader = store[field.value.name]
    for start in range(0, field.num_values, _BLOCK_VALUES):
        yield reader.read(start, min(start + _BLOCK_VALUES, field.num_values))


def _measure_targets(store: Store, field: RecordField, mask: RecordField) -> TargetShare:
    """Return the target tokens of a field."""
    bounds, num_targets, start = _read_offsets(store, mask), 0, 0
    is_trained = np.zeros(len(bounds) - 1, bool)
    for values in _read_values(store, mask):
        places = start + np.flatnonzero(values)
        is_trained[np.searchsorted(bounds, places, side="right") - 1] = True
        num_targets += len(places)
        start += len(values)
    num_untrained = int(np.count_nonzero(~is_trained))
    return TargetShare(field.name, mask.num_values, num_targets, num_untrained)


def _measure_rewards(store: Store, fields: dict[str, RecordField]) -> RewardStatistics | None:
    """Return the distribution of rewards, if there are any."""
    field = fields.get(REWARDS)
    if field is None or field.form != Form.NUMBERS or not field.num_values:
        return None
    values = np.concatenate(list(_read_values(store, field))).astype(np.float64)
    bounds = _read_offsets(store, field)
    bounds = bounds[:-1][np.diff(bounds) > 0]
    is_finite = np.isfinite(values)
    known = values[is_finite]
    if not len(known):
        raise ConfigError(f"{store.root} must have finite rewards, all {len(values):,} are not")
    counts, edges = np.histogram(known, _NUM_BINS)
    return RewardStatistics(
        num_groups=len(bounds),
        num_answers=len(values),
        mean=float(known.mean()),
        std=float(known.std()),
        quantiles=tuple(np.quantile(known, QUANTILES).tolist()),
        num_constant=_count_constant(values, bounds),
        num_not_finite=int(np.count_nonzero(~is_finite)),
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
    )


def _count_constant(values: AnyArray, starts: Int64Array) -> int:
    """Return how many groups have one value for all their answers."""
    highest = np.maximum.reduceat(values, starts)
    is_constant: BoolArray = highest == np.minimum.reduceat(values, starts)
    return int(np.count_nonzero(is_constant))


def _count_sources(store: Store, by: str | None) -> tuple[tuple[str, int], ...]:
    """Return the records of each source, the largest first."""
    counts: Counter[str] = Counter()
    if by is None:
        reader = RecordReader(store, [])
        for number, (start, stop) in enumerate(pairwise(reader.url_bounds)):
            counts[reader.name_url(number)] += stop - start
    else:
        reader = RecordReader(store, [by])
        for start in range(0, len(reader), _BLOCK_RECORDS):
            rows = np.arange(start, min(start + _BLOCK_RECORDS, len(reader)))
            counts.update(_name_sources(reader.read_many(rows), by, store))
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _name_sources(records: Sequence[dict[str, Any]], by: str, store: Store) -> Iterator[str]:
    """Yield the source of each record."""
    for record in records:
        value = record.get(by, "")
        if isinstance(value, np.ndarray) and len(value) == 1:
            value = value[0]
        elif isinstance(value, np.ndarray | bytes):
            raise ConfigError(
                f"records are counted by texts or JSON values, {by!r} of {store.root} holds "
                f"{'bytes' if isinstance(value, bytes) else 'numbers'}; name another field with "
                "by (--by)"
            )
        yield str(value)
