"""Packed samples: their sub-samples, their padding, and their tokens on each rank."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from zindex.errors import PlanError, SourceError
from zindex.samples.schedules.exchange import LENGTHS, Sample

#: Tensors of a packed sample with a value for each token.
TOKEN_KEYS = ("tokens", "labels", "loss_mask", "position_ids")

# Tensors of a packed sample as a whole, which have no token dimension.
_WHOLE = ("cu_seqlens", "batch_idx", "max_seqlen", *LENGTHS)


def cut_samples(batch: Iterable[Sample]) -> list[Sample]:
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
        bounds = sample["cu_seqlens"].tolist() if "cu_seqlens" in sample else [0, count_tokens(cut)]
        for start, stop in pairwise(bounds):
            if stop > start:
                parts.append({name: value[start:stop] for name, value in cut.items()})
    return parts


def _has_tokens(name: str, value: Any) -> bool:
    """Return whether a value of a sample has a token dimension."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and name not in _WHOLE


def count_tokens(sample: Sample) -> int:
    """Return the tokens of a sub-sample."""
    return len(next(iter(sample.values())))


def unpack_samples(batch: Sequence[Sample]) -> list[Sample]:
    """Return the sub-samples of samples, with their lengths.

    Parameters
    ----------
    batch
        Packed samples with ``cu_seqlens``, or sub-samples with ``padded_seq_len``, and
        ``original_seq_len`` if it differs. A leading dimension of size 1 is removed.

    Returns
    -------
    samples
        With the tensors of tokens, and ``original_seq_len`` and ``padded_seq_len`` of shape (1,).

    Raises
    ------
    SourceError
        If samples are of both kinds, or collated with others.
    """
    samples = [
        {name: _drop_first(name, value) for name, value in sample.items()} for sample in batch
    ]
    is_cut = [LENGTHS[1] in sample for sample in samples]
    for i, sample in enumerate(samples):
        if is_cut[i] != is_cut[0] or is_cut[i] == ("cu_seqlens" in sample):
            raise SourceError(
                "all samples of a batch must have cu_seqlens, or all must have padded_seq_len, "
                f"sample {i} has {', '.join(sample)}; give samples of one dataset"
            )
    if all(is_cut):
        original, padded = LENGTHS
        return [
            sample if original in sample else sample | {original: sample[padded].clone()}
            for sample in samples
        ]
    kept = (*TOKEN_KEYS, "cu_seqlens")
    parts = cut_samples(
        [{name: sample[name] for name in kept if name in sample} for sample in samples]
    )
    for part in parts:
        length = torch.tensor([count_tokens(part)], device=part["tokens"].device)
        part.update(dict.fromkeys(LENGTHS, length))
    return parts


def _drop_first(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a value without the dimension of a batch of one sample."""
    if value.dim() != 2:
        return value
    if len(value) != 1:
        raise SourceError(
            f"samples must be collated one by one, {name} has the shape {tuple(value.shape)}; use "
            "micro_batch_size 1, or a collate_fn that returns its argument"
        )
    return value[0]


def join_samples(
    samples: Sequence[Sample],
    padded_lengths: torch.Tensor,
    original_lengths: torch.Tensor,
    device: torch.device | int | str,
) -> Sample:
    """Return the packed sample of sub-samples.

    Parameters
    ----------
    samples
        The sub-samples, at least one.
    padded_lengths, original_lengths
        Shape (sub-samples,): their lengths with and without padding.
    device
        Of the lengths.

    Returns
    -------
    packed
        The tensors of tokens, of shape (tokens,); ``cu_seqlens`` and ``cu_seqlens_padded``, of
        shape (sub-samples + 1,), int32; and ``max_seqlen``, int32, without dimensions.
    """
    packed = {
        name: torch.cat([sample[name].reshape(-1) for sample in samples]) for name in TOKEN_KEYS
    }
    padded = padded_lengths.to(device, torch.int32, non_blocking=True).reshape(-1)
    original = original_lengths.to(device, torch.int32, non_blocking=True).reshape(-1)
    packed["cu_seqlens_padded"] = _add_up(padded)
    packed["max_seqlen"] = padded.max()
    packed["cu_seqlens"] = _add_up(original)
    return packed


def _add_up(lengths: torch.Tensor) -> torch.Tensor:
    """Return where each of consecutive spans starts, and where the last one stops, as int32."""
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def find_padding(cu_seqlens: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a packed sample are padding: shape (tokens,), bool.

    Parameters
    ----------
    cu_seqlens, cu_seqlens_padded
        Shape (sub-samples + 1,): where they start without and with padding.

    Examples
    --------
    >>> find_padding(torch.tensor([0, 1, 3]), torch.tensor([0, 2, 4])).tolist()
    [False, True, False, False]
    """
    if cu_seqlens.shape != cu_seqlens_padded.shape or cu_seqlens.dim() != 1:
        raise SourceError(
            "cu_seqlens and cu_seqlens_padded must have one dimension and one size, got "
            f"{tuple(cu_seqlens.shape)} and {tuple(cu_seqlens_padded.shape)}; give those of one "
            "sample"
        )
    padded = cu_seqlens_padded.diff()
    real = torch.minimum(cu_seqlens.diff().clamp(min=0), padded)
    is_padding = torch.tensor([False, True], device=padded.device).repeat(len(padded))
    return is_padding.repeat_interleave(torch.stack([real, padded - real], dim=1).reshape(-1))


def find_share(cu_seqlens: torch.Tensor, num_ranks: int, rank: int) -> torch.Tensor:
    """Return the tokens of a packed sample that a context-parallel rank processes.

    Parameters
    ----------
    cu_seqlens
        Shape (sub-samples + 1,): where they start, each padded to a multiple of twice the ranks.
    num_ranks, rank
        The context-parallel ranks, and this one.

    Returns
    -------
    places
        Shape (tokens / ranks,), int64. Each sub-sample is divided into twice as many chunks as
        there are ranks, of which rank r has chunk r, and chunk r from the end: with a causal mask,
        all ranks have the same work.

    Raises
    ------
    PlanError
        If a length is no such multiple.

    Notes
    -----
    Source: Transformer Engine, ``thd_get_partitioned_indices``.

    Examples
    --------
    >>> find_share(torch.tensor([0, 4, 12]), num_ranks=2, rank=0).tolist()
    [0, 3, 4, 5, 10, 11]
    """
    lengths = cu_seqlens.diff().long()
    if (lengths % (2 * num_ranks)).any():
        wrong = lengths[lengths % (2 * num_ranks) > 0]
        raise PlanError(
            f"sub-samples must be padded to a multiple of {2 * num_ranks} tokens, twice the "
            f"context-parallel ranks, got {int(wrong[0])}; set context_parallel_size of the dataset"
        )
    chunks = (lengths // (2 * num_ranks)).repeat_interleave(2)
    numbers = torch.tensor([rank, 2 * num_ranks - 1 - rank], device=lengths.device)
    starts = cu_seqlens[:-1].long().repeat_interleave(2)
    starts = starts + chunks * numbers.repeat(len(lengths))
    before = chunks.cumsum(0) - chunks
    return (starts - before).repeat_interleave(chunks) + torch.arange(
        int(chunks.sum()), device=lengths.device
    )
