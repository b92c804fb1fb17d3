"""Document masks, positions and boundaries of a batch, computed on its device.

There are no loops over samples, and no synchronisation with the device unless documented. Documents
are numbered in ascending order within each sample: `find_documents` derives them from end tokens,
`number_documents` from position ids that restart, such as those of ``inter_document_masking``.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from zindex.samples.masks import document_starts


class PackedDocuments(NamedTuple):
    """The documents of a batch, for variable-length attention."""

    #: Position of each token in its document, shape (samples, tokens), int64.
    position_ids: Tensor
    #: Int32: start of each document in the flattened batch, and the end of the last one.
    cu_seqlens: Tensor
    #: 0-d, int32: tokens of the longest document.
    max_seqlen: Tensor
    #: 0-d, int64: documents of the batch.
    num_documents: Tensor


def find_documents(tokens: Tensor, eod: int) -> Tensor:
    """Return the number of each token's document within its sample.

    Parameters
    ----------
    tokens
        Shape (samples, tokens), token ids.
    eod
        Id of the end-of-document token, which belongs to the document that it ends.

    Returns
    -------
    document_ids
        Shape (samples, tokens), int64, from 0 in each sample.

    Examples
    --------
    >>> find_documents(torch.tensor([[5, 0, 6, 7, 0, 8]]), 0).tolist()
    [[0, 0, 1, 1, 1, 2]]
    """
    ends = tokens == eod
    return ends.cumsum(1) - ends.long()


def number_documents(position_ids: Tensor) -> Tensor:
    """Return the number of each token's document within its sample, from positions that restart.

    Parameters
    ----------
    position_ids
        Shape (samples, tokens): 0 where a document starts.

    Returns
    -------
    document_ids
        Shape (samples, tokens), int64, from 0 in each sample.

    Examples
    --------
    >>> number_documents(torch.tensor([[0, 1, 0, 1, 2, 0]])).tolist()
    [[0, 0, 1, 1, 1, 2]]
    """
    return (position_ids == 0).cumsum(1) - (position_ids[:, :1] == 0).long()


def pack_documents(document_ids: Tensor, *, max_documents: int | None = None) -> PackedDocuments:
    """Return positions and boundaries of documents for packed attention.

    Parameters
    ----------
    document_ids
        Shape (samples, tokens), as of `find_documents`; samples never share a document.
    max_documents
        Length of ``cu_seqlens`` minus one, so that its shape does not depend on the data; missing
        documents are empty. If there are more documents, ``num_documents`` exceeds it and the last
        document includes the rest. None counts the documents, which synchronises with a GPU.
    """
    total, device = document_ids.numel(), document_ids.device
    is_start = torch.ones_like(document_ids, dtype=torch.bool)
    is_start[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    columns = torch.arange(document_ids.shape[1], device=device)
    starts = torch.where(is_start, columns, 0).cummax(1).values
    flags = is_start.flatten()
    numbers = flags.cumsum(0) - 1
    num_documents = flags.sum()
    if max_documents is None:
        max_documents = int(num_documents)
    bounds = torch.full((max_documents + 2,), total, dtype=torch.int32, device=device)
    # Other tokens, and surplus documents, are written to an extra entry that is dropped.
    entries = torch.where(flags & (numbers < max_documents), numbers, max_documents + 1)
    bounds.scatter_(0, entries, torch.arange(total, dtype=torch.int32, device=device))
    cu_seqlens = bounds[:-1]
    max_seqlen = cu_seqlens.diff().max()
    return PackedDocuments(columns - starts, cu_seqlens, max_seqlen, num_documents)


def positions_and_cu_seqlens(
    tokens: Tensor, eod: int, *, max_documents: int | None = None
) -> PackedDocuments:
    """Return positions and boundaries of documents separated by end tokens.

    Parameters
    ----------
    tokens
        Shape (samples, tokens), token ids.
    eod
        Id of the end-of-document token.
    max_documents
        As of `pack_documents`.

    Examples
    --------
    >>> packed = positions_and_cu_seqlens(torch.tensor([[5, 0, 6], [7, 8, 9]]), 0)
    >>> packed.position_ids.tolist(), packed.cu_seqlens.tolist(), int(packed.max_seqlen)
    ([[0, 1, 0], [0, 1, 2]], [0, 2, 3, 6], 3)
    """
    return pack_documents(find_documents(tokens, eod), max_documents=max_documents)


def mask_loss(tokens: Tensor, eod: int, *, skip_first: int = 0, skip_end: bool = False) -> Tensor:
    """Return a loss mask by the position of each token in its document.

    Parameters
    ----------
    tokens
        Shape (samples, tokens), the inputs.
    eod
        Id of the end-of-document token.
    skip_first
        Number of masked inputs at the start of each document and of each sample.
    skip_end
        Whether to mask the end token as well, whose target is in the next document.

    Returns
    -------
    loss_mask
        Shape (samples, tokens), float32: 0 where masked. Multiply it with the batch's own.
    """
    mask = torch.ones(tokens.shape, dtype=torch.float32, device=tokens.device)
    if skip_first > 0:
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        mask.masked_fill_(columns - document_starts(tokens, eod) < skip_first, 0.0)
    if skip_end:
        mask.masked_fill_(tokens == eod, 0.0)
    return mask


def block_diagonal_mask(document_ids: Tensor) -> Tensor:
    """Return Megatron's attention mask, causal and within documents.

    Parameters
    ----------
    document_ids
        Shape (samples, tokens), as of `find_documents`.

    Returns
    -------
    mask
        Shape (samples, 1, tokens, tokens), bool, True where masked; torch's attention takes the
        negation. Cost: samples * tokens * tokens bytes.
    """
    columns = torch.arange(document_ids.shape[1], device=document_ids.device)
    differs = document_ids[:, None, :, None] != document_ids[:, None, None, :]
    return differs.logical_or_(columns > columns[:, None])


def document_mask_mod(document_ids: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the ``mask_mod`` of torch's flex attention for causal attention within documents.

    Parameters
    ----------
    document_ids
        Shape (samples, tokens), as of `find_documents`, on the device of the attention.
    """

    def is_attended(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_same = document_ids[sample, query] == document_ids[sample, key]
        return is_same & (query >= key)

    return is_attended
