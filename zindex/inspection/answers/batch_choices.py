"""What each choice of batches costs: padding, and ranks that wait for others."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, PlanError
from zindex.formats.keyed.schema_presets import PRESETS, find_declared
from zindex.inspection.answers.growing_records import GenerationStore, open_records
from zindex.io.objects import PlaceLike
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.dataset_factory import DatasetFactory
from zindex.keyed.growing_store import GrowingStore
from zindex.keyed.store import KeyedStore
from zindex.keyed.stores import StoreFactory
from zindex.loading.order import SampleOrder
from zindex.loading.token_batches import TokenOrder
from zindex.plan.token_batches import Layout, SampleSizes, TokenBudget

#: Batches of a fixed number of samples of any length, for comparison.
ANY_LENGTH = "padded, any length"
_LAYOUTS: tuple[Layout, ...] = ("packed", "padded")
# Windows measured of a large store, evenly spread.
_MAX_WINDOWS = 64


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """Batches of one budget and layout."""

    max_tokens: int
    #: ``packed``, ``padded``, or ``padded, any length``: as many samples as padded batches have,
    #: without regard to their lengths.
    layout: str
    #: Batches of a pass over all samples, estimated for a large store.
    num_batches: int
    #: Samples of a batch, on average.
    num_samples: float
    #: Share of padding among the tokens of the tensors.
    padding: float
    #: Mean tokens of a batch, as a share of the budget.
    fill: float
    #: Share of its time that a rank waits for the rank with the most tokens in each step.
    waiting: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def measure_batches(
    store_url: PlaceLike,
    budgets: Sequence[int],
    *,
    num_ranks: int = 1,
    generation: int | None = None,
) -> list[BatchChoice]:
    """Return what batches of several budgets cost.

    Parameters
    ----------
    store_url
        Path or URL of a keyed or growing store.
    budgets
        Most tokens of a batch, > 0. Sequences are divided into windows of at most as many tokens.
    num_ranks
        Ranks that take the batches in turn.
    generation
        Generation of a growing store; None is its head.

    Returns
    -------
    choices
        For every budget, packed and padded batches, and padded ones of samples of any length.

    Raises
    ------
    ConfigError
        If the store holds no known kind of records.
    PlanError
        If a record does not fit a budget.

    Notes
    -----
    Cost: reads the bounds of all records, no tokens. Memory: 16 bytes per record.
    """
    found: list[BatchChoice] = []
    for max_tokens, dataset in _open(store_url, budgets, generation):
        sizes = dataset.sample_sizes()
        if not len(sizes):
            raise PlanError(f"{store_url} must have samples to be divided into batches, has none")
        order = SampleOrder(len(sizes), "keyed", 0, dataset.fingerprint)
        for layout in _LAYOUTS:
            budget = TokenBudget(max_tokens, layout)
            found.append(_measure(TokenOrder(order, sizes, budget), num_ranks))
        count = max(1, round(found[-1].num_samples))
        found.append(_measure_any(order, sizes, max_tokens, count, num_ranks))
    return found


def _open(
    store_url: PlaceLike, budgets: Sequence[int], generation: int | None
) -> Iterator[tuple[int, BaseDataset]]:
    """Yield each budget, and the dataset of a store whose samples it holds."""
    opened = open_records(store_url, generation)
    schema = find_declared(opened.spec)
    store: KeyedStore = StoreFactory.create("zarr")
    if isinstance(opened, GenerationStore):
        store = GrowingStore(opened.generation)
    store.load(store_url)
    if schema is None:
        known = [item for item in PRESETS.values() if set(item.keys) <= set(store.keys)]
        if not known:
            raise ConfigError(
                f"{store_url} must have the keys of a kind of training to be divided into batches, "
                f"got {', '.join(store.keys)}; leave out max_tokens (--max-tokens)"
            )
        schema = max(known, key=lambda item: len(item.keys))
    options: Any = {"mode": "records"}
    if "records" not in schema.modes:
        options = {"mode": "windows", "documents": "respect", "tail": "exact"}
    for max_tokens in budgets:
        yield max_tokens, DatasetFactory.create(schema, max_tokens, **options).open(store)


def _measure(order: TokenOrder, num_ranks: int) -> BatchChoice:
    """Return the costs of batches of a budget."""
    budget, parts, num_samples = order.budget, list[SampleSizes](), list[int]()
    count = min(order.num_windows, _MAX_WINDOWS)
    for number in range(count):
        window = order.open_window(0, number * order.num_windows // count)
        starts = np.append(0, window.stops[:-1] - window.first)
        num_samples += np.diff(np.append(starts, len(window.positions))).tolist()
        parts.append(order.sizes.take(window.positions).merge(starts))
    return _summarise(
        parts, np.array(num_samples), budget.layout, budget.max_tokens, len(order.sizes), num_ranks
    )


def _measure_any(
    order: SampleOrder, sizes: SampleSizes, max_tokens: int, count: int, num_ranks: int
) -> BatchChoice:
    """Return the costs of padded batches of a number of samples."""
    size = min(len(sizes), _MAX_WINDOWS * TokenBudget(max_tokens).window)
    places = np.array(order.find_range(0, 0, size), np.int64)
    starts = np.arange(0, size, count)
    parts = [sizes.take(places).merge(starts)]
    num_samples = np.diff(np.append(starts, size))
    return _summarise(parts, num_samples, ANY_LENGTH, max_tokens, len(sizes), num_ranks)


def _summarise(
    parts: Sequence[SampleSizes],
    num_samples: Int64Array,
    layout: str,
    max_tokens: int,
    size: int,
    num_ranks: int,
) -> BatchChoice:
    """Return the costs of batches, given their samples."""
    is_packed = layout == "packed"
    tokens = np.concatenate([part.tokens if is_packed else part.padded for part in parts])
    if not is_packed:
        tokens = tokens * num_samples
    stored = sum(int(part.stored.sum()) for part in parts)
    num_full = len(tokens) // num_ranks * num_ranks
    steps = tokens[:num_full].reshape(-1, num_ranks)
    longest = float(steps.max(1).sum()) if num_full else 0.0
    total = float(tokens.sum())
    return BatchChoice(
        max_tokens,
        layout,
        num_batches=round(len(tokens) * size / int(num_samples.sum())),
        num_samples=float(num_samples.mean()),
        padding=0.0 if is_packed else 1 - stored / max(total, 1.0),
        fill=total / len(tokens) / max_tokens,
        waiting=1 - float(steps.mean(1).sum()) / longest if longest else 0.0,
    )
