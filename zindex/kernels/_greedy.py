"""The kernels of the greedy blend: classes of datasets, their calendar, the lanes of the active.

Datasets of one weight form a class that takes turns. Only classes whose error may reach a bound are
active and have a lane; all others are filed in a calendar under the block of positions in which
their error reaches it. Inside a block the errors of lanes are fixed point numbers of 32 or 64 bits
with the lane in their low bits, so that a maximum names its lane. The approximation never decides:
where another lane is as near as it may err, or the best falls below the bound, the errors are
evaluated as `blend` defines them. What is public, and all checks, are in `blend`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.kernels._jit import inline, jit
from zindex.kernels._lend import lend

IntegerArray = npt.NDArray[np.integer[Any]]
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
Float64Array = npt.NDArray[np.float64]

SHORT = 128
"""Lanes that 32-bit errors have room for; as many classes are always active."""

_SHORT_CLASSES = 4096
"""Above this many classes, 32 bits no longer tell neighbouring errors apart."""

_SHORT_SCALE, _SHORT_BITS = 2.0**22, 7
_LONG_SCALE, _LONG_BITS = 2.0**38, 21
"""Units of one sample in an error, and the low bits that hold the lane."""

_REACH = 2.0
"""Errors of lanes are cut off this far from the anchor, the largest error."""

_PATIENCE = 32
"""Blocks between two attempts to raise the bound."""

# Columns of the table of classes, and of how their members take turns.
WEIGHT, INVERSE, COUNT, LIMIT = range(4)
TURN, SIZE, BASE, LINK = range(4)
# Entries of the state's integers (the lanes picked in this block follow the last) and reals.
ACTIVE, BLOCK, RETRY, FAILED, TARGET, SHIFT, PICKED = range(7)
BOUND, DELTA, ANCHOR, HEAVIEST = range(4)
# What becomes of a class: its error falls, stays until all members had a turn, or counts no more.
_COUNTED, _TURNED, _SPENT = range(3)


@inline
def _file(
    table: Float64Array, order: Int64Array, head: Int64Array, number: Int64Array,
    bound: float, group: int, block: int,
) -> None:  # fmt: skip
    """File a class that stays below the bound in a block under a later one, never too late."""
    count = table[group, COUNT]
    if count == np.inf:
        return
    inverse = table[group, INVERSE]
    slack = (count + abs(bound)) * inverse * 2.0**-48 + 1.0
    shift = number[SHIFT]
    last = block + head.size - 1
    release = min(max((count + bound) * inverse - slack, 0.0), float(last << shift))
    bucket = min(max(np.int64(release) >> shift, block + 1), last) & (head.size - 1)
    order[group, LINK] = head[bucket]
    head[bucket] = group


@inline
def _activate(
    table: Float64Array, lanes: Float64Array, owner: Int64Array, short_step: Int32Array,
    long_step: Int64Array, number: Int64Array, group: int,
) -> None:  # fmt: skip
    """Give a class a lane."""
    lane = number[ACTIVE]
    weight = table[group, WEIGHT]
    owner[lane] = group
    lanes[0, lane] = weight
    lanes[1, lane] = table[group, COUNT]
    long_step[lane] = np.int64(weight * _LONG_SCALE) << _LONG_BITS
    if lane < SHORT:
        short_step[lane] = np.int32(np.int64(weight * _SHORT_SCALE) << _SHORT_BITS)
    number[ACTIVE] = lane + 1


@inline
def _remove(
    lanes: Float64Array, owner: Int64Array, short_step: Int32Array, long_step: Int64Array,
    number: Int64Array, lane: int,
) -> None:  # fmt: skip
    """Give a lane to the class in the last one, which becomes one that never wins."""
    number[ACTIVE] -= 1
    last = number[ACTIVE]
    owner[lane] = owner[last]
    lanes[0, lane] = lanes[0, last]
    lanes[1, lane] = lanes[1, last]
    long_step[lane] = long_step[last]
    if lane < SHORT:
        weight = lanes[0, last]
        short_step[lane] = np.int32(np.int64(weight * _SHORT_SCALE) << _SHORT_BITS)
    if last < SHORT:
        short_step[last] = 0
    long_step[last] = 0
    lanes[0, last] = 0.0
    lanes[1, last] = np.inf


@inline
def _choose_bound(
    error: Float64Array, number: Int64Array, real: Float64Array, size: int, top: float
) -> None:
    """Set the bound so that about as many errors as wanted reach it."""
    target = number[TARGET]
    for _ in range(10):
        bound = top - real[DELTA]
        real[BOUND] = bound
        reached: Any = 0
        for k in range(size):
            reached += np.int64(error[k] >= bound)
        if reached > target + (target >> 2):
            real[DELTA] = max(real[DELTA] * max(0.25, target / reached), 1e-7)
        elif reached < target - (target >> 2) and reached < size:
            real[DELTA] *= min(4.0, target / max(reached, 1))
        else:
            break


@jit
def _refile(
    table: Float64Array, order: Int64Array, head: Int64Array, error: Float64Array,
    lanes: Float64Array, owner: Int64Array, short_step: Int32Array, long_step: Int64Array,
    number: Int64Array, real: Float64Array, position: int,
) -> None:  # fmt: skip
    """Choose a bound below the largest error at a position and file every class anew."""
    block = position >> number[SHIFT]
    now = float(max(position, 1))
    last = float(((block + 1) << number[SHIFT]) - 1)
    while number[ACTIVE] > 0:
        _remove(lanes, owner, short_step, long_step, number, number[ACTIVE] - 1)
    head[:] = -1
    number[PICKED] = 0
    number[BLOCK] = block
    classes = table.shape[0]
    top = -np.inf
    unspent: Any = 0
    for k in range(classes):
        error[k] = table[k, WEIGHT] * last - table[k, COUNT]
        top = max(top, table[k, WEIGHT] * now - table[k, COUNT])
        unspent += np.int64(table[k, COUNT] != np.inf)
    real[ANCHOR] = top
    if unspent <= SHORT:
        real[BOUND] = -np.inf
        number[RETRY] = 2**62
    else:
        _choose_bound(error, number, real, classes, top)
        number[RETRY] = block + _PATIENCE
    for k in range(classes):
        if error[k] == -np.inf:
            continue
        if error[k] >= real[BOUND]:
            _activate(table, lanes, owner, short_step, long_step, number, k)
        else:
            _file(table, order, head, number, real[BOUND], k, block)


@inline
def _turn_block(
    table: Float64Array, order: Int64Array, head: Int64Array, error: Float64Array,
    lanes: Float64Array, owner: Int64Array, short_step: Int32Array, long_step: Int64Array,
    number: Int64Array, real: Float64Array, position: int,
) -> None:  # fmt: skip
    """Enter a block: file the classes picked in the last one, release those due in this one."""
    block = position >> number[SHIFT]
    last = float(((block + 1) << number[SHIFT]) - 1)
    bound = real[BOUND]
    number[BLOCK] = block
    for k in range(number[PICKED]):
        lane = number[PICKED + 1 + k]
        if lane < number[ACTIVE]:
            reach = lanes[0, lane] * last - lanes[1, lane]
            if reach < bound or reach == -np.inf:
                _file(table, order, head, number, bound, owner[lane], block)
                _remove(lanes, owner, short_step, long_step, number, lane)
    number[PICKED] = 0
    bucket = block & (head.size - 1)
    group = head[bucket]
    head[bucket] = -1
    while group >= 0:
        following = order[group, LINK]
        if table[group, WEIGHT] * last - table[group, COUNT] >= bound:
            _activate(table, lanes, owner, short_step, long_step, number, group)
        else:
            _file(table, order, head, number, bound, group, block)
        group = following
    if number[ACTIVE] <= 2 * number[TARGET] or block < number[RETRY]:
        return
    # Too many are active: raise the bound. Where errors lie too close together for that, it takes
    # some time until another attempt can succeed.
    active = number[ACTIVE]
    now = float(max(position, 1))
    top = -np.inf
    for lane in range(active):
        error[lane] = lanes[0, lane] * last - lanes[1, lane]
        top = max(top, lanes[0, lane] * now - lanes[1, lane])
    _choose_bound(error, number, real, active, top)
    number[RETRY] = block + _PATIENCE
    real[BOUND] = max(real[BOUND], bound)
    for lane in range(active - 1, -1, -1):
        if error[lane] < real[BOUND]:
            _file(table, order, head, number, real[BOUND], owner[lane], block)
            _remove(lanes, owner, short_step, long_step, number, lane)


@jit
def _find_best(
    order: Int64Array, members: Int32Array, lanes: Float64Array, owner: Int64Array,
    number: Int64Array, bound: float, position: int,
) -> int:  # fmt: skip
    """Return the lane to draw from as defined, or -1 if a class without a lane may be better."""
    now = float(max(position, 1))
    best = -np.inf
    found = -1
    lowest: Any = 0
    for lane in range(number[ACTIVE]):
        error = lanes[0, lane] * now - lanes[1, lane]
        if error >= best and error != -np.inf:
            group = owner[lane]
            member = np.int64(members[order[group, BASE] + order[group, TURN]])
            if error > best or member < lowest:
                best, found, lowest = error, lane, member
    return found if best >= bound else -1


@inline
def _fill_values(
    lanes: Float64Array, value: IntegerArray, scale: float, bits: int, anchor: float,
    position: int, width: int, heavy: float,
) -> tuple[Any, bool]:  # fmt: skip
    """Write the errors of lanes at a position; return the largest and whether all may be trusted.

    A lane cut off at the lower end must not be heavy enough to come back within the block.
    """
    now = float(max(position, 1))
    cut: Any = np.int64(0)
    top: Any = np.int64(-(2**62))
    for lane in range(width):
        error = (lanes[0, lane] * now - lanes[1, lane]) - anchor
        cut += np.int64((error < -_REACH) & (lanes[0, lane] > heavy))
        error = error if error > -_REACH else -_REACH
        error = error if error < _REACH else _REACH
        units = (np.int64(error * scale) << bits) | lane
        value[lane] = units
        top = max(top, units)
    return top, bool(cut == 0)


@inline
def _draw(
    table: Float64Array, order: Int64Array, members: Int32Array, lanes: Float64Array,
    group: int, lane: int, dataset: Int32Array, sample: Int64Array, offset: int,
) -> int:  # fmt: skip
    """Write the draw of a class, count it, and return what became of the class."""
    turn = order[group, TURN]
    count = table[group, COUNT]
    dataset[offset] = members[order[group, BASE] + turn]
    sample[offset] = np.int64(count)
    outcome = _TURNED
    if turn + 1 < order[group, SIZE]:
        order[group, TURN] = turn + 1
    else:
        order[group, TURN] = 0
        count = count + 1.0
        outcome = _COUNTED
        if count >= table[group, LIMIT]:
            count = np.inf
            outcome = _SPENT
        table[group, COUNT] = count
        lanes[1, lane] = count
    return outcome


@inline
def _run_lanes(
    table: Float64Array, order: Int64Array, members: Int32Array, lanes: Float64Array,
    owner: Int64Array, value: IntegerArray, step: IntegerArray, scale: float, bits: int,
    number: Int64Array, real: Float64Array, position: int, dataset: Int32Array, sample: Int64Array,
) -> int:  # fmt: skip
    """Draw for up to as many positions of one block as there are outputs; return for how many."""
    kind = value.dtype.type
    count = dataset.size
    active = number[ACTIVE]
    width = (active + 31) & ~31
    heavy = 0.5 / float(1 << number[SHIFT])
    bound, anchor = real[BOUND], real[ANCHOR]
    wide_top, trusted = _fill_values(lanes, value, scale, bits, anchor, position, width, heavy)
    if abs(float(wide_top >> bits)) > 0.5 * scale:
        anchor = -np.inf
        for k in range(active):
            anchor = max(anchor, lanes[0, k] * float(max(position, 1)) - lanes[1, k])
        wide_top, trusted = _fill_values(lanes, value, scale, bits, anchor, position, width, heavy)
    # How far a value may be from the error as defined: one unit for each truncation, and roundings.
    noise = 2.0**-50 * (real[HEAVIEST] * float(position + count) + abs(anchor) + 4.0)
    units = np.int64(min(noise, 0.5) * scale) + count + 3
    lowest = min(max(bound - anchor, -1.0), 1.0) if trusted else 1.5
    floor = kind((np.int64(lowest * scale) + units) << bits)
    ceiling = kind(np.int64(scale) << bits)
    tolerance = kind((2 * units) << bits)
    one, least = ceiling, kind(-3 * (np.int64(scale) << bits))
    mask = kind((1 << bits) - 1)
    zero, unit = kind(0), kind(1)
    top = kind(wide_top)
    picked = number[PICKED]
    done = 0
    while done < count and top <= ceiling:
        lane: Any = np.int64(top & mask)
        near_top = kind(top - tolerance)
        near = zero
        following = least
        for k in range(width):
            error = value[k]
            near = kind(near + (unit if error > near_top else zero))
            error = kind(kind(error - (one if error == top else zero)) + step[k])
            value[k] = error
            following = max(following, error)
        again = False
        if near > 1 or top < floor:
            better = _find_best(order, members, lanes, owner, number, bound, position + done)
            if better < 0:
                number[FAILED] = 1
                break
            if better != lane:
                value[lane] += one
                value[better] -= one
                lane = better
                again = True
        number[PICKED + 1 + picked] = lane
        picked += 1
        outcome = _draw(table, order, members, lanes, owner[lane], lane, dataset, sample, done)
        if outcome == _TURNED:
            value[lane] += one
            following = max(following, value[lane])
        elif outcome == _SPENT:
            value[lane] = least
            step[lane] = zero
            again = True
        if again:
            following = least
            for k in range(width):
                following = max(following, value[k])
        top = following
        done += 1
    real[ANCHOR] = anchor + float(top >> bits) / scale
    number[PICKED] = picked
    return done


@jit
def run_blend(
    table: Float64Array, order: Int64Array, members: Int32Array, head: Int64Array,
    error: Float64Array, lanes: Float64Array, owner: Int64Array, short_value: Int32Array,
    short_step: Int32Array, long_value: Int64Array, long_step: Int64Array, number: Int64Array,
    real: Float64Array, start: int, dataset: Int32Array, sample: Int64Array,
) -> None:  # fmt: skip
    """Draw for as many positions as there are outputs, from ``start`` on."""
    table, order, members, head = lend(table), lend(order), lend(members), lend(head)
    error, lanes, owner = lend(error), lend(lanes), lend(owner)
    short_value, short_step = lend(short_value), lend(short_step)
    long_value, long_step = lend(long_value), lend(long_step)
    number, real, dataset, sample = lend(number), lend(real), lend(dataset), lend(sample)
    done = 0
    count = dataset.size
    shift = number[SHIFT]
    while done < count:
        position = start + done
        block = position >> shift
        if number[FAILED] or number[ACTIVE] == 0:
            number[FAILED] = 0
            _refile(
                table, order, head, error, lanes, owner, short_step, long_step, number, real,
                position,
            )  # fmt: skip
        elif block != number[BLOCK]:
            _turn_block(
                table, order, head, error, lanes, owner, short_step, long_step, number, real,
                position,
            )  # fmt: skip
        # Positions 0 and 1 have the same factor, so errors stand still between them.
        stop = done + 1 if position == 0 else min(count, ((block + 1) << shift) - start)
        if number[ACTIVE] <= SHORT and table.shape[0] <= _SHORT_CLASSES:
            done += _run_lanes(
                table, order, members, lanes, owner, short_value, short_step, _SHORT_SCALE,
                _SHORT_BITS, number, real, position, dataset[done:stop], sample[done:stop],
            )  # fmt: skip
        else:
            done += _run_lanes(
                table, order, members, lanes, owner, long_value, long_step, _LONG_SCALE,
                _LONG_BITS, number, real, position, dataset[done:stop], sample[done:stop],
            )  # fmt: skip
