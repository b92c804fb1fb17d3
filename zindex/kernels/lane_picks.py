"""Pick the sources of one lane of several, so that each lane and all together keep the shares."""

import numpy as np

from zindex.arrays import BoolArray, Float64Array, Int64Array
from zindex.kernels._jit import inline, jit

#: Shares and lags are in 2**-55 of a sample.
LAG_BITS = 55
_ONE = 1 << LAG_BITS
_NEVER = (1 << 63) - 1
# Bits of a source and of a lag in a key, and the most steps to a deadline that it has.
_SOURCE_BITS, _KEY_BITS = 20, 24
_LAG_SHIFT = LAG_BITS - _KEY_BITS
_MAX_LATER = (1 << 19) - 1
# An entry is the picks of one source in one step. Its columns: the picks of the source up to it, of
# these and of its own those of the first half, and the entries of the source before and after it.
_TOTAL, _FIRST, _GIVEN, _PREVIOUS, _FOLLOWING = range(5)
# Nodes of paths are entries, and steps, numbered after them. Their columns: the last search that
# found a node, and the node before it. The third one is the queue.
_FOUND, _PARENT, _QUEUE = range(3)
# Picks of a source that a half may have more or fewer than its proportion, rounded down.
_MAX_UNEVEN = 3


@jit
def count_picks(
    whole: Int64Array,
    parts: Int64Array,
    num_lanes: int,
    lags: Int64Array,
    num_steps: int,
    sources: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
    num_left: int,
    following: Int64Array,
) -> None:
    """Find the picks of each source by all lanes together, for some steps: the earliest deadlines.

    Parameters
    ----------
    whole, parts
        Shape (sources,), int64: picks of each source in a step, whole ones and the rest in 2**-55.
    num_lanes
        Lanes, each of which picks one source in each step.
    lags
        Shape (sources,), int64: the picks that each source lacks, in 2**-55; the sum is 0. Those
        after `num_steps` are stored.
    num_steps
        Steps after which the lags are stored.
    sources, numbers
        Shape (steps, columns), int64. Filled with the sources of each step and their picks.
    lengths
        Shape (steps,), int64. Filled with the columns of each step.
    num_left
        Steps until the rates change, at least those of `lengths`.
    following
        Shape (sources,), int64: then, the picks of each source in a step, in 2**-55, at most 1.

    Notes
    -----
    Law: after each step, the absolute lag of each source is below 1, if all were 0 at first.
    Source: proportionate fair scheduling, earliest deadline first (Baruah, Cohen, Plaxton, Varvel
    1996).
    """
    num_sources = len(whole)
    now = lags.copy()
    keys = np.empty(num_sources, np.int64)
    counts = np.empty(num_sources, np.int64)
    for row in range(len(lengths)):
        left = num_lanes
        for source in range(num_sources):
            lag = now[source] + parts[source]
            number = whole[source] + (lag >> LAG_BITS)
            number = max(number, 0)
            lag -= (number - whole[source]) << LAG_BITS
            left -= number
            now[source], counts[source] = lag, number
        step = 1 if left >= 0 else -1
        if left != 0:
            for source in range(num_sources):
                key, lag = _NEVER, now[source]
                if step < 0:
                    if counts[source] > 0:
                        key = ((lag + _ONE) >> (_LAG_SHIFT + 1) << _SOURCE_BITS) + source
                elif lag > 0:
                    later = 1
                    left_then = num_left - row - 1
                    if whole[source] == 0:
                        later = min((_ONE - 1 - lag) // parts[source] + 1, _MAX_LATER)
                    if later > left_then:
                        later = left_then + _MAX_LATER
                        if following[source] > 0:
                            lag_then = lag + left_then * parts[source]
                            later = (_ONE - 1 - lag_then) // following[source] + 1 + left_then
                        later = min(later, _MAX_LATER)
                    key = (later << _KEY_BITS) + ((_ONE - lag) >> _LAG_SHIFT)
                    key = (key << _SOURCE_BITS) + source
                keys[source] = key
            last = keys.min() if left == 1 else np.sort(keys)[abs(left) - 1]
            for source in range(num_sources):
                if keys[source] <= last:
                    counts[source] += step
                    now[source] -= step << LAG_BITS
        place = 0
        for source in range(num_sources):
            if counts[source] > 0:
                sources[row, place], numbers[row, place] = source, counts[source]
                place += 1
        lengths[row] = place
        if row == num_steps - 1:
            lags[:] = now


@jit
def halve_picks(
    size: int,
    is_second: bool,
    rates: Float64Array,
    counts: tuple[Int64Array, Int64Array],
    num_steps: int,
    num_firm: int,
    sources: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
) -> tuple[int, int]:
    """Divide the picks of some lanes between their halves, and keep those of one half.

    Each half has, of the first picks of a source, its proportion, rounded up or down, and one for
    each of its lanes in every step. Where a step has too many picks for a half, picks of other
    steps change halves, too, along the shortest such path.

    Parameters
    ----------
    size
        Lanes, >= 2. The smaller half is first.
    is_second
        Whether to keep the second half.
    rates
        Shape (sources,), float64: picks of each source in a step of all lanes.
    counts
        Picks of each source before, modulo the lanes, and of these, those of the first half: each
        of shape (sources,), int64. Those after `num_steps` are stored.
    num_steps
        Steps after which counts are stored.
    num_firm
        Steps that must be divided, >= `num_steps`. Later ones are considered, as long as they can
        be divided.
    sources, numbers, lengths
        Picks of each step, as of `count_picks`. Replaced by those of the half.

    Returns
    -------
    num_rows
        Steps that were divided, at least `num_firm`.
    num_forced
        Picks that a half has too many or too few, because the path would change earlier steps.

    Notes
    -----
    Law: if all steps are divided at once, no pick is forced. The proportions themselves are a flow
    between steps and sources, so there is one of whole numbers (controlled rounding, Cox and Ernst
    1982). Then a lane's picks of a source are those of all lanes divided by their number, rounded
    up or down. Cost: O(steps * columns) if few picks change halves.
    """
    num_rows, width = sources.shape
    entries = np.empty((num_rows * width, 5), np.int64)
    nodes = np.zeros((len(entries) + num_rows, 3), np.int64)
    last_entry = np.full(len(rates), -1)
    is_loose = rates >= rates.max() / 4
    num_forced = search = 0
    for row in range(num_rows):
        left = _round_step(size, row, counts, sources, numbers, lengths, entries, last_entry)
        while left != 0:
            # Move a pick out of the first half if there are too many, otherwise into it.
            change = -1 if left < 0 else 1
            left -= change
            end = -1
            for is_wide in range(2 if row < num_firm else 1):
                if end < 0:
                    search += 1
                    end = _find_path(
                        size,
                        row,
                        change,
                        search,
                        is_wide,
                        is_loose,
                        sources,
                        numbers,
                        lengths,
                        entries,
                        nodes,
                    )
            if end >= 0:
                _move_pick(row, end, change, entries, nodes)
            elif row < num_firm:
                _force_pick(row, change, rates, sources, numbers, lengths, entries)
                num_forced += 1
            else:
                num_rows = row  # too far ahead to matter
                break
        if num_rows == row:
            break
    _store_counts(size, num_steps * width, counts, entries, last_entry)
    _keep_half(num_rows, is_second, sources, numbers, lengths, entries)
    return num_rows, num_forced


@inline
def _round_step(
    size: int,
    row: int,
    counts: tuple[Int64Array, Int64Array],
    sources: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
    entries: Int64Array,
    last_entry: Int64Array,
) -> int:
    """Round the picks of the first half in a step; return how many more it needs."""
    seen, taken = counts
    start, first = row * numbers.shape[1], size // 2
    left = first
    for place in range(lengths[row]):
        source, number = sources[row, place], numbers[row, place]
        entry, before = start + place, last_entry[source]
        if before >= 0:
            total, part = entries[before, _TOTAL], entries[before, _FIRST]
            entries[before, _FOLLOWING] = entry
        else:
            total, part = seen[source], taken[source]
        entries[entry, _PREVIOUS], entries[entry, _FOLLOWING] = before, -1
        last_entry[source] = entry
        total += number
        least = min(max(total * first // size - part, 0), number)
        entries[entry, _TOTAL], entries[entry, _FIRST] = total, part + least
        entries[entry, _GIVEN] = least
        left -= least
    for place in range(lengths[row]):
        if left <= 0:
            break
        entry = start + place
        is_below = entries[entry, _FIRST] * size < entries[entry, _TOTAL] * first
        if is_below and entries[entry, _GIVEN] < numbers[row, place]:
            entries[entry, _GIVEN] += 1
            entries[entry, _FIRST] += 1
            left -= 1
    return int(left)


@jit
def _find_path(
    size: int,
    row: int,
    change: int,
    search: int,
    is_wide: int,
    is_loose: BoolArray,
    sources: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
    entries: Int64Array,
    nodes: Int64Array,
) -> int:
    """Return the last entry of the shortest path along which a step can get a change, or -1."""
    num_entries, width = len(entries), numbers.shape[1]
    nodes[0, _QUEUE], nodes[num_entries + row, _FOUND] = num_entries + row, search
    head, tail = 0, 1
    while head < tail:
        node = nodes[head, _QUEUE]
        head += 1
        if node >= num_entries:
            other = node - num_entries
            for place in range(lengths[other]):
                entry = other * width + place
                if 0 <= entries[entry, _GIVEN] + change <= numbers[other, place]:
                    tail = _add_node(entry, node, search, tail, nodes)
            continue
        other = node // width
        place = node - other * width
        slack = 1 if is_wide and is_loose[sources[other, place]] else 0
        # Change the count of the first half up to an entry.
        before, after = entries[node, _PREVIOUS], entries[node, _FOLLOWING]
        if _can_change(size, change, slack, entries[node, _TOTAL], entries[node, _FIRST]):
            if after < 0:
                return int(node)
            tail = _add_node(after, node, search, tail, nodes)
        if before >= 0 and _can_change(
            size, -change, slack, entries[before, _TOTAL], entries[before, _FIRST]
        ):
            tail = _add_node(before, node, search, tail, nodes)
        if 0 <= entries[node, _GIVEN] - change <= numbers[other, place]:
            tail = _add_node(num_entries + other, node, search, tail, nodes)
    return -1


@jit
def _add_node(node: int, parent: int, search: int, tail: int, nodes: Int64Array) -> int:
    """Append a node to the queue unless it has been found; return the queue's end."""
    if nodes[node, _FOUND] == search:
        return tail
    nodes[node, _FOUND], nodes[node, _PARENT], nodes[tail, _QUEUE] = search, parent, node
    return tail + 1


@jit
def _can_change(size: int, change: int, slack: int, total: int, part: int) -> bool:
    """Return whether the first half may have a changed part of some picks."""
    first, changed = size // 2, part + change
    exact = total * first
    low, past = exact // size, total // size
    rest = total - past * size
    if change < 0:
        least = past * first + max(0, rest - (size - first))
        return changed >= max(least, low - _MAX_UNEVEN) - slack
    most = past * first + min(first, rest)
    return changed <= min(most, low + _MAX_UNEVEN) + slack


@jit
def _move_pick(row: int, end: int, change: int, entries: Int64Array, nodes: Int64Array) -> None:
    """Apply a change to a step along the path that ends with an entry."""
    num_entries = len(entries)
    entries[end, _FIRST] += change
    node = end
    while node != num_entries + row:
        parent = nodes[node, _PARENT]
        if node >= num_entries:
            entries[parent, _GIVEN] -= change
        elif parent >= num_entries:
            entries[node, _GIVEN] += change
        elif parent == entries[node, _PREVIOUS]:
            entries[parent, _FIRST] += change
        else:
            entries[node, _FIRST] -= change
        node = parent


@jit
def _force_pick(
    row: int,
    change: int,
    rates: Float64Array,
    sources: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
    entries: Int64Array,
) -> None:
    """Apply a change to a step alone, to the source of the highest rate that allows it."""
    rate, end = -1.0, -1
    for place in range(lengths[row]):
        entry, source = row * numbers.shape[1] + place, sources[row, place]
        is_open = 0 <= entries[entry, _GIVEN] + change <= numbers[row, place]
        if is_open and rates[source] > rate:
            rate, end = rates[source], entry
    entries[end, _GIVEN] += change
    entries[end, _FIRST] += change


@jit
def _store_counts(
    size: int,
    stop: int,
    counts: tuple[Int64Array, Int64Array],
    entries: Int64Array,
    last_entry: Int64Array,
) -> None:
    """Store the counts after the entries below `stop`."""
    seen, taken = counts
    for source in range(len(seen)):
        entry = last_entry[source]
        while entry >= stop:
            entry = entries[entry, _PREVIOUS]
        if entry >= 0:
            whole_turns = entries[entry, _TOTAL] // size
            seen[source] = entries[entry, _TOTAL] - whole_turns * size
            taken[source] = entries[entry, _FIRST] - whole_turns * (size // 2)


@jit
def _keep_half(
    num_rows: int,
    is_second: bool,
    sources: Int64Array,
    numbers: Int64Array,
    lengths: Int64Array,
    entries: Int64Array,
) -> None:
    """Replace the picks of each step by those of one half."""
    for row in range(num_rows):
        kept = 0
        for place in range(lengths[row]):
            number = entries[row * sources.shape[1] + place, _GIVEN]
            if is_second:
                number = numbers[row, place] - number
            if number > 0:
                sources[row, kept], numbers[row, kept] = sources[row, place], number
                kept += 1
        lengths[row] = kept
