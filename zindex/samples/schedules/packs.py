"""Plan packed samples: which sub-samples each rank processes together, in each micro-batch."""

from typing import NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import PlanError
from zindex.kernels.balance import deal, even_out, group_samples, pack_in_order, spread
from zindex.kernels.packing import SPLIT, FitRules, pack_documents

#: The sub-samples of each packed sample, by number.
Packs = list[list[int]]


class PackRules(NamedTuple):
    """The size of packed samples, and their number."""

    #: Tokens of a packed sample, those of all context-parallel ranks together.
    limit: int
    #: Data-parallel ranks.
    num_ranks: int
    #: The number of micro-batches is a multiple of it.
    num_together: int = 1

    @property
    def multiple(self) -> int:
        """The number of packed samples is a multiple of it."""
        return self.num_ranks * self.num_together


def plan_in_order(lengths: Int64Array, rules: PackRules) -> Packs:
    """Pack sub-samples in their order, as Megatron Core does.

    Parameters
    ----------
    lengths
        Shape (sub-samples,), int64, tokens.
    rules
        The size of packed samples.

    Returns
    -------
    packs
        Pack ``i * num_ranks + j`` is micro-batch i of rank j.

    Raises
    ------
    PlanError
        If there are too few sub-samples.

    Examples
    --------
    >>> plan_in_order(np.array([3, 4, 2, 5, 1]), PackRules(limit=8, num_ranks=2))
    [[0, 1], [2, 3, 4]]
    """
    pack_of = np.empty(len(lengths), np.int64)
    num_packs = pack_in_order(lengths, rules.limit, rules.multiple, pack_of)
    if not num_packs:
        raise _too_few(len(lengths), rules)
    return _list_packs(pack_of, np.arange(num_packs))


def plan_evenly(lengths: Int64Array, rules: PackRules, linear: int | None = None) -> Packs:
    """Pack sub-samples so that all ranks have about the same work, in few micro-batches.

    Parameters
    ----------
    lengths
        Shape (sub-samples,), int64, tokens, each at least 1.
    rules
        The size of packed samples.
    linear
        The work of a sub-sample of n tokens is ``n * (n + linear)``: for a transformer about 12
        times its hidden size. None gives both terms the same share of the work of all.

    Returns
    -------
    packs
        Pack ``i * num_ranks + j`` is micro-batch i of rank j.

    Raises
    ------
    PlanError
        If there are too few sub-samples, or one is longer than a packed sample.

    Notes
    -----
    Sub-samples are put, from the longest on, into the pack with the least work; if the packs get
    too full, into the fullest one with enough room. The packs are dealt to ranks by their work, and
    sub-samples are moved and exchanged between the rank with the most work and others.

    Law: every sub-sample is in one pack, none of which is empty or exceeds the limit. The work of
    the rank with the most is not above that of `plan_in_order`.
    Cost: O(n log n), about a microsecond for each sub-sample.

    Examples
    --------
    >>> plan_evenly(np.array([7, 1, 1, 5, 4, 3]), PackRules(limit=12, num_ranks=2))
    [[0, 5], [1, 2, 3, 4]]
    """
    size, num_ranks = len(lengths), rules.num_ranks
    if size < rules.multiple:
        raise _too_few(size, rules)
    longest = int(lengths.max())
    if longest > rules.limit:
        raise PlanError(
            f"each sub-sample must fit into a packed sample of {rules.limit:,} tokens, sub-sample "
            f"{int(lengths.argmax())} has {longest:,}; raise max_seqlen_per_dp_cp_rank"
        )
    total = int(lengths.sum())
    if linear is None:
        linear = int(np.dot(lengths, lengths)) // total
    in_order = np.empty(size, np.int64)
    num_in_order = pack_in_order(lengths, rules.limit, rules.multiple, in_order)
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    work = ordered * (ordered + linear)
    fitted = _fit(ordered, work, rules)
    if fitted is None:
        if num_in_order:
            return _list_packs(in_order, np.arange(num_in_order))
        raise _too_few(size, rules)
    pack_of, tokens, load = fitted
    rank_of, rank_work = np.empty_like(load), np.zeros(num_ranks, np.int64)
    deal(load, np.argsort(-load, kind="stable"), rank_of, rank_work)
    even_out(ordered, work, rules.limit, pack_of, tokens, rank_of, rank_work)
    if num_in_order:
        others = np.bincount(in_order[order] % num_ranks, work)
        if others.max() < rank_work.max():
            return _list_packs(in_order, np.arange(num_in_order))
    placed = np.empty(size, np.int64)
    placed[order] = pack_of
    # Micro-batch i has the pack of each rank with the i-th most work.
    chosen = np.lexsort((-np.bincount(pack_of, work), rank_of))
    number_of = np.empty_like(chosen)
    number_of[chosen.reshape(num_ranks, -1).T.ravel()] = np.arange(len(load))
    return _list_packs(placed, number_of)


def _fit(
    lengths: Int64Array, work: Int64Array, rules: PackRules
) -> tuple[Int64Array, Int64Array, Int64Array] | None:
    """Return the pack of each sub-sample, and the tokens and the work of each pack.

    None if there are not enough sub-samples to fill that many packs. Parameters as of `spread`.
    """
    size, multiple = len(lengths), rules.multiple
    pack_of = np.empty(size, np.int64)
    # No two sub-samples above half of the limit share a pack.
    num_long = int(np.count_nonzero(2 * lengths > rules.limit))
    fewest = -(-max(-(-int(lengths.sum()) // rules.limit), num_long) // multiple) * multiple
    if fewest <= size:
        tokens, load = np.zeros((2, fewest), np.int64)
        if spread(lengths, work, rules.limit, pack_of, tokens, load):
            return pack_of, tokens, load
    fit_rules = FitRules(rules.limit, 0, size, SPLIT)
    packed = pack_documents(lengths, np.arange(size), fit_rules)
    num_packs = -(-(len(packed.sample_offset) - 1) // multiple) * multiple
    if num_packs > size:
        return None
    tokens, load = np.zeros((2, num_packs), np.int64)
    if not spread(lengths, work, rules.limit, pack_of, tokens, load):
        counts = np.diff(packed.sample_offset)
        pack_of[packed.part_index[:, 0]] = np.repeat(np.arange(len(counts)), counts)
        _fill_empty(pack_of, len(counts), num_packs)
        for values, sums in ((lengths, tokens), (work, load)):
            sums[:] = 0
            np.add.at(sums, pack_of, values)
    return pack_of, tokens, load


def _fill_empty(pack_of: Int64Array, num_filled: int, num_packs: int) -> None:
    """Move sub-samples of packs with several ones to packs of their own."""
    _, firsts = np.unique(pack_of, return_index=True)
    others = np.delete(np.arange(len(pack_of)), firsts)
    pack_of[others[: num_packs - num_filled]] = np.arange(num_filled, num_packs)


def _list_packs(pack_of: Int64Array, number_of: Int64Array) -> Packs:
    """Return the sub-samples of each pack, in ascending order, by the number of the pack."""
    samples, stops = np.empty_like(pack_of), np.zeros_like(number_of)
    group_samples(pack_of, number_of, samples, stops)
    listed, ends = samples.tolist(), stops.tolist()
    return [listed[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


def _too_few(size: int, rules: PackRules) -> PlanError:
    """Return the error for fewer sub-samples than packs."""
    return PlanError(
        f"there must be a sub-sample for each of {rules.num_ranks} ranks in each of a multiple of "
        f"{rules.num_together} micro-batches of at most {rules.limit:,} tokens, got {size}; raise "
        "the global batch size or max_seqlen_per_dp_cp_rank"
    )
