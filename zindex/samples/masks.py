"""Attention masks, loss masks and position ids of left-to-right models."""

from collections import OrderedDict
from contextlib import suppress
from typing import Any

import torch

Masks = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]


# Recent masks by length and device, each with torch's version counter at its creation.
_cache: OrderedDict[tuple[int, torch.device], tuple[torch.Tensor, int]] = OrderedDict()
_MAX_CACHED = 4


def causal_mask(sequence_length: int, device: torch.device) -> torch.Tensor:
    """Return the mask of plain causal attention: one tensor for all samples of a process.

    Parameters
    ----------
    sequence_length
        Tokens per sample.
    device
        Device of the mask.

    Returns
    -------
    mask
        Shape (1, sequence_length, sequence_length), bool, True where attention is masked. Items and
        datasets share it: clone it before writing to it. After a write, also through a view, later
        calls return a new mask; earlier users see the write.

    Notes
    -----
    Copying the mask for every batch would take longer than the rest of the batch; reading torch's
    version counter takes less than a microsecond. It does not count writes through ``.numpy()`` or
    ``.data``.
    """
    key = (sequence_length, device)
    mask = _find_unchanged(key)
    if mask is None:
        # Tensors created in inference mode have no version counter.
        with torch.inference_mode(False):
            positions = torch.arange(sequence_length, device=device)
            mask = (positions > positions[:, None]).unsqueeze(0)
        _cache[key] = mask, mask._version
        if len(_cache) > _MAX_CACHED:
            with suppress(KeyError):  # another thread removed it first
                _cache.popitem(last=False)
    return mask


def _find_unchanged(key: tuple[int, torch.device]) -> torch.Tensor | None:
    """Return a cached mask, unless it or a view of it was written to."""
    mask, version = _cache.get(key, (None, 0))
    return None if mask is None or mask._version != version else mask


def is_causal_mask(tensor: Any) -> bool:
    """Return whether a value is a view of the mask that `causal_mask` shares for its length."""
    is_tensor = isinstance(tensor, torch.Tensor) and tensor.dim() > 0
    mask = _find_unchanged((tensor.shape[-1], tensor.device)) if is_tensor else None
    if mask is None:
        return False
    whole = mask[0]
    is_whole = tensor.shape[-2:] == whole.shape and tensor.stride()[-2:] == whole.stride()
    return bool(is_whole and tensor.data_ptr() == whole.data_ptr() and tensor.dtype == whole.dtype)


def document_starts(data: torch.Tensor, eod_token: int) -> torch.Tensor:
    """Return the position at which each token's document starts.

    Parameters
    ----------
    data
        Shape (..., tokens), token ids.
    eod_token
        Id of the end of a document; the token belongs to that document.

    Returns
    -------
    starts
        Of the same shape, int64.

    Examples
    --------
    >>> document_starts(torch.tensor([5, 0, 6, 7, 0, 8]), 0).tolist()
    [0, 0, 2, 2, 2, 5]
    """
    starts = torch.zeros_like(data, dtype=torch.long)
    if data.shape[-1] > 1:
        after = torch.arange(1, data.shape[-1], device=data.device)
        starts[..., 1:] = torch.where(data[..., :-1] == eod_token, after, 0).cummax(-1).values
    return starts


def _get_ltor_masks_and_position_ids(
    data: torch.Tensor,
    eod_token: int,
    reset_position_ids: bool,
    reset_attention_mask: bool,
    eod_mask_loss: bool,
    create_attention_mask: bool,
) -> Masks:
    """Return the masks and position ids of one sample; none is shared with other samples.

    Parameters
    ----------
    data
        Shape (tokens,), the input token ids.
    eod_token
        Id of the end of a document.
    reset_position_ids
        Whether positions count from the start of each document.
    reset_attention_mask
        Whether attention stays within a document.
    eod_mask_loss
        Whether the prediction from an end of document has no weight.
    create_attention_mask
        Whether to make an attention mask.

    Returns
    -------
    attention_mask
        Shape (1, tokens, tokens), bool, True where masked; None without ``create_attention_mask``.
    loss_mask
        Shape (tokens,), float32.
    position_ids
        Shape (tokens,), int64.

    Notes
    -----
    Column c is masked in row r if c > r or c is before the start of r's document. Cost: two boolean
    comparisons of tokens * tokens. Source: Megatron Core, the function of this name, which loops
    over the ends of documents.
    """
    length = data.numel()
    positions = torch.arange(length, dtype=torch.long, device=data.device)
    starts = torch.zeros_like(positions)
    if reset_position_ids or reset_attention_mask:
        starts = document_starts(data, eod_token)
    attention_mask = None
    if create_attention_mask:
        attention_mask = positions > positions[:, None]
        if reset_attention_mask:
            attention_mask.logical_or_(positions < starts[:, None])
        attention_mask = attention_mask.unsqueeze(0)
    loss_mask = torch.ones(length, dtype=torch.float32, device=data.device)
    if eod_mask_loss:
        loss_mask[data == eod_token] = 0.0
    position_ids = positions - starts if reset_position_ids else positions
    return attention_mask, loss_mask, position_ids
