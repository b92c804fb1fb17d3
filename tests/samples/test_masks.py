"""Masks and position ids against the loops that define them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zindex.samples import masks
from zindex.samples.masks import (
    _get_ltor_masks_and_position_ids,
    causal_mask,
    document_starts,
    is_causal_mask,
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
def test_masks_follow_their_definition(
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


def test_no_attention_mask_by_default() -> None:
    mask, _, _ = _get_ltor_masks_and_position_ids(torch.arange(3), 0, True, True, True, False)
    assert mask is None


@pytest.mark.parametrize(
    ("data", "starts"), [([], []), ([0], [0]), ([0, 0, 5], [0, 1, 2]), ([5, 6, 0], [0, 0, 0])]
)
def test_document_starts(data: list[int], starts: list[int]) -> None:
    assert document_starts(torch.tensor(data, dtype=torch.int64), 0).tolist() == starts


def test_causal_mask_is_made_once() -> None:
    mask = causal_mask(3, torch.device("cpu"))
    assert mask.tolist() == [[[False, True, True], [False, False, True], [False, False, False]]]
    assert causal_mask(3, torch.device("cpu")) is mask


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "row": lambda masks: masks[1].fill_(False),
    "element": lambda masks: masks[2, 0, 1].__setitem__(0, True),
    "detached": lambda masks: masks.detach()[0].logical_not_(),
    "out": lambda masks: torch.logical_not(masks[0], out=masks[1]),
}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_mask_is_replaced_after_a_write(name: str, *, is_inference: bool) -> None:
    """torch refuses to change an expanded tensor, but not a part of it."""
    cpu = torch.device("cpu")
    with torch.inference_mode(is_inference):
        masks = causal_mask(5, cpu).expand(3, 1, 5, 5)
        expected = torch.ones(5, 5, dtype=torch.bool).triu(1)
        assert torch.equal(masks[0, 0], expected)
        assert is_causal_mask(masks)
        WRITES[name](masks)
        assert not is_causal_mask(masks)
        assert not torch.equal(masks[0, 0], expected)
        after = causal_mask(5, cpu)
        assert torch.equal(after[0], expected)
        assert causal_mask(5, cpu) is after


def test_few_masks_are_cached() -> None:
    for length in range(1, 30):
        assert causal_mask(length, torch.device("cpu")).shape == (1, length, length)
        assert causal_mask(length, torch.device("meta")).device.type == "meta"
    assert len(masks._cache) == 4


def test_tensors_that_are_not_causal_masks() -> None:
    mask = causal_mask(4, torch.device("cpu"))
    assert is_causal_mask(mask)
    others = (mask.clone(), mask.transpose(1, 2), mask[0, :3], mask[0, 1:], torch.tensor(1))
    assert not any(map(is_causal_mask, others[:-1]))
    assert not is_causal_mask(others[-1])
