"""Pick the sources of one lane of several, so that each lane and all together keep the shares."""

import numpy as np

from zindex.arrays import Float64Array, Int64Array
from zindex.kernels._jit import jit

#: Shares and lags are in 2**-55 of a sample.
LAG_BITS = 55
_ONE = 1 << LAG_BITS
_NEVER = (1 << 63) - 1
# Bits of a source and of a lag in a key, and the most steps to a deadline that it has.
_SOURCE_BITS, _KEY_BITS = 20, 24
_LAG_SHIFT = LAG_BITS - _KEY_BITS
_MAX_LATER = (1 << 19) - 1


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
                    if whole[source] == 0:
                        later = min((_ONE - 1 - lag) // parts[source] + 1, _MAX_LATER)
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
    seen, taken = counts
    num_rows, width = sources.shape
    num_sources = len(rates)
    first = size // 2
    num_forced = 0
    most = rates.max()
    num_entries = num_rows * width
    totals = np.empty(num_entries, np.int64)
    firsts = np.empty(num_entries, np.int64)
    given = np.empty(num_entries, np.int64)
    following = np.empty(num_entries, np.int64)
    previous = np.empty(num_entries, np.int64)
    last_entry = np.empty(num_sources, np.int64)
    parents = np.empty(num_entries + num_rows, np.int64)
    queue = np.empty(num_entries + num_rows, np.int64)
    found = np.zeros(num_entries + num_rows, np.int64)
    search = 0
    last_entry[:] = -1
    for row in range(num_rows):
        left = first
        num_free = 0
        for place in range(lengths[row]):
            source, number = sources[row, place], numbers[row, place]
            entry = row * width + place
            before = last_entry[source]
            if before >= 0:
                total, part = totals[before], firsts[before]
                following[before] = entry
            else:
                total, part = seen[source], taken[source]
            previous[entry], following[entry] = before, -1
            last_entry[source] = entry
            total += number
            low = total * first // size
            high = low + (1 if low * size < total * first else 0)
            least = min(max(low - part, 0), number)
            given[entry] = least
            left -= least
            totals[entry] = total
            firsts[entry] = part + least
            num_free += 1 if part + least < high and least < number else 0
        for place in range(lengths[row]):
            if left <= 0:
                break
            entry = row * width + place
            number, total, part = numbers[row, place], totals[entry], firsts[entry]
            if given[entry] < number and part * size < total * first:
                given[entry] += 1
                firsts[entry] += 1
                left -= 1
        while left != 0:
            # Move a sample out of the first half if there are too many, otherwise into it.
            step = 1 if left < 0 else -1
            left += step
            end = -1
            for is_wide in range(2):
                if end >= 0:
                    break
                if is_wide and row >= num_firm:
                    break
                search += 1
                queue[0] = num_entries + row
                found[num_entries + row] = search
                head, tail = 0, 1
                while head < tail and end < 0:
                    node = queue[head]
                    head += 1
                    if node >= num_entries:
                        other = node - num_entries
                        for place in range(lengths[other]):
                            entry = other * width + place
                            changed = given[entry] - step
                            if 0 <= changed <= numbers[other, place] and found[entry] < search:
                                found[entry], parents[entry] = search, node
                                queue[tail] = entry
                                tail += 1
                        continue
                    for entry, side in ((node, -step), (previous[node], step)):
                        # Change the count of the first half after an entry.
                        if entry < 0 or (side == step and found[entry] == search):
                            continue
                        total, changed = totals[entry], firsts[entry] + side
                        low = total * first // size
                        high = low + (1 if low * size < total * first else 0)
                        if is_wide:
                            which = sources[entry // width, entry % width]
                            if rates[which] >= most / 4:
                                low -= 1
                                high += 1
                        if (side > 0 and changed > high) or (side < 0 and changed < low):
                            continue
                        if side == step:
                            found[entry], parents[entry] = search, node
                            queue[tail] = entry
                            tail += 1
                        elif following[node] < 0:
                            end = node
                        elif found[following[node]] < search:
                            found[following[node]], parents[following[node]] = search, node
                            queue[tail] = following[node]
                            tail += 1
                    other = node // width
                    changed = given[node] + step
                    if (
                        0 <= changed <= numbers[other, node - other * width]
                        and found[num_entries + other] < search
                    ):
                        found[num_entries + other] = search
                        parents[num_entries + other] = node
                        queue[tail] = num_entries + other
                        tail += 1
            if end < 0 and row >= num_firm:
                num_rows = row  # too far ahead to matter
                break
            if end < 0:
                num_forced += 1
                rate = -1.0
                for place in range(lengths[row]):
                    entry, source = row * width + place, sources[row, place]
                    is_open = 0 <= given[entry] - step <= numbers[row, place]
                    if is_open and rates[source] > rate:
                        rate, end = rates[source], entry
                given[end] -= step
                firsts[end] -= step
                continue
            firsts[end] -= step
            node = end
            while node != num_entries + row:
                parent = parents[node]
                if node >= num_entries:
                    given[parent] += step
                elif parent >= num_entries:
                    given[node] -= step
                elif parent == previous[node]:
                    firsts[parent] -= step
                else:
                    firsts[node] += step
                node = parent
        if num_rows == row:
            break
    for source in range(num_sources):
        entry = last_entry[source]
        while entry >= num_steps * width:
            entry = previous[entry]
        if entry >= 0:
            whole_turns = totals[entry] // size
            seen[source] = totals[entry] - whole_turns * size
            taken[source] = firsts[entry] - whole_turns * first
    for row in range(num_rows):
        kept = 0
        for place in range(lengths[row]):
            number = given[row * width + place]
            if is_second:
                number = numbers[row, place] - number
            if number > 0:
                sources[row, kept], numbers[row, kept] = sources[row, place], number
                kept += 1
        lengths[row] = kept
    return num_rows, num_forced
