"""What a blend is on its way: its classes, the arrays of its kernels, and its counts afterwards."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.kernels._greedy import (
    BASE,
    CEILING,
    FLOOR,
    LIMIT,
    MEMBERS,
    OFFSET,
    SIZE,
    START,
    TARGET,
    TURN,
    WIDTH,
    run_blend,
)

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_RATIO = 10.0
"""Most lanes that a level chooses from, per lane that it wants: measured, and flat around it."""


class BlendState:
    """One blend on its way: its classes, their levels, their counts."""

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
        self.taken = np.minimum.reduceat(drawn, first)
        self.classes = np.zeros((first.size, 4), np.int64)
        self.classes[:, TURN] = np.add.reduceat(drawn - self.taken[self.group], first)
        self.classes[:, MEMBERS] = np.diff(first, append=members.size)
        self.classes[:, BASE] = first
        self.classes[:, LIMIT] = 2**62 if sizes is None else sizes[members[first]]
        limit = self.classes[:, LIMIT]
        name = self.members[first + self.classes[:, TURN]]
        plain = np.where(self.classes[:, MEMBERS] == 1, limit - 1, -1)
        count = np.where(self.taken < limit, self.taken, np.inf)
        self.arrays = (
            *_make_levels(weights[members[first]], count), self.classes, self.members, name,
            self.taken, plain,
        )  # fmt: skip

    def run(self, start: int, dataset: Int32Array, sample: Int64Array) -> None:
        """Draw for as many positions as there are outputs, from ``start`` on."""
        arrays: tuple[Any, ...] = (*self.arrays, start, dataset, sample)
        run_blend(*arrays)

    def finish(self) -> None:
        """Write the counts back."""
        self.counts[self.members] = self.taken[self.group] + (
            self.place < self.classes[self.group, TURN]
        )


def _make_levels(weights: Float64Array, counts: Float64Array) -> tuple[Any, ...]:
    """Return the lanes of the first level, room for those of others, levels and their lines."""
    size = weights.size
    depth = int(np.ceil(max(np.log(size / WIDTH), 0.0) / np.log(_RATIO)))
    ratio = (size / WIDTH) ** (1 / max(depth, 1))
    targets = [int(WIDTH * ratio**k) for k in range(depth - 1, -1, -1)]
    # Lanes are loaded some at a time, from the last of a level on past its end.
    rooms = [-(-lanes // WIDTH) * WIDTH + WIDTH for lanes in (size, *targets)]
    levels = np.zeros((depth + 1, 5), np.int64)
    levels[:, OFFSET] = np.cumsum([0, *rooms[:-1]])
    levels[0, [SIZE, START]] = size, -1
    levels[1:, TARGET] = targets
    lines = np.zeros((depth + 1, 5))
    lines[0, [FLOOR, CEILING]] = -np.inf
    room = sum(rooms)
    weight, count = np.zeros(room), np.full(room, np.inf)
    weight[:size], count[:size] = weights, counts
    late, parent, group = np.empty(rooms[0]), np.zeros(room, np.int64), np.arange(room)
    return weight, count, late, parent, group, levels, lines
