"""Plan packed samples: which sub-samples each rank processes together, in each micro-batch."""

from typing import NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import PlanError
from zindex.kernels.balance import group_samples, pack_in_order
from zindex.kernels.balanced_packs import pack_evenly

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
    samples, stops = np.empty_like(pack_of), np.zeros(num_packs, np.int64)
    group_samples(pack_of, np.arange(num_packs), samples, stops)
    return _list_packs(samples, stops)


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
    Cost: O(n log n), some tenths of a microsecond for each sub-sample.

    Examples
    --------
    >>> plan_evenly(np.array([7, 1, 1, 5, 4, 3]), PackRules(limit=12, num_ranks=2))
    [[0, 5], [1, 2, 3, 4]]
    """
    size = len(lengths)
    samples, stops = np.empty(size, np.int64), np.zeros(size, np.int64)
    sizes = rules.limit, rules.num_ranks, rules.multiple
    num_packs = pack_evenly(lengths, *sizes, -1 if linear is None else linear, samples, stops)
    if num_packs:
        return _list_packs(samples, stops[:num_packs])
    longest = int(lengths.max(initial=0))
    if size < rules.multiple or longest <= rules.limit:
        raise _too_few(size, rules)
    raise PlanError(
        f"each sub-sample must fit into a packed sample of {rules.limit:,} tokens, sub-sample "
        f"{int(lengths.argmax())} has {longest:,}; raise max_seqlen_per_dp_cp_rank"
    )


def _list_packs(samples: Int64Array, stops: Int64Array) -> Packs:
    """Return the sub-samples of each pack, given all of them and where each pack ends."""
    packs, start, listed = [], 0, samples.tolist()
    for stop in stops.tolist():
        packs.append(listed[start:stop])
        start = stop
    return packs


def _too_few(size: int, rules: PackRules) -> PlanError:
    """Return the error for fewer sub-samples than packs."""
    return PlanError(
        f"there must be a sub-sample for each of {rules.num_ranks} ranks in each of a multiple of "
        f"{rules.num_together} micro-batches of at most {rules.limit:,} tokens, got {size}; raise "
        "the global batch size or max_seqlen_per_dp_cp_rank"
    )
