"""Plans and naive indices for the tests of builds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zindex.ingest.length_source import LengthSource, open_source
from zindex.kernels.bijection import permute
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.keys import Stage, round_keys
from zindex.store.layout import ChunkGrid

PlanIndex = Callable[..., tuple[IndexPlan, LengthSource]]


@pytest.fixture
def plan_index() -> PlanIndex:
    """Plan an index over all sequences of a dataset, or some of them."""

    def plan(
        path: str,
        *,
        start: int = 0,
        stop: int | None = None,
        num_samples: int | None = None,
        sequence_length: int = 8,
        extra_token: int = 1,
        drop_last: bool = True,
        chunk: int = 4,
        **settings: Any,
    ) -> tuple[IndexPlan, LengthSource]:
        source = open_source(path)
        stop = source.facts.num_sequences if stop is None else stop
        epochs = plan_epochs(
            source.count_tokens(start, stop),
            num_samples,
            sequence_length=sequence_length,
            extra_token=extra_token,
            drop_last=drop_last,
        )
        values = {
            "split": "train",
            "seed": 7,
            "grid": ChunkGrid(chunk_length=chunk, shard_length=4 * chunk),
        } | settings
        made = IndexPlan(
            source=source.facts,
            start=start,
            stop=stop,
            epochs=epochs,
            sequence_length=sequence_length,
            extra_token=extra_token,
            drop_last=drop_last,
            **values,
        )
        return made, source

    return plan


def naive_boundaries(plan: IndexPlan, ordered: np.ndarray) -> np.ndarray:
    """The sample index of documents of these lengths, one boundary at a time."""
    ends = np.cumsum(ordered, dtype=np.int64)
    rows = [(0, 0)]
    for k in range(1, plan.num_full_samples + 1):
        position = k * plan.sequence_length
        row = int(np.searchsorted(ends, position, side="right" if plan.extra_token else "left"))
        rows.append((row, position - int(ends[row] - ordered[row])))
    if plan.num_samples > plan.num_full_samples:
        rows.append((len(ordered) - 1, int(ordered[-1]) - plan.extra_token))
    return np.array(rows)


def naive_scalable(plan: IndexPlan, lengths: np.ndarray) -> tuple[np.ndarray, ...]:
    """The scalable order, epoch by epoch, from the bijection alone."""

    def shuffled(stage: Stage, epoch: int, size: int) -> np.ndarray:
        digest = plan.source.length_digest
        keys = round_keys(plan.seed, stage, source_digest=digest, split=plan.split, epoch=epoch)
        return permute(np.arange(size), size, keys)

    epochs = range(plan.epochs.num_epochs)
    documents = np.concatenate(
        [plan.start + shuffled(Stage.DOCUMENT, epoch, plan.num_documents) for epoch in epochs]
    )
    bounds = [plan.samples_of_epoch(epoch) for epoch in epochs]
    samples = np.concatenate(
        [
            start + shuffled(Stage.SAMPLE, epoch, stop - start)
            for epoch, (start, stop) in enumerate(bounds)
        ]
    )
    return documents, naive_boundaries(plan, lengths[documents]), samples


def naive_megatron(plan: IndexPlan, lengths: np.ndarray) -> tuple[np.ndarray, ...]:
    """Megatron's order from numpy's own legacy generator."""
    rng = np.random.RandomState(plan.seed)
    num_epochs, separate = plan.epochs.num_epochs, plan.epochs.separate_final_epoch
    epoch = np.arange(plan.start, plan.stop)
    documents = np.tile(epoch, num_epochs - separate)
    rng.shuffle(documents)
    if separate:
        last = epoch.copy()
        rng.shuffle(last)
        documents = np.concatenate([documents, last])
    sans_final = plan.epochs.count_sans_final(plan.sequence_length, plan.extra_token)
    cut = sans_final if separate else plan.num_samples
    first, rest = np.arange(cut), np.arange(cut, plan.num_samples)
    rng.shuffle(first)
    rng.shuffle(rest)
    boundaries = naive_boundaries(plan, lengths[documents])
    return documents, boundaries, np.concatenate([first, rest])
