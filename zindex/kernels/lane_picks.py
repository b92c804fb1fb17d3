"""Pick the sources of several lanes at once, so that each lane and all together keep the shares."""

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import jit

#: Shares and lags are in 2**-55 of a sample, so that the lags of 64 lanes can be summed.
LAG_BITS = 55
#: Costs are tabulated in steps of a 64th of a sample, up to 3 samples.
COST_BITS = 6
COST_REACH = 3 << COST_BITS
_ONE = 1 << LAG_BITS
_SHIFT = LAG_BITS - COST_BITS
_LAST = 2 * COST_REACH - 1
_FORBIDDEN = -(1 << 60)
_MAX_SWEEPS = 4
# Steps for which deadlines are checked at every step, and at the steps that need it.
_NEAR, _FAR = 8, 64


@jit
def pick_alone(shares: Int64Array, lags: Int64Array, picks: Int64Array) -> None:
    """Pick the sources of a single lane for some steps: the earliest deadline of those it lacks.

    Among equal deadlines, the source that is lacking most is next.

    Parameters
    ----------
    shares, lags
        Shape (sources,), int64, as of `pick_block`. Lags are updated.
    picks
        Shape (steps,), int64. Filled.

    Notes
    -----
    Law: after each step, the absolute lag of each source is below 1. Source: proportionate fair
    scheduling (Baruah, Cohen, Plaxton, Varvel 1996), earliest deadline first.
    """
    for step in range(len(picks)):
        best, earliest = 0, _ONE << 1
        for source in range(len(shares)):
            lag = lags[source] + shares[source]
            lags[source] = lag
            if lag > 0:
                deadline = -((lag - _ONE) // shares[source])
                if deadline < earliest or (deadline == earliest and lag > lags[best]):
                    best, earliest = source, deadline
        lags[best] -= _ONE
        picks[step] = best


@jit
def pick_block(
    shares: Int64Array,
    lags: Int64Array,
    group_lags: Int64Array,
    gains: Int64Array,
    picks: Int64Array,
) -> None:
    """Pick the sources of all lanes for some steps.

    A lane may pick a source that it lacks, and only one that is due if those that are due within
    some steps fill them. Every lane takes the source that lowers the cost of its errors and those
    of the group most; then lanes change or exchange their picks while that lowers the cost.

    Parameters
    ----------
    shares
        Shape (sources,), int64, > 0; the sum is 2**55.
    lags
        Shape (lanes, sources), int64: the picks that each source lacks. Updated.
    group_lags
        Shape (sources,), int64: the same of all lanes together. Updated.
    gains
        Shape (384,), int64: how much a pick lowers the cost, by lag.
    picks
        Shape (steps, lanes), int64. Filled.

    Notes
    -----
    A lane is never a sample ahead. It is late only if far deadlines coincide: by up to a quarter of
    a sample, in one of a million steps; measured. Cost: O(lanes * (sources + lanes)) for each step.
    """
    num_lanes, num_sources = lags.shape
    lane_gains = np.empty((num_lanes, num_sources), np.int64)
    group_gains = np.empty(num_sources, np.int64)
    num_safe = np.zeros(num_lanes, np.int64)
    for step in range(len(picks)):
        for source in range(num_sources):
            group_lags[source] += num_lanes * shares[source]
            place = (group_lags[source] >> _SHIFT) + COST_REACH
            group_gains[source] = gains[min(max(place, 0), _LAST)]
        for lane in range(num_lanes):
            # Jobs due within `later` more steps must not exceed these steps and this one.
            due_within = -1
            slack = _FAR
            num_steps = _NEAR if num_safe[lane] > 0 else _FAR
            for later in range(num_steps):
                num_due = 0
                is_ahead = False
                for source in range(num_sources):
                    lag = lags[lane, source] + (later + 1) * shares[source]
                    num_due += max(lag >> LAG_BITS, 0)
                    is_ahead |= lag < 0
                if num_due > later:
                    due_within = later
                    slack = 0
                    break
                if not is_ahead:
                    slack = 0
                    break  # From here on, no more jobs are due than the shares themselves.
                if later >= _NEAR:
                    slack = min(slack, later + 1 - num_due)
            num_safe[lane] = num_safe[lane] - 1 if num_steps == _NEAR else slack
            for source in range(num_sources):
                lag = lags[lane, source] + shares[source]
                lags[lane, source] = lag
                is_open = lag > 0
                if is_open and due_within >= 0:
                    is_open = lag + due_within * shares[source] >= _ONE
                place = min(max((lag >> _SHIFT) + COST_REACH, 0), _LAST)
                lane_gains[lane, source] = gains[place] if is_open else _FORBIDDEN
        row = picks[step]
        row[:] = -1
        for _ in range(_MAX_SWEEPS):
            changed = False
            for lane in range(num_lanes):
                before = row[lane]
                if before >= 0:
                    group_lags[before] += _ONE
                    place = (group_lags[before] >> _SHIFT) + COST_REACH
                    group_gains[before] = gains[min(max(place, 0), _LAST)]
                best = max(before, 0)
                for source in range(num_sources):
                    gain = lane_gains[lane, source] + group_gains[source]
                    if gain > lane_gains[lane, best] + group_gains[best]:
                        best = source
                group_lags[best] -= _ONE
                place = (group_lags[best] >> _SHIFT) + COST_REACH
                group_gains[best] = gains[min(max(place, 0), _LAST)]
                row[lane] = best
                changed |= best != before
            for lane in range(num_lanes):
                for other in range(lane):
                    one, two = row[lane], row[other]
                    now = lane_gains[lane, one] + lane_gains[other, two]
                    if lane_gains[lane, two] + lane_gains[other, one] > now:
                        row[lane], row[other] = two, one
                        changed = True
            if not changed:
                break
        for lane in range(num_lanes):
            lags[lane, row[lane]] -= _ONE
