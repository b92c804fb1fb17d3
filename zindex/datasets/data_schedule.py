"""Unpack batches and distribute their sub-samples over ranks, long ones over several ranks."""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
import torch.distributed as dist

from zindex.errors import ConfigError, SourceError

# Tensors of a packed sample as a whole, which have no token dimension.
_WHOLE = ("cu_seqlens", "batch_idx", "max_seqlen", "original_seq_len", "padded_seq_len")

Sample = dict[str, torch.Tensor]


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
        self.dp_cp_group, self.dp_group, self.tp_group = _find_groups(pg_collection)
        self.cp_balancing_scheduler = _scheduler_class()(
            max_seq_len_per_rank=config.max_seqlen_per_dp_cp_rank, dp_cp_group=self.dp_cp_group
        )
        self.total_hdp_gpus = self.dp_cp_group.size()
        # Group ranks of the data-parallel ranks with the same share of the context.
        self._dp_ranks: list[int] = [
            dist.get_group_rank(self.dp_cp_group, rank)
            for rank in dist.get_process_group_ranks(self.dp_group)
        ]

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
        lengths = [_length(sample) for sample in samples]
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

    @property
    def _device(self) -> torch.device:
        """Device of the tensors that the process group sends."""
        if "nccl" in dist.get_backend_config(self.dp_cp_group):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

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
        gathered: list[Any] = [None] * self.dp_group.size()
        dist.all_gather_object(gathered, subsample_seqlens.tolist(), group=self.dp_group)
        firsts = [0, *accumulate(map(len, gathered[:-1]))]
        return [*chain.from_iterable(gathered)], torch.tensor(firsts, dtype=torch.int32)

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
        return list(enumerate(seqlens_gathered)), own.to(self._device)

    def _gid_to_src_rank(self, gid: int, offsets: torch.Tensor) -> int:
        """Return the group rank that sends a sub-sample to this rank."""
        reader = int(torch.searchsorted(offsets, gid, right=True)) - 1
        return self._dp_ranks[reader]

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
        lengths = [length for _, length in global_id_seqlens]
        wanted = [
            sorted(number for group in sample_id_groups for number in group[rank])
            for rank in range(self.total_hdp_gpus)
        ]
        if isinstance(global_ids_this_rank, torch.Tensor):
            global_ids_this_rank = global_ids_this_rank.tolist()
        places = {number: i for i, number in enumerate(global_ids_this_rank)}
        # Ranks with other shares of the context have the same data and send it to their own peers.
        sent = {
            rank: [number for number in wanted[rank] if number in places] for rank in self._dp_ranks
        }
        received: list[list[int]] = [[] for _ in range(self.total_hdp_gpus)]
        for number in wanted[self.dp_cp_group.rank()]:
            received[self._gid_to_src_rank(number, offsets)].append(number)

        def count_tokens(numbers: Iterable[int]) -> int:
            return sum(lengths[number] for number in numbers)

        send_splits = [count_tokens(sent.get(rank, ())) for rank in range(self.total_hdp_gpus)]
        receive_splits = [count_tokens(numbers) for numbers in received]
        outgoing = [places[number] for rank in sorted(sent) for number in sent[rank]]
        incoming = [number for numbers in received for number in numbers]
        samples: dict[int, Sample] = {number: {} for number in incoming}
        for name in batch[0]:
            like = batch[0][name]
            none = torch.empty((0, *like.shape[1:]), dtype=like.dtype, device=self._device)
            parts = [batch[place][name].to(self._device, non_blocking=True) for place in outgoing]
            values = none.new_empty((sum(receive_splits), *like.shape[1:]))
            dist.all_to_all_single(
                output=values,
                input=torch.cat([none, *parts]),
                output_split_sizes=receive_splits,
                input_split_sizes=send_splits,
                group=self.dp_cp_group,
            )
            arrived = torch.split(values, [lengths[number] for number in incoming])
            for number, value in zip(incoming, arrived, strict=True):
                samples[number][name] = value
        return samples

    def unpack_batch(self, batch: Iterable[Sample]) -> list[Sample]:
        """Return the sub-samples of packed samples as views; empty ones are left out.

        Parameters
        ----------
        batch
            Samples with ``cu_seqlens``, which may be padded by repeating the last value, or of one
            sub-sample each.
        """
        parts = []
        for sample in batch:
            cut = {name: value for name, value in sample.items() if _has_tokens(name, value)}
            bounds = sample["cu_seqlens"].tolist() if "cu_seqlens" in sample else [0, _length(cut)]
            for start, stop in pairwise(bounds):
                if stop > start:
                    parts.append({name: value[start:stop] for name, value in cut.items()})
        return parts


def _has_tokens(name: str, value: Any) -> bool:
    """Return whether a value of a sample has a token dimension."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and name not in _WHOLE


def _length(sample: Sample) -> int:
    """Return the tokens of a sub-sample."""
    return len(next(iter(sample.values())))


def _find_groups(collection: Any) -> tuple[Any, Any, Any]:
    """Return the groups of data and context, of data, and of tensor parallelism."""
    if collection is None:
        try:
            state = importlib.import_module("megatron.core.parallel_state")
        except ImportError as error:
            raise ConfigError(
                "HybridCPDataLoaderWrapper needs process groups, megatron-core has none without "
                "being installed; pass pg_collection with dp_cp, dp and tp"
            ) from error
        groups = (
            state.get_data_parallel_group(with_context_parallel=True),
            state.get_data_parallel_group(),
            state.get_tensor_model_parallel_group(),
        )
    else:
        groups = collection.dp_cp, collection.dp, collection.tp
    if any(group is None for group in groups):
        raise ConfigError(
            "HybridCPDataLoaderWrapper needs the process groups dp_cp, dp and tp, got "
            f"{', '.join(map(str, groups))}; make all three"
        )
    return groups


def _scheduler_class() -> Any:
    """Return Megatron Core's scheduler if it is installed, else ours."""
    try:
        return importlib.import_module(
            "megatron.core.pipeline_parallel.hybrid_cp_schedule"
        ).BalancedCPScheduler
    except ImportError:
        from zindex.samples.balanced_context import BalancedCPScheduler

        return BalancedCPScheduler
