"""Where the documents of a batch begin, as attention kernels for sequences of any length take it."""

import torch


def cu_seqlens(document_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return where the documents of a batch begin once its samples are joined to one row.

    Parameters
    ----------
    document_ids
        Shape (samples, window_size), int64: the document of each token within its sample, -1 where
        padded, as samples of ``documents="mark"`` and ``"pack"`` have it.

    Returns
    -------
    cu_seqlens
        Shape (documents + 1,), int32, on the same device: token at which each document begins, and
        the tokens of all. The padding behind a sample counts as a document, and so does what a
        window has of one.
    max_seqlen
        Tokens of the longest one.

    Examples
    --------
    >>> starts, longest = cu_seqlens(torch.tensor([[0, 0, 1, 1], [0, 0, 0, -1]]))
    >>> starts.tolist(), longest
    ([0, 2, 4, 7, 8], 3)
    """
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    starts = torch.nonzero(is_first.reshape(-1))[:, 0]
    end = torch.full((1,), document_ids.numel(), dtype=starts.dtype, device=starts.device)
    bounds = torch.cat([starts, end])
    longest = int(bounds.diff().max()) if len(starts) else 0
    return bounds.to(torch.int32), longest
