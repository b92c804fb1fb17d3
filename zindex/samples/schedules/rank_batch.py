"""The tensors of a packed sample on each rank of tensor, pipeline and context parallelism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from zindex.errors import ConfigError, SourceError
from zindex.samples.schedules.exchange import Sample, find_class, find_device, find_groups
from zindex.samples.schedules.packed_samples import TOKEN_KEYS, find_padding, find_share
from zindex.samples.schedules.steps import broadcast_scalars, broadcast_tensor


@dataclass
class _PackedSeqParams:
    """The fields of Megatron Core's ``PackedSeqParams`` that are set here, if it is missing."""

    qkv_format: str
    cu_seqlens_q: torch.Tensor
    cu_seqlens_kv: torch.Tensor
    cu_seqlens_q_padded: torch.Tensor
    cu_seqlens_kv_padded: torch.Tensor
    max_seqlen_q: int
    max_seqlen_kv: int


def get_batch_on_this_rank_for_sequence_packing(
    data_iterator: Any,
    vpp_size: int | None = None,
    mtp_on_this_rank: bool = False,
    vp_stage: int | None = None,
    pg_collection: Any = None,
) -> tuple[Any, ...]:
    """Return the tensors of the next packed sample on this rank; a collective call.

    Parameters
    ----------
    data_iterator
        Packed samples, as `wrap_data_iterator` returns them; None on all but the first rank of
        tensor parallelism.
    vpp_size, vp_stage
        Virtual stages of each pipeline rank, and this one.
    mtp_on_this_rank
        Whether this stage predicts several tokens, and so needs the input tokens.
    pg_collection
        Has the process groups ``tp``, ``pp`` and ``cp``; None uses Megatron Core's.

    Returns
    -------
    tokens, labels, loss_mask, attention_mask, position_ids
        Shape (1, tokens of this rank); None on stages that do not need them. There is no attention
        mask.
    packed_seq_params
        Megatron Core's ``PackedSeqParams``, of format ``thd``, of the sub-samples with padding.
    padding_mask
        Shape (1, tokens of this rank), bool: True in padding.

    Raises
    ------
    SourceError
        If a tensor is missing, or does not fit the lengths.
    PlanError
        If sub-samples cannot be divided among the context-parallel ranks.
    """
    names = ("tp", "pp", "cp")
    user = get_batch_on_this_rank_for_sequence_packing.__name__
    tp_group, pp_group, cp_group = find_groups(pg_collection, names, user)
    is_first = pp_group.rank() == 0 and not vp_stage
    is_last = pp_group.rank() == pp_group.size() - 1 and (
        vp_stage is None or vp_stage == (vpp_size or 1) - 1
    )
    needed = ["tokens", "position_ids"] if is_first or mtp_on_this_rank else []
    needed += ["labels", "loss_mask"] if is_last else []
    device = find_device(tp_group)
    batch: Sample = {}
    if tp_group.rank() == 0:
        batch = _take_share(next(data_iterator), needed, cp_group)
    elif data_iterator is not None:
        raise ConfigError(
            f"{user} takes data on the first rank of tensor parallelism, got a data iterator on "
            f"rank {tp_group.rank()}; pass None there"
        )
    sizes = [len(batch["cu_seqlens_padded"]), len(batch["padding_mask"])] if batch else [0, 0]
    num_bounds, num_tokens = broadcast_scalars(sizes, tp_group, device, torch.int32)
    shapes: dict[str, tuple[int, ...]] = {
        "cu_seqlens_padded": (num_bounds,),
        "max_seqlen": (1,),
    }
    shapes |= dict.fromkeys([*needed, "padding_mask"], (1, num_tokens))
    source = dist.get_process_group_ranks(tp_group)[0]
    for name, shape in shapes.items():
        if tp_group.rank() == 0:
            batch[name] = batch[name].reshape(shape).contiguous()
        else:
            batch[name] = torch.empty(shape, dtype=_DTYPES[name], device=device)
        broadcast_tensor(batch[name], source, tp_group)
    bounds, longest = batch["cu_seqlens_padded"], int(batch["max_seqlen"])
    kind = find_class("packed_seq_params", "PackedSeqParams", _PackedSeqParams)
    # Transformer Engine is given the lengths with padding as the lengths, as by Megatron Core.
    bounds_of = dict.fromkeys(
        (f"cu_seqlens_{side}" for side in ("q", "kv", "q_padded", "kv_padded")), bounds
    )
    longest_of = {"max_seqlen_q": longest, "max_seqlen_kv": longest}
    params = kind(qkv_format="thd", **bounds_of, **longest_of)
    kept = {name: batch[name] if name in needed else None for name in TOKEN_KEYS}
    return (
        *(kept[name] for name in ("tokens", "labels", "loss_mask")),
        None,
        kept["position_ids"],
        params,
        batch["padding_mask"],
    )


# Dtypes of the tensors that ranks of tensor parallelism share.
_DTYPES = {
    "cu_seqlens_padded": torch.int32,
    "max_seqlen": torch.int32,
    "tokens": torch.int64,
    "position_ids": torch.int64,
    "labels": torch.int64,
    "loss_mask": torch.float32,
    "padding_mask": torch.bool,
}


def _take_share(sample: Mapping[str, Any], needed: Sequence[str], cp_group: Any) -> Sample:
    """Return the tokens of a packed sample that this rank processes, zeros in padding."""
    missing = [name for name in (*needed, "cu_seqlens", "cu_seqlens_padded") if name not in sample]
    if missing:
        raise SourceError(
            f"a packed sample must have {', '.join(missing)} on this stage, got "
            f"{', '.join(sample)}; take the iterator that wrap_data_iterator returns"
        )
    bounds = sample["cu_seqlens_padded"]
    batch = {name: sample[name] for name in needed}
    padding = _build_thd_padding_mask(sample["cu_seqlens"], bounds)
    _sanitize_thd_padding_values(batch, padding)
    batch["padding_mask"] = padding
    if cp_group.size() > 1:
        own = find_share(bounds, cp_group.size(), cp_group.rank())
        batch = {name: value.index_select(0, own) for name, value in batch.items()}
    longest = torch.as_tensor(sample["max_seqlen"], dtype=torch.int32, device=bounds.device)
    batch |= {"cu_seqlens_padded": bounds, "max_seqlen": longest}
    wrong = [name for name, value in batch.items() if value.dtype != _DTYPES[name]]
    if wrong:
        raise SourceError(
            f"{wrong[0]} of a packed sample must be {_DTYPES[wrong[0]]}, got "
            f"{batch[wrong[0]].dtype}; convert it in the dataset"
        )
    return batch


def _build_thd_padding_mask(
    cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor
) -> torch.Tensor:
    """Return which tokens of a packed sample are padding; see `find_padding`."""
    return find_padding(cu_seqlens, cu_seqlens_padded)


def _sanitize_thd_padding_values(batch: dict[str, Any], padding_mask: torch.Tensor) -> None:
    """Replace the tensors of tokens by ones that are zero in padding.

    Raises
    ------
    SourceError
        If a tensor is not of the size of the mask.
    """
    for name in TOKEN_KEYS:
        value = batch.get(name)
        if value is None:
            continue
        if value.shape != padding_mask.shape:
            raise SourceError(
                f"{name} of a packed sample must have the shape {tuple(padding_mask.shape)} of its "
                f"lengths with padding, got {tuple(value.shape)}; correct cu_seqlens_padded"
            )
        batch[name] = value.masked_fill(padding_mask, 0)
