"""Where documents of a batch begin."""

import torch

from zindex.keyed import cu_seqlens


def test_samples_are_joined_but_not_their_documents() -> None:
    starts, longest = cu_seqlens(torch.tensor([[0, 0, 0], [0, 1, 1], [0, 1, -1]]))
    assert starts.dtype == torch.int32
    assert starts.tolist() == [0, 3, 4, 6, 7, 8, 9]
    assert longest == 3


def test_a_batch_of_nothing() -> None:
    starts, longest = cu_seqlens(torch.empty((0, 4), dtype=torch.int64))
    assert (starts.tolist(), longest) == ([0], 0)
