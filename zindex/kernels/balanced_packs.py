"""Packs of sub-samples that give all ranks about the same work, by one call."""

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels._jit import jit
from zindex.kernels.balance import deal, even_out, group_samples, pack_in_order, spread
from zindex.kernels.packing import fit_parts


@jit
def pack_evenly(
    lengths: Int64Array,
    limit: int,
    num_ranks: int,
    multiple: int,
    linear: int,
    samples: Int64Array,
    stops: Int64Array,
) -> int:
    """Pack sub-samples so that all ranks have about the same work; return the number of packs.

    Parameters
    ----------
    lengths
        Shape (sub-samples,), tokens, each at least 1.
    limit, multiple
        As of `pack_in_order`.
    num_ranks
        Pack ``i * num_ranks + j`` is micro-batch i of rank j.
    linear
        The work of n tokens is ``n * (n + linear)``; if negative, both terms get the same share of
        the work of all.
    samples, stops
        As of `group_samples`, with a place for each sub-sample in both.

    Returns
    -------
    num_packs
        0 if there are too few sub-samples, or one exceeds the limit.
    """
    size = len(lengths)
    if size < multiple or lengths.max() > limit:
        return 0
    if linear < 0:
        linear = (lengths * lengths).sum() // lengths.sum()
    in_order = np.empty(size, np.int64)
    num_in_order = pack_in_order(lengths, limit, multiple, in_order)
    order = _sort_descending(lengths)
    ordered = lengths[order]
    work = ordered * (ordered + linear)
    pack_of, tokens, load = np.empty(size, np.int64), np.zeros(size, np.int64), np.zeros_like(work)
    num_packs = _fit(ordered, work, limit, multiple, pack_of, tokens, load)
    tokens, load = tokens[:num_packs], load[:num_packs]
    rank_of, total = np.empty(num_packs, np.int64), np.zeros(num_ranks, np.int64)
    if num_packs:
        deal(load, _sort_descending(load), rank_of, total)
        even_out(ordered, work, limit, pack_of, tokens, rank_of, total)
    if num_in_order:
        others = np.zeros(num_ranks, np.int64)
        for i in range(size):
            others[in_order[order[i]] % num_ranks] += work[i]
        if not num_packs or others.max() < total.max():
            group_samples(in_order, np.arange(num_in_order), samples, stops[:num_in_order])
            return num_in_order
    if num_packs:
        load[:] = 0
        placed = np.empty(size, np.int64)
        for i in range(size):
            load[pack_of[i]] += work[i]
            placed[order[i]] = pack_of[i]
        # Micro-batch i has the pack of each rank with the i-th most work.
        number_of, total[:] = np.empty(num_packs, np.int64), 0
        for pack in _sort_descending(load):
            rank = rank_of[pack]
            number_of[pack] = total[rank] * num_ranks + rank
            total[rank] += 1
        group_samples(placed, number_of, samples, stops[:num_packs])
    return num_packs


@jit
def _fit(
    lengths: Int64Array,
    work: Int64Array,
    limit: int,
    multiple: int,
    pack_of: Int64Array,
    tokens: Int64Array,
    load: Int64Array,
) -> int:
    """Put each sub-sample into a pack; return the number of packs, 0 if some would be empty.

    Parameters as of `spread`, with a place for each sub-sample in all arrays.
    """
    size = len(lengths)
    # No two sub-samples above half of the limit share a pack.
    num_long = 0
    while num_long < size and 2 * lengths[num_long] > limit:
        num_long += 1
    fewest = _round_up(max(-(-lengths.sum() // limit), num_long), multiple)
    if fewest <= size:
        if spread(lengths, work, limit, pack_of, tokens[:fewest], load[:fewest]):
            return int(fewest)
        tokens[:], load[:] = 0, 0
    counts = np.zeros(limit + 1, np.int64)
    for length in lengths:
        counts[length] += 1
    best_fit, num_parts = np.zeros(size, np.int32), np.zeros(size, np.int32)
    num_filled = fit_parts(counts, size, best_fit, num_parts)
    num_packs = _round_up(num_filled, multiple)
    if num_packs > size:
        return 0
    if num_packs > fewest:
        if spread(lengths, work, limit, pack_of, tokens[:num_packs], load[:num_packs]):
            return int(num_packs)
        tokens[:], load[:] = 0, 0
    is_filled = np.zeros(num_packs, np.bool_)
    for i in range(size):
        pack = best_fit[i]
        if is_filled[pack] and num_filled < num_packs:
            pack = num_filled
            num_filled += 1
        is_filled[pack] = True
        pack_of[i] = pack
        tokens[pack] += lengths[i]
        load[pack] += work[i]
    return int(num_packs)


@jit
def _round_up(count: int, multiple: int) -> int:
    """Return the least multiple that is not below a number."""
    return -(-count // multiple) * multiple


@jit
def _sort_descending(values: Int64Array) -> Int64Array:
    """Return the places of numbers from 0 on, from the largest to the smallest, in a stable way."""
    order, other = np.arange(len(values)), np.empty(len(values), np.int64)
    counts = np.empty(256, np.int64)
    shift, largest = 0, values.max()
    while largest >> shift:
        counts[:] = 0
        for value in values:
            counts[255 - (value >> shift & 255)] += 1
        start = 0
        for digit in range(256):
            count = counts[digit]
            counts[digit] = start
            start += count
        for place in order:
            digit = 255 - (values[place] >> shift & 255)
            other[counts[digit]] = place
            counts[digit] += 1
        order, other = other, order
        shift += 8
    return order
