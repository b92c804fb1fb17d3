"""Steps of packing a global batch, with Megatron Core's names and arguments."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from zindex.errors import SourceError
from zindex.samples.schedules.exchange import (
    Sample,
    SampleLengths,
    exchange,
    find_class,
    find_device,
    gather_lengths,
)
from zindex.samples.schedules.packed_samples import join_samples, unpack_samples

# Tensors of a packed sample that every stage of a pipeline needs.
_BOUNDS = ("max_seqlen", "cu_seqlens", "cu_seqlens_padded")


def _unpack_batch(batch: Sequence[Sample]) -> list[Sample]:
    """Return the sub-samples of samples; see `unpack_samples`."""
    return unpack_samples(batch)


def _get_global_seqlens_and_ids(
    subsample_seqlens: torch.Tensor, dp_group: Any
) -> tuple[list[tuple[int, int]], torch.Tensor, torch.Tensor, list[int]]:
    """Return the lengths of the sub-samples of all ranks; a collective call.

    Parameters
    ----------
    subsample_seqlens
        Shape (sub-samples of this rank,), tokens.
    dp_group
        The data-parallel ranks.

    Returns
    -------
    global_id_seqlens
        Number and length of every sub-sample.
    global_ids_this_rank
        Shape (sub-samples of this rank,), int32: their numbers.
    offsets
        Shape (data-parallel ranks + 1,), int32: number of the first sub-sample of each.
    seqlens_gathered
        Length of every sub-sample.
    """
    found = gather_lengths(subsample_seqlens.tolist(), dp_group)
    own = torch.tensor(found.of_rank(dp_group.rank()), dtype=torch.int32)
    numbered = list(enumerate(found.lengths))
    return numbered, own.to(find_device(dp_group)), found.offsets, found.lengths


def _pack_sequences(
    samples: Sequence[Sample],
    padded_lengths: torch.Tensor,
    original_lengths: torch.Tensor,
    dev: torch.device | int | str,
) -> Sample:
    """Return the packed sample of sub-samples; see `join_samples`."""
    return join_samples(samples, padded_lengths, original_lengths, dev)


def broadcast_tensor(item: torch.Tensor | None, src_rank: int, group: Any) -> None:
    """Broadcast a tensor to a group, unless it is None; a collective call."""
    if item is not None:
        dist.broadcast(item, src_rank, group=group)


def broadcast_scalars(
    values: Sequence[Any], group: Any, dev: torch.device | int | str, dtype: Any = torch.float32
) -> Sequence[Any]:
    """Return the numbers of the first rank of a group; a collective call.

    Parameters
    ----------
    values
        The numbers; other ranks give as many values of any kind.
    group
        The ranks.
    dev, dtype
        Of the tensor that is sent.
    """
    if group.size() <= 1:
        return values
    is_first = group.rank() == 0
    sent = torch.tensor(values if is_first else [0] * len(values), dtype=dtype, device=dev)
    broadcast_tensor(sent, dist.get_process_group_ranks(group)[0], group)
    return values if is_first else sent.tolist()


def broadcast_to_pp_group(
    new_samples: list[Sample] | None,
    num_micro_batches: int | None,
    seqlen_sum_this_global_batch: float | None,
    seqlen_squared_sum_this_global_batch: float | None,
    pp_group: Any,
    dev: torch.device | int | str,
) -> tuple[Any, Any, Any, Any]:
    """Return the arguments, on middle stages of a pipeline those of the first one.

    A collective call. The first and the last stage have packed samples of their own; the stages
    between them get the lengths alone.
    """
    sums = (num_micro_batches, seqlen_sum_this_global_batch, seqlen_squared_sum_this_global_batch)
    rank, size = pp_group.rank(), pp_group.size()
    if size > 2:
        bounds = [[sample[name].tolist() for name in _BOUNDS] for sample in new_samples or ()]
        sent = [(sums, bounds) if rank == 0 else None]
        source = dist.get_process_group_ranks(pp_group)[0]
        dist.broadcast_object_list(sent, source, group=pp_group, device=find_device(pp_group))
        if 0 < rank < size - 1:
            assert sent[0] is not None
            sums, bounds = sent[0]
            new_samples = [
                {
                    name: torch.tensor(values, dtype=torch.int32, device=dev)
                    for name, values in zip(_BOUNDS, sample, strict=True)
                }
                for sample in bounds
            ]
    return (new_samples, *sums)


def create_data_iterator(
    new_samples: list[Sample] | None, pp_group: Any, tp_group: Any, config: Any
) -> Any:
    """Return the iterator of packed samples of this rank, or one for each virtual stage.

    Parameters
    ----------
    new_samples
        The packed samples; on middle stages of a pipeline their lengths.
    pp_group, tp_group
        The process groups of this rank.
    config
        Has ``virtual_pipeline_model_parallel_size``.

    Returns
    -------
    iterator
        Megatron Core's ``RerunDataIterator`` if it is installed; None on all but the first rank of
        tensor parallelism. Virtual stages without tokens get the lengths alone.
    """
    num_stages = config.virtual_pipeline_model_parallel_size or 1
    is_first_rank = tp_group.rank() == 0
    samples = [new_samples if is_first_rank else None] * num_stages
    rank, last = pp_group.rank(), pp_group.size() - 1
    if num_stages > 1 and is_first_rank and rank in (0, last):
        assert new_samples is not None
        bounds = [{name: sample[name] for name in _BOUNDS} for sample in new_samples]
        samples = [bounds] * num_stages
        samples[0 if rank == 0 else -1] = new_samples
    # Megatron Core's training loop can rewind its own kind.
    rewindable = find_class("rerun_state_machine", "RerunDataIterator", iter)
    iterators = [None if part is None else rewindable(iter(part)) for part in samples]
    return iterators if num_stages > 1 else iterators[0]


def reroute_samples_to_dcp_ranks(
    batch: Sequence[Sample],
    global_ids_this_rank: torch.Tensor | Iterable[int],
    global_id_seqlens: Sequence[tuple[int, int]],
    sample_id_groups: Sequence[Sequence[Sequence[int]]],
    offsets: torch.Tensor,
    dp_group: Any,
    tp_group: Any,
    dp_cp_group: Any,
    total_dcp_gpus: int,
) -> dict[int, Sample]:
    """Send this rank's sub-samples to the ranks that process them; a collective call.

    Parameters
    ----------
    batch
        Sub-samples of this rank. All ranks must have the same names of tensors.
    global_ids_this_rank
        Their numbers.
    global_id_seqlens
        Number and length of every sub-sample.
    sample_id_groups
        For each micro-batch and rank the numbers of its sub-samples.
    offsets
        Shape (data-parallel ranks + 1,): number of the first sub-sample of each.
    dp_group, dp_cp_group
        The data-parallel ranks with the same share of the context, and all of them.
    tp_group
        Accepted for Megatron's callers, and ignored: groups know the places of their ranks.
    total_dcp_gpus
        Ranks of ``dp_cp_group``.

    Returns
    -------
    samples
        The sub-samples of this rank by number.
    """
    if isinstance(global_ids_this_rank, torch.Tensor):
        global_ids_this_rank = global_ids_this_rank.tolist()
    wanted = [
        [number for group in sample_id_groups for number in group[rank]]
        for rank in range(total_dcp_gpus)
    ]
    sizes = SampleLengths([length for _, length in global_id_seqlens], offsets.cpu())
    own = dict(zip(global_ids_this_rank, batch, strict=True))
    return exchange(own, wanted, sizes, dp_group, dp_cp_group)


def build_packed_microbatches(
    grouped_samples: Sequence[Sequence[Sample]], dev: torch.device | int | str
) -> list[Sample]:
    """Return the packed sample of each micro-batch; see `join_samples`.

    Parameters
    ----------
    grouped_samples
        The sub-samples of each micro-batch, at least one, with ``original_seq_len`` and
        ``padded_seq_len``.
    dev
        Device of the lengths.
    """
    packed = []
    for samples in grouped_samples:
        padded, original = (
            torch.cat([sample[name].reshape(-1) for sample in samples])
            for name in ("padded_seq_len", "original_seq_len")
        )
        packed.append(join_samples(samples, padded, original, dev))
    return packed


def get_batch_and_global_seqlens(
    data_iterator: Iterator[Any], num_microbatches: int, dp_group: Any
) -> tuple[list[Sample], list[tuple[int, int]], torch.Tensor, torch.Tensor, list[int]]:
    """Return the sub-samples of this rank, and the lengths of those of all; a collective call.

    Parameters
    ----------
    data_iterator
        Samples, or lists of samples; see `unpack_samples`.
    num_microbatches
        How often it is advanced.
    dp_group
        The data-parallel ranks.

    Returns
    -------
    batch
        The sub-samples of this rank.
    global_id_seqlens, global_ids_this_rank, offsets, seqlens_gathered
        As of ``_get_global_seqlens_and_ids``.

    Raises
    ------
    SourceError
        If the iterator yields anything else.
    """
    samples: list[Sample] = []
    for _ in range(num_microbatches):
        item = next(data_iterator)
        if not isinstance(item, dict | list):
            raise SourceError(
                "a data iterator of packed samples must yield samples or lists of them, got "
                f"{type(item).__name__}; use a collate_fn that returns its argument"
            )
        samples += item if isinstance(item, list) else [item]
    batch = unpack_samples(samples)
    lengths = torch.cat([sample["padded_seq_len"] for sample in batch]).to(torch.int32)
    return (batch, *_get_global_seqlens_and_ids(lengths, dp_group))
