"""Kernels and state of the greedy blend.

Datasets of equal weight form a class whose members are drawn in turn; a class is one lane: a weight
and a count. The errors of lanes that are not drawn only rise, so nearly all draws in a window of
positions are from the lanes with the largest errors at its end. A level is a window with these
lanes. The first level has all lanes; each further one has a shorter window and selects lanes of
the previous level, until they are few enough to stay in registers, where draws are made.

Errors are linear in the position, up to rounding. The errors of all lanes that a level excludes are
below a line, from the largest of them at the first position to the largest at the last, plus a
bound on rounding. A draw whose error, rounded as `blend` defines it, is above the line is therefore
the draw of all datasets. If the best error is not above the line, the level is closed and its
window restarts from the previous level; the choice of lanes affects nothing but speed.
"""

from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Float64Array, Int32Array, Int64Array
from zindex.kernels._jit import (
    WIDTH,
    count_bits,
    draw_largest,
    find_bit,
    find_errors,
    find_largest,
    find_reaching,
    inline,
    jit,
    lend,
    load_lanes,
    raise_lanes,
    set_lane,
    store_lanes,
)

#: Padding lanes, lower than all others.
NO_LANES = np.full(WIDTH, -np.inf)

#: Attempts to find a bound before a level gets fewer lanes than its target.
_ATTEMPTS = 48

#: Below all errors but that of an exhausted class, which is minus infinity.
_LOWEST = -1.7e308

#: Lanes of a level per lane of the next one: measured, with a flat optimum.
_RATIO = 10.0


class _Arrays(NamedTuple):
    """The arrays of a blend: lanes of all levels, levels and classes."""

    #: Shape (lanes,) each: weight and count of draws; room for errors; lane of the previous level;
    #: class.
    weight: Float64Array
    counts: Float64Array
    late: Float64Array
    parent: Int64Array
    group: Int64Array
    #: Shape (levels, 5) each; columns below.
    levels: Int64Array
    lines: Float64Array
    #: Shape (classes, 4); columns below.
    classes: Int64Array
    #: Shape (datasets,): the members of all classes.
    members: Int32Array
    #: Shape (classes,) each: the member to draw next, its count, and the count below which a draw
    #: changes nothing else.
    name: Int32Array
    taken: Int64Array
    plain: Int64Array


# Columns of levels: first lane, number of lanes, bounds of the window, target number of lanes.
OFFSET, SIZE, START, STOP, TARGET = range(5)
# Columns of their lines: error at a position, rise per position, that position, upper limit, and
# the bound that selected the lanes.
FLOOR, RISE, ORIGIN, CEILING, GUESS = range(5)
# Columns of classes: members drawn in this turn, members, first member, samples of each.
TURN, MEMBERS, BASE, LIMIT = range(4)


@inline
def _find_line(lines: Float64Array, depth: int, now: float) -> float:
    """Return the line above all excluded lanes."""
    line: float = lines[depth, FLOOR] + lines[depth, RISE] * (now - lines[depth, ORIGIN])
    ceiling: float = lines[depth, CEILING]
    return min(line, ceiling)


@inline
def _choose_bound(
    late: Float64Array, size: int, target: int, guess: float, largest: float
) -> float:
    """Return a bound reached by nearly as many errors as the target, and never more."""
    low, high, bound = -np.inf, np.inf, guess
    above: Any = size
    below: Any = 0
    goal = target - (target >> 3)
    enough = target - (target >> 2)
    seed: Any = size
    for attempt in range(_ATTEMPTS):
        reached: Any = 0
        for k in range(0, size, WIDTH):
            reached += count_bits(find_reaching(load_lanes(late, k), bound))
        if reached > target:
            low, above = bound, reached
        else:
            high, below = bound, reached
            if reached >= enough:
                break
        # Interpolate, or take the error of a random lane if errors are too uneven for that.
        upper = min(high, largest)
        if low == -np.inf:
            bound = largest - (largest - upper) * (goal / max(below, 1))
        else:
            bound = low + (upper - low) * ((above - goal) / (above - below))
        if attempt & 1 or not low < bound < high:
            for _ in range(8):
                seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
                bound = late[(seed * size) >> 31]
                if low < bound < high:
                    break
        if not low < bound < high:
            bound = 0.5 * (low + upper)
            if not low < bound < high:
                break
    return high


@inline
def _draw_line(
    lines: Float64Array, depth: int, first: float, last: float,
    floor: float, ceiling: float, heaviest: float,
) -> None:  # fmt: skip
    """Set the line of a level above the lanes excluded by it and by earlier levels."""
    before = depth - 1
    outer = lines[before, FLOOR] + lines[before, RISE] * (first - lines[before, ORIGIN])
    outer_last = outer + lines[before, RISE] * (last - first)
    lines[depth, CEILING] = max(ceiling, min(lines[before, CEILING], outer_last))
    if floor > -np.inf:
        # Four times the rounding error of product and difference, at both ends and in between.
        slack = 2.0**-50 * (heaviest * last + abs(floor) + abs(ceiling)) + 1e-300
        outer = max(outer, floor + slack)
        outer_last = max(outer_last, ceiling + slack)
    lines[depth, FLOOR] = outer
    lines[depth, ORIGIN] = first
    lines[depth, RISE] = 0.0
    if last > first and outer > -np.inf:
        lines[depth, RISE] = (outer_last - outer) / (last - first)


@inline
def _open(blend: _Arrays, depth: int, position: int) -> bool:
    """Open a level at a position, unless the previous level has no certain draw there."""
    weight, count, group, late = blend.weight, blend.counts, blend.group, blend.late
    parent, levels, lines = blend.parent, blend.levels, blend.lines
    here, there, size = levels[depth - 1, OFFSET], levels[depth, OFFSET], levels[depth - 1, SIZE]
    target = levels[depth, TARGET]
    stop = min(levels[depth - 1, STOP], position + target - (target >> 2))
    first, last = float(max(position, 1)), float(max(stop - 1, 1))
    none = load_lanes(NO_LANES, 0)
    floors, ceilings, heavy = none, none, none
    for k in range(0, size, WIDTH):
        some, given = load_lanes(weight, here + k), load_lanes(count, here + k)
        end = find_errors(some, given, last)
        floors = raise_lanes(floors, find_errors(some, given, first), 0)
        ceilings = raise_lanes(ceilings, end, 0)
        store_lanes(late, k, end)
    if find_largest(floors) <= _find_line(lines, depth - 1, first):
        return False
    bound = _LOWEST
    if size > target:
        largest = find_largest(ceilings)
        bound = _choose_bound(late, size, target, lines[depth, GUESS], largest)
    lines[depth, GUESS] = bound
    floors, ceilings = none, none
    kept: Any = 0
    for k in range(0, size, WIDTH):
        some, given = load_lanes(weight, here + k), load_lanes(count, here + k)
        end = load_lanes(late, k)
        bits = find_reaching(end, bound)
        floors = raise_lanes(floors, find_errors(some, given, first), bits)
        ceilings = raise_lanes(ceilings, end, bits)
        heavy = raise_lanes(heavy, some, bits)
        while bits:
            parent[np.uint64(there + kept)] = here + k + find_bit(bits)
            bits &= bits - 1
            kept += 1
    for k in range(there, there + kept):
        lane, source = np.uint64(k), np.uint64(parent[np.uint64(k)])
        weight[lane], count[lane], group[lane] = weight[source], count[source], group[source]
    for k in range(there + kept, there + max((kept + WIDTH - 1) & -WIDTH, WIDTH)):
        weight[k] = 0.0
        count[k] = np.inf
    levels[depth, SIZE], levels[depth, START], levels[depth, STOP] = kept, position, stop
    _draw_line(
        lines, depth, first, last, find_largest(floors), find_largest(ceilings), find_largest(heavy)
    )
    return True


@inline
def _close(blend: _Arrays, depth: int) -> int:
    """Copy the counts of a level back to the previous level, and return its depth."""
    here = blend.levels[depth, OFFSET]
    for k in range(here, here + blend.levels[depth, SIZE]):
        lane = np.uint64(k)
        blend.counts[np.uint64(blend.parent[lane])] = blend.counts[lane]
    return depth - 1


@inline
def _turn(blend: _Arrays, which: int) -> float:
    """Advance the turn of a class; return its new count, infinite if it is exhausted."""
    classes, taken = blend.classes, blend.taken
    turn = classes[which, TURN] + 1
    if turn == classes[which, MEMBERS]:
        turn = 0
        taken[which] += 1
    classes[which, TURN] = turn
    blend.name[which] = blend.members[classes[which, BASE] + turn]
    return float(taken[which]) if taken[which] < classes[which, LIMIT] else np.inf


@inline
def _draw_one(
    blend: _Arrays, depth: int, position: int, dataset: Int32Array, sample: Int64Array, done: int
) -> bool:
    """Draw for one position from all lanes of a level, unless an excluded lane may be better."""
    now = float(max(position, 1))
    here = blend.levels[depth, OFFSET]
    best = -np.inf
    found: Any = -1
    lowest: Any = 0
    for k in range(here, here + blend.levels[depth, SIZE]):
        error = blend.weight[k] * now - blend.counts[k]
        if error >= best and error > -np.inf:
            member = blend.name[blend.group[k]]
            if error > best or member < lowest:
                best, found, lowest = error, k, member
    if best <= _find_line(blend.lines, depth, now):
        return False
    which = blend.group[found]
    dataset[done] = lowest
    sample[done] = blend.taken[which]
    blend.counts[found] = _turn(blend, which)
    return True


@inline
def _draw_window(
    blend: _Arrays, depth: int, position: int, dataset: Int32Array, sample: Int64Array, done: int
) -> int:
    """Draw from the lanes of the last level while draws are certain; return the number done."""
    group, name, taken, plain = blend.group, blend.name, blend.taken, blend.plain
    here, stop = blend.levels[depth, OFFSET], blend.levels[depth, STOP]
    floor, rise = blend.lines[depth, FLOOR], blend.lines[depth, RISE]
    origin, ceiling = blend.lines[depth, ORIGIN], blend.lines[depth, CEILING]
    some, given = load_lanes(blend.weight, here), load_lanes(blend.counts, here)
    error = find_errors(some, given, float(max(position, 1)))
    while position < stop:
        after = float(position + 1)
        top, bits, next_error, next_given = draw_largest(error, some, given, after)
        if top <= min(ceiling, floor + rise * (float(max(position, 1)) - origin)):
            break
        lane = find_bit(bits)
        tied = bits & (bits - 1)
        equal = tied
        while equal:
            other = find_bit(equal)
            equal &= equal - 1
            if name[group[here + other]] < name[group[here + lane]]:
                lane = other
        which = group[here + lane]
        number = taken[which]
        dataset[done] = name[which]
        sample[done] = number
        if number < plain[which] and tied == 0:
            taken[which] = number + 1
            error, given = next_error, next_given
        else:
            given = set_lane(given, lane, _turn(blend, which))
            error = find_errors(some, given, after)
        position += 1
        done += 1
    store_lanes(blend.counts, here, given)
    return done


@jit
def run_blend(blend: _Arrays, start: int, dataset: Int32Array, sample: Int64Array) -> None:
    """Draw for all outputs, from position ``start`` on."""
    blend, dataset, sample = lend(blend), lend(dataset), lend(sample)
    levels = blend.levels
    deepest = levels.shape[0] - 1
    depth: Any = 0
    done: Any = 0
    levels[0, STOP] = start + dataset.size
    while done < dataset.size:
        position = start + done
        while depth > 0 and position >= levels[depth, STOP]:
            depth = _close(blend, depth)
        if depth < deepest and _open(blend, depth + 1, position):
            depth += 1
            continue
        if depth == deepest:
            done = _draw_window(blend, depth, position, dataset, sample, done)
        # No certain draw is left in this level. If it never had one, reopening it is pointless.
        stuck = levels[depth, START] == start + done
        if depth > 0:
            depth = _close(blend, depth)
        if stuck:
            while not _draw_one(blend, depth, position, dataset, sample, done):
                depth = _close(blend, depth)
            done += 1
    while depth > 0:
        depth = _close(blend, depth)


class BlendState:
    """State of a blend: its classes, their levels and counts."""

    def __init__(self, weights: Float64Array, counts: Int64Array, sizes: Int64Array | None) -> None:
        keys = weights if sizes is None else sizes
        members = np.argsort(-keys, kind="stable")
        keys, drawn = keys[members], counts[members]
        starts = np.ones(members.size, np.bool_)
        starts[1:] = keys[1:] != keys[:-1]
        # Members of equal weight form a class if those with one more draw are first; else none.
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
        lanes = (weights[members[first]], count)
        self.arrays = _make_arrays(*lanes, self.classes, self.members, name, self.taken, plain)

    def run(self, start: int, dataset: Int32Array, sample: Int64Array) -> None:
        """Draw for all outputs, from position ``start`` on."""
        run_blend(self.arrays, start, dataset, sample)

    def finish(self) -> None:
        """Write the counts back to the caller's array."""
        self.counts[self.members] = self.taken[self.group] + (
            self.place < self.classes[self.group, TURN]
        )


def _make_arrays(weights: Float64Array, counts: Float64Array, *classes: Any) -> _Arrays:
    """Return classes with the lanes of the first level, and room for the other levels."""
    size = weights.size
    depth = int(np.ceil(max(np.log(size / WIDTH), 0.0) / np.log(_RATIO)))
    ratio = (size / WIDTH) ** (1 / max(depth, 1))
    targets = [int(WIDTH * ratio**k) for k in range(depth - 1, -1, -1)]
    # Vector loads may exceed the end of a level.
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
    return _Arrays(weight, count, late, parent, group, levels, lines, *classes)
