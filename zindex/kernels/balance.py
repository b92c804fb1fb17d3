"""Distribution of sub-samples over packs, and of packs over ranks, so that ranks have equal work.

All numbers are whole, so that every rank of a job, on any processor, computes the same packs.
"""

from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import jit
from zindex.kernels.heap import sift_down

# Packs that `spread` and sub-samples that `even_out` visits, for each sub-sample and at least.
_VISITS_PER_SAMPLE, _MIN_VISITS = 16, 1 << 12
# Work that exceeds the mean by this part of it is balanced.
_BALANCED = 2048
# Partners of a sub-sample that are tried on each side of the best one.
_NUM_NEAR = 4


@jit
def pack_in_order(lengths: Int64Array, limit: int, multiple: int, pack_of: Int64Array) -> int:
    """Fill packs with sub-samples in their order, and return the number of packs.

    Parameters
    ----------
    lengths
        Shape (sub-samples,), tokens.
    limit
        Tokens of a pack; a longer sub-sample has a pack of its own.
    multiple
        The number of packs is a multiple of it: the last sub-samples of the last packs are moved to
        packs of their own.
    pack_of
        Shape (sub-samples,): receives the pack of each.

    Returns
    -------
    num_packs
        0 if there are too few sub-samples.

    Notes
    -----
    Source: Megatron Core, ``DpBalancedScheduler``.
    """
    if len(lengths) < multiple:
        return 0
    num_packs, num_tokens = 0, limit + 1
    for i in range(len(lengths)):
        if num_tokens + lengths[i] > limit:
            num_packs += 1
            num_tokens = 0
        pack_of[i] = num_packs - 1
        num_tokens += lengths[i]
    num_missing = -num_packs % multiple
    last = len(lengths) - 1
    while num_missing:
        if last < 1:
            return 0
        if pack_of[last] == pack_of[last - 1]:
            pack_of[last] = num_packs
            num_packs += 1
            num_missing -= 1
        last -= 1
    return num_packs


@jit
def spread(
    lengths: Int64Array,
    work: Int64Array,
    limit: int,
    pack_of: Int64Array,
    tokens: Int64Array,
    load: Int64Array,
) -> bool:
    """Put each sub-sample into the pack with the least work that has room for it.

    Parameters
    ----------
    lengths, work
        Shape (sub-samples,), tokens and work of each, in descending order.
    limit
        Tokens of a pack.
    pack_of
        Shape (sub-samples,): receives the pack of each.
    tokens, load
        Shape (packs,), zeros: receive the tokens and the work of each pack.

    Returns
    -------
    is_complete
        Whether all sub-samples found room, without a search that takes long.

    Notes
    -----
    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969), with a limit.
    """
    size, num_packs = len(lengths), len(load)
    num_visits = max(_VISITS_PER_SAMPLE * size, _MIN_VISITS)
    # As long as there are empty packs, these have the least work.
    num_first = min(size, num_packs)
    for i in range(num_first):
        pack_of[i], tokens[i], load[i] = i, lengths[i], work[i]
    heap = np.arange(num_packs - 1, -1, -1)  # the pack with the least work is first
    for place in range(num_packs // 2 - 1, -1, -1):
        sift_down(heap, num_packs, place, load)
    for i in range(num_first, size):
        place = 0
        if tokens[heap[0]] + lengths[i] > limit:
            num_visits -= num_packs
            if num_visits < 0:
                return False
            place = _find_room(heap, tokens, load, limit - lengths[i])
            if place < 0:
                return False
        pack = heap[place]
        pack_of[i] = pack
        tokens[pack] += lengths[i]
        load[pack] += work[i]
        sift_down(heap, num_packs, place, load)
    return True


@jit
def _find_room(heap: Int64Array, tokens: Int64Array, load: Int64Array, most: int) -> int:
    """Return the place in a heap of the pack with the least work and at most some tokens, or -1."""
    none: Any = np.int64(np.iinfo(np.int64).max)
    least: Any = none
    for pack in range(len(load)):  # vectorised
        least = min(least, load[pack] if tokens[pack] <= most else none)
    if least == none:
        return -1
    pack = 0
    while load[pack] != least or tokens[pack] > most:
        pack += 1
    place = 0
    while heap[place] != pack:
        place += 1
    return int(place)


@jit
def deal(load: Int64Array, order: Int64Array, rank_of: Int64Array, total: Int64Array) -> None:
    """Deal packs to ranks, in rounds: the pack with the most work to the rank with the least.

    Parameters
    ----------
    load
        Shape (packs,): the work of each; a multiple of the number of ranks.
    order
        Shape (packs,): the packs from the most work to the least.
    rank_of
        Shape (packs,): receives the rank of each.
    total
        Shape (ranks,), zeros: receives the work of each.
    """
    num_ranks = len(total)
    ranks = np.arange(num_ranks)  # from the least work to the most
    for start in range(0, len(load), num_ranks):
        for i in range(num_ranks):
            pack = order[start + i]
            rank_of[pack] = ranks[i]
            total[ranks[i]] += load[pack]
        for i in range(1, num_ranks):
            rank, place = ranks[i], i
            while place > 0 and (
                total[rank] < total[ranks[place - 1]]
                or (total[rank] == total[ranks[place - 1]] and rank < ranks[place - 1])
            ):
                ranks[place] = ranks[place - 1]
                place -= 1
            ranks[place] = rank


@jit
def group_samples(
    pack_of: Int64Array, number_of: Int64Array, samples: Int64Array, stops: Int64Array
) -> None:
    """List the sub-samples of each pack, in ascending order.

    Parameters
    ----------
    pack_of
        Shape (sub-samples,): the pack of each.
    number_of
        Shape (packs,): the place of each pack among all.
    samples
        Shape (sub-samples,): receives the sub-samples of one pack after the other.
    stops
        Shape (packs,), zeros: receives where the sub-samples of each place end.
    """
    for pack in pack_of:
        stops[number_of[pack]] += 1
    stop = 0
    for place in range(len(stops)):
        start = stop
        stop += stops[place]
        stops[place] = start
    for sample in range(len(pack_of)):
        place = number_of[pack_of[sample]]
        samples[stops[place]] = sample
        stops[place] += 1


@jit
def even_out(
    lengths: Int64Array,
    work: Int64Array,
    limit: int,
    pack_of: Int64Array,
    tokens: Int64Array,
    rank_of: Int64Array,
    total: Int64Array,
) -> None:
    """Move and exchange sub-samples while that reduces the work of the rank with the most.

    Parameters
    ----------
    lengths, work, limit, pack_of, tokens
        As of `spread`, filled; changed.
    rank_of
        Shape (packs,): the rank of each pack.
    total
        Shape (ranks,): the work of each; changed.

    Notes
    -----
    Cost: O(sub-samples), as the number of visits is bounded.
    """
    size, num_packs, num_ranks = len(lengths), len(tokens), len(total)
    counts = np.zeros(num_packs, np.int64)
    # The sub-samples of each rank are linked in order.
    heads, following = np.full(num_ranks, -1), np.empty(size, np.int64)
    for i in range(size - 1, -1, -1):
        counts[pack_of[i]] += 1
        rank = rank_of[pack_of[i]]
        following[i] = heads[rank]
        heads[rank] = i
    own, others = np.empty(size, np.int64), np.empty(size, np.int64)
    is_tried = np.empty(num_ranks, np.bool_)
    num_visits = max(_VISITS_PER_SAMPLE * size, _MIN_VISITS)
    enough = total.sum() // num_ranks * (_BALANCED + 1) // _BALANCED
    while num_visits > 0:
        busiest: Any = np.argmax(total)
        if total[busiest] <= enough:
            return
        num_own = _list_samples(heads[busiest], following, own)
        is_tried[:] = False
        is_tried[busiest] = True
        first = second = target = -1
        while first < 0 and num_visits > 0:
            rank = -1
            for other in range(num_ranks):
                if not is_tried[other] and (rank < 0 or total[other] < total[rank]):
                    rank = other
            if rank < 0 or total[rank] >= total[busiest]:
                return
            is_tried[rank] = True
            num_others = _list_samples(heads[rank], following, others)
            num_visits -= num_ranks + num_others + num_own * (2 * _NUM_NEAR)
            difference = total[busiest] - total[rank]
            nearest = difference  # twice the gain should equal the difference
            place = 0
            for k in range(num_own):
                i = own[k]
                wanted = work[i] - difference // 2
                while place < num_others and work[others[place]] > wanted:
                    place += 1
                for near in range(max(0, place - _NUM_NEAR), min(num_others, place + _NUM_NEAR)):
                    j = others[near]
                    gain = work[i] - work[j]
                    distance = abs(difference - 2 * gain)
                    if distance >= nearest or gain <= 0:
                        continue
                    if tokens[pack_of[j]] + lengths[i] - lengths[j] <= limit:
                        nearest, first, second, target = distance, i, j, pack_of[j]
                distance = abs(difference - 2 * work[i])
                if distance >= nearest or counts[pack_of[i]] < 2:
                    continue
                for pack in range(num_packs):
                    if rank_of[pack] == rank and tokens[pack] + lengths[i] <= limit:
                        nearest, first, second, target = distance, i, -1, pack
        if first < 0:
            return
        rank, source, gain = rank_of[target], pack_of[first], work[first]
        _move(first, target, lengths, pack_of, tokens, counts)
        _unlink(first, busiest, heads, following)
        if second >= 0:
            gain -= work[second]
            _move(second, source, lengths, pack_of, tokens, counts)
            _unlink(second, rank, heads, following)
            _link(second, busiest, heads, following)
        _link(first, rank, heads, following)
        total[busiest] -= gain
        total[rank] += gain


@jit
def _move(
    sample: int,
    pack: int,
    lengths: Int64Array,
    pack_of: Int64Array,
    tokens: Int64Array,
    counts: Int64Array,
) -> None:
    """Move a sub-sample to a pack."""
    source = pack_of[sample]
    tokens[source] -= lengths[sample]
    counts[source] -= 1
    pack_of[sample] = pack
    tokens[pack] += lengths[sample]
    counts[pack] += 1


@jit
def _list_samples(head: int, following: Int64Array, out: Int64Array) -> int:
    """Write the sub-samples of a linked list; return their number."""
    count = 0
    while head >= 0:
        out[count] = head
        count += 1
        head = following[head]
    return count


@jit
def _unlink(sample: int, rank: int, heads: Int64Array, following: Int64Array) -> None:
    """Remove a sub-sample from the list of a rank."""
    if heads[rank] == sample:
        heads[rank] = following[sample]
        return
    before = heads[rank]
    while following[before] != sample:
        before = following[before]
    following[before] = following[sample]


@jit
def _link(sample: int, rank: int, heads: Int64Array, following: Int64Array) -> None:
    """Insert a sub-sample into the list of a rank, in order."""
    if heads[rank] < 0 or heads[rank] > sample:
        following[sample] = heads[rank]
        heads[rank] = sample
        return
    before = heads[rank]
    while 0 <= following[before] < sample:
        before = following[before]
    following[sample] = following[before]
    following[before] = sample
