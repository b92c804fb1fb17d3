"""What a blend is on its way: its classes, the arrays of its kernels, and its counts afterwards."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.kernels._greedy import (
    BASE,
    BLOCK,
    COUNT,
    INVERSE,
    LIMIT,
    PICKED,
    SHIFT,
    SHORT,
    SIZE,
    TARGET,
    TURN,
    WEIGHT,
    run_blend,
)

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_TARGET_FACTOR = 5.0
"""Classes wanted active, per cube root of their number: measured, and flat around the best."""


class BlendState:
    """One blend on its way: its classes, their calendar, their lanes."""

    def __init__(self, weights: Float64Array, counts: Int64Array, sizes: Int64Array | None) -> None:
        keys = weights if sizes is None else sizes
        members = np.argsort(-keys, kind="stable")
        keys, drawn = keys[members], counts[members]
        starts = np.ones(members.size, np.bool_)
        starts[1:] = keys[1:] != keys[:-1]
        # Members of one weight take turns if those drawn once more come first; others stay alone.
        first = np.flatnonzero(starts)
        uneven = np.maximum.reduceat(drawn, first) - np.minimum.reduceat(drawn, first) > 1
        rises = np.zeros(members.size, np.bool_)
        rises[1:] = (drawn[1:] > drawn[:-1]) & ~starts[1:]
        uneven |= np.logical_or.reduceat(rises, first)
        starts |= uneven[np.cumsum(starts) - 1]
        first = np.flatnonzero(starts)
        self.counts, self.members = counts, members.astype(np.int32)
        self.group = np.cumsum(starts) - 1
        self.place = np.arange(members.size) - first[self.group]
        count = np.minimum.reduceat(drawn, first)
        self.order = np.zeros((first.size, 4), np.int64)
        self.order[:, TURN] = np.add.reduceat(drawn - count[self.group], first)
        self.order[:, SIZE] = np.diff(first, append=members.size)
        self.order[:, BASE] = first
        limit = np.inf if sizes is None else sizes[members[first]]
        self.table = np.empty((first.size, 4))
        self.table[:, WEIGHT] = weights[members[first]]
        self.table[:, INVERSE] = 1.0 / self.table[:, WEIGHT]
        self.table[:, LIMIT] = limit
        self.table[:, COUNT] = np.where(count < limit, count, np.inf)
        self.scratch: tuple[Any, ...] = _make_scratch(self.table)

    def run(self, start: int, dataset: Int32Array, sample: Int64Array) -> None:
        """Draw for as many positions as there are outputs, from ``start`` on."""
        arrays: tuple[Any, ...] = (self.table, self.order, self.members, *self.scratch)
        arrays = (*arrays, start, dataset, sample)
        run_blend(*arrays)

    def finish(self) -> None:
        """Write the counts back."""
        count, limit = self.table[:, COUNT], self.table[:, LIMIT]
        count = np.where(count < np.inf, count, limit).astype(np.int64)
        self.counts[self.members] = count[self.group] + (self.place < self.order[self.group, TURN])


def _make_scratch(table: Float64Array) -> tuple[Any, ...]:
    """Return an empty calendar, empty lanes and the state, as `run_blend` takes them."""
    classes = table.shape[0]
    target = int(_TARGET_FACTOR * classes ** (1 / 3))
    width = (classes + 63) & ~31
    number = np.zeros(PICKED + 1 + 64, np.int64)
    number[[BLOCK, TARGET, SHIFT]] = -1, target, 5 if classes <= SHORT else 4
    lanes = np.zeros((2, width))
    lanes[1] = np.inf
    return (
        np.full(max(64, 1 << (classes // 4).bit_length()), -1, np.int64),
        np.empty(classes),
        lanes,
        np.zeros(width, np.int64),
        np.zeros(SHORT, np.int32),
        np.zeros(SHORT, np.int32),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
        number,
        np.array([0.0, target / classes, 0.0, table[:, WEIGHT].max()]),
    )
