"""Distribute sub-samples over ranks, long ones over several ranks."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from zindex.errors import SourceError
from zindex.samples.schedules.balanced_context import BalancedCPScheduler
from zindex.samples.schedules.exchange import (
    Sample,
    find_class,
    find_device,
    find_groups,
    gather_lengths,
)
from zindex.samples.schedules.packed_samples import count_tokens, cut_samples
from zindex.samples.schedules.steps import reroute_samples_to_dcp_ranks


class HybridCPDataLoaderWrapper:
    """Sends to each rank the sub-samples that a scheduler assigns to it.

    At each step every data-parallel rank takes a batch of packed samples, broadcasts the lengths of
    its sub-samples, and sends each sub-sample to the ranks that process it. Tensors are on the GPU
    if the process group's backend is NCCL, otherwise on the CPU.

    Parameters
    ----------
    data_iterator
        Yields batches, which are lists of samples with ``cu_seqlens``; other tensors of a sample
        have its tokens along their first dimension. Samples without ``cu_seqlens``, such as those
        of ``VarlenDataset``, are one sub-sample each. None on ranks that get their data from
        another rank, where steps return (None, None).
    config
        Has ``max_seqlen_per_dp_cp_rank``: maximal tokens of a sub-sample on one rank.
    pg_collection
        Has the process groups ``dp_cp``, ``dp`` and ``tp``; None uses Megatron Core's.

    Raises
    ------
    ConfigError
        If there are no such groups.

    Notes
    -----
    Source: Megatron Core 0.16.1, the class of this name, with the same methods and results. Uses
    Megatron Core's scheduler if it is installed, otherwise an equivalent one.
    """

    def __init__(
        self, data_iterator: Iterator[Any] | None, config: Any, pg_collection: Any = None
    ) -> None:
        self.data_iterator = data_iterator
        self.config = config
        self.dp_cp_group, self.dp_group, self.tp_group = find_groups(
            pg_collection, ("dp_cp", "dp", "tp"), type(self).__name__
        )
        scheduler = find_class(
            "pipeline_parallel.hybrid_cp_schedule", "BalancedCPScheduler", BalancedCPScheduler
        )
        self.cp_balancing_scheduler = scheduler(
            max_seq_len_per_rank=config.max_seqlen_per_dp_cp_rank, dp_cp_group=self.dp_cp_group
        )
        self.total_hdp_gpus = self.dp_cp_group.size()

    def __iter__(self) -> "HybridCPDataLoaderWrapper":
        return self

    def __next__(self) -> tuple[dict[int, Sample], list[list[list[int]]]] | tuple[None, None]:
        """Return this rank's share of the next batch.

        Returns
        -------
        samples
            Its sub-samples by number.
        sample_id_groups
            For each round and rank the numbers of its sub-samples.

        Raises
        ------
        SourceError
            On all ranks, if one of them has no sub-sample and therefore no names of tensors.
        """
        if self.data_iterator is None:
            return None, None
        samples = self.unpack_batch(next(self.data_iterator))
        lengths = [count_tokens(sample) for sample in samples]
        all_lengths, offsets = self.get_global_seqlens(torch.tensor(lengths, dtype=torch.int32))
        edges = [*offsets.tolist(), len(all_lengths)]
        empty = [rank for rank, (a, b) in enumerate(pairwise(edges)) if a == b]
        if empty:
            raise SourceError(
                "every data-parallel rank must have tokens in each batch, rank "
                f"{empty[0]} of {len(edges) - 1} has none; give batches whose cu_seqlens enclose "
                "some"
            )
        numbered, own = self.get_global_id_seqlens(len(lengths), offsets, all_lengths)
        _, groups = self.cp_balancing_scheduler.get_groups_and_subsamples(numbered, self.config)
        received = self.reroute_samples_to_hdp_ranks(samples, own, numbered, groups, offsets)
        return received, groups

    def get_global_seqlens(self, subsample_seqlens: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """Return the lengths of all sub-samples.

        Parameters
        ----------
        subsample_seqlens
            Shape (sub-samples of this rank,), int32, tokens.

        Returns
        -------
        seqlens
            Tokens of all sub-samples, in the order of the data-parallel ranks.
        offsets
            Shape (data-parallel ranks,), int32: number of the first sub-sample of each.
        """
        lengths, offsets = gather_lengths(subsample_seqlens.tolist(), self.dp_group)
        return lengths, offsets[:-1]

    def get_global_id_seqlens(
        self, num_local_subsamples: int, offsets: torch.Tensor, seqlens_gathered: Sequence[int]
    ) -> tuple[list[tuple[int, int]], torch.Tensor]:
        """Return the number and length of every sub-sample, and the numbers of this rank's own.

        Parameters
        ----------
        num_local_subsamples
            Sub-samples of this rank.
        offsets, seqlens_gathered
            As `get_global_seqlens` returns them.
        """
        first = int(offsets[self.dp_group.rank()])
        own = torch.arange(first, first + num_local_subsamples, dtype=torch.int32)
        return list(enumerate(seqlens_gathered)), own.to(find_device(self.dp_cp_group))

    def _gid_to_src_rank(self, gid: int, offsets: torch.Tensor) -> int:
        """Return the group rank that sends a sub-sample to this rank."""
        reader = int(torch.searchsorted(offsets, gid, right=True)) - 1
        source = dist.get_process_group_ranks(self.dp_group)[reader]
        return dist.get_group_rank(self.dp_cp_group, source)

    def reroute_samples_to_hdp_ranks(
        self,
        batch: Sequence[Sample],
        global_ids_this_rank: torch.Tensor | Iterable[int],
        global_id_seqlens: Sequence[tuple[int, int]],
        sample_id_groups: Sequence[Sequence[Sequence[int]]],
        offsets: torch.Tensor,
    ) -> dict[int, Sample]:
        """Send this rank's sub-samples to the ranks that process them, and return those received.

        Parameters
        ----------
        batch
            Sub-samples of this rank. All ranks must have the same names of tensors.
        global_ids_this_rank
            Their numbers.
        global_id_seqlens
            Number and length of every sub-sample.
        sample_id_groups
            For each round and rank the numbers of its sub-samples.
        offsets
            Number of the first sub-sample of each data-parallel rank.

        Returns
        -------
        samples
            The sub-samples of this rank by number.
        """
        ends = torch.cat([offsets, torch.tensor([len(global_id_seqlens)], dtype=offsets.dtype)])
        return reroute_samples_to_dcp_ranks(
            batch,
            global_ids_this_rank,
            global_id_seqlens,
            sample_id_groups,
            ends,
            self.dp_group,
            self.tp_group,
            self.dp_cp_group,
            self.total_hdp_gpus,
        )

    def unpack_batch(self, batch: Iterable[Sample]) -> list[Sample]:
        """Return the sub-samples of packed samples as views; empty ones are left out.

        Parameters
        ----------
        batch
            Samples with ``cu_seqlens``, which may be padded by repeating the last value, or of one
            sub-sample each.
        """
        return cut_samples(batch)
