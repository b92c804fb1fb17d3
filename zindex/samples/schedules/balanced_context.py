"""Assign sub-samples to ranks so that their work is balanced.

Used by `HybridCPDataLoaderWrapper` if Megatron Core is not installed; the results are equal.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any

from zindex.errors import ConfigError, PlanError

#: Number of a sub-sample, and its tokens.
SubSample = tuple[int, int]
Estimator = Callable[..., float]

# Factor by which a bucket may exceed its share.
_BUCKET_SLACK = 1.1


@dataclass
class _Group:
    """Consecutive ranks that share sub-samples, and the time that these take."""

    size: int
    samples: list[SubSample] = field(default_factory=list)
    time: float = 0.0


class BalancedCPScheduler:
    """Assigns sub-samples to groups of ranks, long ones to more ranks than short ones.

    Parameters
    ----------
    max_seq_len_per_rank
        Maximal tokens of a sub-sample on one rank, >= 1.
    dp_cp_group
        The process group of the ranks; only its ``size()`` is used.

    Notes
    -----
    Law: the results of Megatron Core's class of this name. Source:
    ``megatron.core.pipeline_parallel.hybrid_cp_schedule``.
    """

    def __init__(self, max_seq_len_per_rank: int, dp_cp_group: Any) -> None:
        if max_seq_len_per_rank < 1:
            raise ConfigError(
                "max_seqlen_per_dp_cp_rank must be at least 1 token, got "
                f"{max_seq_len_per_rank}; raise it"
            )
        self.max_seq_len_per_rank = max_seq_len_per_rank
        self.total_hdp_gpus = dp_cp_group.size()

    def gpus_needed(self, seq_len: int) -> int:
        """Return the number of ranks that share a sub-sample, a power of two."""
        return int(max(1, 2 ** ceil(log2(seq_len / self.max_seq_len_per_rank))))

    def get_total_workload(self, seq_length: int, cp_size: int | None = None) -> float:
        """Return the work of each rank of a sub-sample: squared tokens over ranks."""
        return seq_length * seq_length / (cp_size or self.gpus_needed(seq_length))

    def make_buckets_equal(
        self, sample_seqlens: Sequence[SubSample], compute_estimator: Estimator
    ) -> list["deque[SubSample]"]:
        """Return the sub-samples in buckets of about equal work, one per number of ranks.

        Parameters
        ----------
        sample_seqlens
            The sub-samples, at least one, in descending order of length.
        compute_estimator
            Returns the work of a rank from tokens and, if given, ranks.
        """
        num_buckets = len({self.gpus_needed(length) for _, length in sample_seqlens})
        work = [compute_estimator(length, self.gpus_needed(length)) for _, length in sample_seqlens]
        most = sum(work) / num_buckets * _BUCKET_SLACK
        buckets: list[deque[SubSample]] = []
        current: deque[SubSample] = deque()
        current_work = 0.0
        for i, sample in enumerate(sample_seqlens):
            # Closed buckets count twice, as in Megatron Core.
            num_open = num_buckets - 2 * len(buckets)
            is_last = len(sample_seqlens) - i <= num_open
            if current and (current_work + work[i] > most or is_last):
                buckets.append(current)
                current, current_work = deque(), 0.0
            current.append(sample)
            current_work += work[i]
        return [*buckets, current] if current else buckets

    def next_hdp_group(
        self,
        sample_seqlens: Sequence[SubSample],
        compute_estimator: Estimator,
        total_gpus: int,
        delta: float = 0.05,
        strategy: str = "dp",
        eps_bucket: float = 0.10,
    ) -> tuple[list[list[int]], list[SubSample], list[float], list[list[int]]]:
        """Return one round of work, and the sub-samples for later rounds.

        Parameters
        ----------
        sample_seqlens
            The sub-samples in descending order of length.
        compute_estimator
            Returns the work of a rank from tokens and, if given, ranks.
        total_gpus
            Number of ranks.
        delta
            Relative difference of work that counts as balanced.
        strategy
            ``"dp"``, the only one in Megatron Core too.
        eps_bucket
            Unused, as in Megatron Core.

        Returns
        -------
        micro_batches
            Tokens of the sub-samples of each rank.
        leftovers
            Sub-samples for later rounds.
        exec_times
            Work of each rank.
        sample_ids
            Numbers of the sub-samples of each rank.

        Raises
        ------
        ConfigError
            If the strategy is unknown.
        PlanError
            If a sub-sample needs more ranks than there are.
        """
        if strategy != "dp":
            raise ConfigError(f"strategy must be 'dp', got {strategy!r}; leave it out")
        if not sample_seqlens:
            micro_batches, times, numbers = _by_rank([], total_gpus)
            return micro_batches, [], times, numbers
        buckets = self.make_buckets_equal(sample_seqlens, compute_estimator)
        groups = self._place(buckets, compute_estimator, total_gpus, delta)
        if not groups:
            longest = max(length for _, length in sample_seqlens)
            raise PlanError(
                f"a sub-sample of {longest} tokens needs {self.gpus_needed(longest)} ranks of "
                f"{self.max_seq_len_per_rank} tokens, there are {total_gpus}; raise "
                "max_seqlen_per_dp_cp_rank"
            )
        leftovers = [sample for bucket in buckets for sample in bucket]
        num_ranks = sum(group.size for group in groups)
        if num_ranks == total_gpus:
            leftovers += _trim(groups, compute_estimator, delta)
        else:
            self._widen(groups, total_gpus)
        micro_batches, times, numbers = _by_rank(groups, total_gpus)
        return micro_batches, leftovers, times, numbers

    def _place(
        self,
        buckets: list["deque[SubSample]"],
        compute_estimator: Estimator,
        total_gpus: int,
        delta: float,
    ) -> list[_Group]:
        """Move sub-samples from the buckets to groups of ranks, and return the groups."""
        groups: list[_Group] = []
        num_free = total_gpus
        first_needed = 0
        checks_balance = False
        while buckets:
            for bucket in filter(None, buckets):
                needed = self.gpus_needed(bucket[0][1])
                same = [group for group in groups if group.size == needed]
                if same or num_free >= needed:
                    break
            else:
                break
            first_needed = first_needed or needed
            if num_free >= needed:
                group = _Group(needed)
                groups.append(group)
                num_free -= needed
            else:
                group = min(same, key=lambda member: member.time)
            sample = bucket.popleft()
            group.samples.append(sample)
            group.time += compute_estimator(sample[1])
            while buckets and not buckets[0]:
                buckets.pop(0)
            # Balance only matters once shorter sub-samples follow.
            checks_balance = checks_balance or needed < first_needed
            if checks_balance and buckets and not num_free and _is_balanced(groups, delta):
                break
        return groups

    def _widen(self, groups: list[_Group], total_gpus: int) -> None:
        """Add idle ranks to the smallest groups."""
        num_free = total_gpus - sum(group.size for group in groups)
        while num_free:
            smallest = min(groups, key=lambda group: group.size)
            size = min(2 * smallest.size, total_gpus)
            num_free -= size - smallest.size
            if num_free < 0:
                raise PlanError(
                    f"groups of ranks must double until all {total_gpus} ranks have work, one of "
                    f"{smallest.size} ranks cannot; give a number of ranks that is a power of two"
                )
            smallest.size = size
            smallest.time = self.get_total_workload(smallest.samples[0][1], size)

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[SubSample], config: Any = None
    ) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Return all rounds of work.

        Parameters
        ----------
        sample_id_seqlens
            The sub-samples in any order, each of at least one token.
        config
            Unused, as in Megatron Core.

        Returns
        -------
        groups, sample_id_groups
            For each round and rank the tokens of its sub-samples, and their numbers.

        Raises
        ------
        PlanError
            If a sub-sample needs more ranks than there are.
        """
        left = sorted(sample_id_seqlens, key=lambda sample: sample[1], reverse=True)
        groups, sample_id_groups = [], []
        while left:
            micro_batches, left, _, numbers = self.next_hdp_group(
                left, self.get_total_workload, self.total_hdp_gpus
            )
            groups.append(micro_batches)
            sample_id_groups.append(numbers)
        return groups, sample_id_groups


def _is_balanced(groups: list[_Group], delta: float) -> bool:
    """Return whether the times of all groups are about equal."""
    times = [group.time for group in groups]
    return max(times) - min(times) <= delta * max(times)


def _trim(groups: list[_Group], compute_estimator: Estimator, delta: float) -> list[SubSample]:
    """Remove the last sub-samples of the longest groups while that helps; return them."""
    taken: list[SubSample] = []
    while not _is_balanced(groups, delta):
        times = [group.time for group in groups]
        longest = groups[times.index(max(times))]
        if len(longest.samples) < 2:
            break
        cost = compute_estimator(longest.samples[-1][1])
        after = [group.time - cost if group is longest else group.time for group in groups]
        if max(after) - min(after) >= max(times) - min(times):
            break
        longest.time -= cost
        taken.append(longest.samples.pop())
    return taken


def _by_rank(
    groups: list[_Group], total_gpus: int
) -> tuple[list[list[int]], list[float], list[list[int]]]:
    """Return the lengths, the work and the numbers of each rank's sub-samples."""
    members = [group for group in groups for _ in range(group.size)]
    members += [_Group(1)] * (total_gpus - len(members))
    return (
        [[length for _, length in group.samples] for group in members],
        [group.time for group in members],
        [[number for number, _ in group.samples] for group in members],
    )
