"""Attention masks, loss masks and position ids of left-to-right models, without Python loops."""

from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

import torch

Masks = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]


class _Kept(NamedTuple):
    """A mask that is handed out again and again, and torch's count of writes when it was made."""

    mask: torch.Tensor
    version: int

    @property
    def is_sound(self) -> bool:
        """Whether nobody has written to it, nor through a view of it."""
        return self.mask._version == self.version


# By length and device, the last ones used.
_kept: OrderedDict[tuple[int, torch.device], _Kept] = OrderedDict()
_NUM_KEPT = 4


def causal_mask(sequence_length: int, device: torch.device) -> torch.Tensor:
    """Return the mask of plain causal attention: one tensor for all samples of a process.

    Parameters
    ----------
    sequence_length
        Tokens per sample.
    device
        Where it lies.

    Returns
    -------
    mask
        Shape (1, sequence_length, sequence_length), bool, True where attention is masked. It is
        shared by items and datasets: clone it before writing to it. Once written to, also through
        a view, it is handed out no more; those who hold it see what was written.

    Notes
    -----
    A copy for every batch would take longer than the rest of the batch; torch's count of writes is
    looked up in less than a microsecond. It misses writes past torch, by ``.numpy()`` or ``.data``.
    """
    key = (sequence_length, device)
    kept = _kept.get(key)
    if kept is None or not kept.is_sound:
        # Tensors made in inference mode do not count who writes to them.
        with torch.inference_mode(False):
            positions = torch.arange(sequence_length, device=device)
            mask = (positions > positions[:, None]).unsqueeze(0)
        kept = _kept[key] = _Kept(mask, mask._version)
        if len(_kept) > _NUM_KEPT:
            with suppress(KeyError):  # another thread was faster
                _kept.popitem(last=False)
    return kept.mask


def is_causal_mask(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view of what `causal_mask` hands out, for so many tokens."""
    kept = _kept.get((tensor.shape[-1], tensor.device)) if tensor.dim() else None
    if kept is None or not kept.is_sound:
        return False
    whole = kept.mask[0]
    is_whole = tensor.shape[-2:] == whole.shape and tensor.stride()[-2:] == whole.stride()
    return is_whole and tensor.data_ptr() == whole.data_ptr() and tensor.dtype == whole.dtype


def document_starts(data: torch.Tensor, eod_token: int) -> torch.Tensor:
    """Return, for each token, the position at which its document starts.

    Parameters
    ----------
    data
        Shape (tokens,), token ids.
    eod_token
        Id of the end of a document, which belongs to the document that it ends.

    Returns
    -------
    starts
        Shape (tokens,), int64.

    Examples
    --------
    >>> document_starts(torch.tensor([5, 0, 6, 7, 0, 8]), 0).tolist()
    [0, 0, 2, 2, 2, 5]
    """
    starts = torch.zeros(data.numel(), dtype=torch.long, device=data.device)
    if data.numel() > 1:
        after = torch.arange(1, data.numel(), device=data.device)
        starts[1:] = torch.where(data[:-1] == eod_token, after, 0).cummax(0).values
    return starts


def _get_ltor_masks_and_position_ids(
    data: torch.Tensor,
    eod_token: int,
    reset_position_ids: bool,
    reset_attention_mask: bool,
    eod_mask_loss: bool,
    create_attention_mask: bool,
) -> Masks:
    """Return the masks and position ids of one sample, all of them its own.

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
        Whether the prediction made from an end of document counts nothing.
    create_attention_mask
        Whether to make an attention mask at all.

    Returns
    -------
    attention_mask
        Shape (1, tokens, tokens), bool, True where masked; None if not asked for.
    loss_mask
        Shape (tokens,), float32.
    position_ids
        Shape (tokens,), int64.

    Notes
    -----
    Source: Megatron Core, the function of this name, whose loop over the ends of documents is one
    comparison here: column c is masked in row r if c > r or c lies before the start of r's
    document. Cost: two boolean comparisons of tokens * tokens.
    """
    length = data.numel()
    positions = torch.arange(length, dtype=torch.long, device=data.device)
    starts = None
    if reset_position_ids or reset_attention_mask:
        starts = document_starts(data, eod_token)
    attention_mask = None
    if create_attention_mask:
        attention_mask = positions > positions[:, None]
        if starts is not None and reset_attention_mask:
            attention_mask.logical_or_(positions < starts[:, None])
        attention_mask = attention_mask.unsqueeze(0)
    loss_mask = torch.ones(length, dtype=torch.float32, device=data.device)
    if eod_mask_loss:
        loss_mask[data == eod_token] = 0.0
    position_ids = positions
    if starts is not None and reset_position_ids:
        position_ids = positions - starts
    return attention_mask, loss_mask, position_ids
