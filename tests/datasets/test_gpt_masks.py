"""Masks and position ids against the loops that define them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zindex.datasets.gpt_masks import (
    _get_ltor_masks_and_position_ids,
    causal_mask,
    document_starts,
)

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def naive(
    data: list[int], reset_positions: bool, reset_attention: bool, mask_loss: bool
) -> tuple[list[list[bool]], list[float], list[int]]:
    """Say for each pair of tokens what the words say; 0 ends a document and belongs to it."""
    document, documents, positions = 0, [], []
    start = 0
    for i, token in enumerate(data):
        documents.append(document)
        positions.append(i - start if reset_positions else i)
        if token == 0:
            document, start = document + 1, i + 1
    masked = [
        [
            column > row or (reset_attention and documents[column] != documents[row])
            for column in range(len(data))
        ]
        for row in range(len(data))
    ]
    return masked, [float(not (mask_loss and token == 0)) for token in data], positions


@given(TOKENS, st.booleans(), st.booleans(), st.booleans())
def test_as_the_words_say(
    data: list[int], reset_positions: bool, reset_attention: bool, mask_loss: bool
) -> None:
    masked, loss, positions = naive(data, reset_positions, reset_attention, mask_loss)
    attention_mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(
        torch.tensor(data), 0, reset_positions, reset_attention, mask_loss, True
    )
    assert attention_mask is not None
    assert attention_mask.dtype is torch.bool
    assert attention_mask.tolist() == [masked]
    assert (loss_mask.dtype, loss_mask.tolist()) == (torch.float32, loss)
    assert (position_ids.dtype, position_ids.tolist()) == (torch.int64, positions)


def test_no_attention_mask_unless_asked() -> None:
    mask, _, _ = _get_ltor_masks_and_position_ids(torch.arange(3), 0, True, True, True, False)
    assert mask is None


@pytest.mark.parametrize(
    ("data", "starts"),
    [([], []), ([0], [0]), ([0, 0, 5], [0, 1, 2]), ([5, 6, 0], [0, 0, 0])],
)
def test_document_starts(data: list[int], starts: list[int]) -> None:
    assert document_starts(torch.tensor(data, dtype=torch.int64), 0).tolist() == starts


def test_causal_mask_is_made_once() -> None:
    mask = causal_mask(3, torch.device("cpu"))
    assert mask.tolist() == [[[False, True, True], [False, False, True], [False, False, False]]]
    assert causal_mask(3, torch.device("cpu")) is mask
