"""Documents on a device, against loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from zindex.loading.device import (
    block_diagonal_mask,
    document_mask_mod,
    find_documents,
    mask_loss,
    number_documents,
    pack_documents,
    positions_and_cu_seqlens,
)

BATCHES = st.integers(1, 12).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, 2), min_size=length, max_size=length), min_size=1, max_size=4
    )
)


def split(row: list[int]) -> list[list[int]]:
    """Cut a sample into its documents; 0 ends one and belongs to it."""
    documents: list[list[int]] = [[]]
    for token in row:
        documents[-1].append(token)
        if token == 0:
            documents.append([])
    return [document for document in documents if document]


@given(BATCHES)
def test_documents(rows: list[list[int]]) -> None:
    tokens = torch.tensor(rows)
    documents = [split(row) for row in rows]
    ids = [[i for i, document in enumerate(row) for _ in document] for row in documents]
    positions = [[i for document in row for i in range(len(document))] for row in documents]
    lengths = [len(document) for row in documents for document in row]
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    packed = positions_and_cu_seqlens(tokens, 0)
    assert find_documents(tokens, 0).tolist() == ids
    assert number_documents(torch.tensor(positions)).tolist() == ids
    assert packed.position_ids.tolist() == positions
    assert packed.cu_seqlens.tolist() == bounds
    assert packed.cu_seqlens.dtype is packed.max_seqlen.dtype is torch.int32
    assert (int(packed.max_seqlen), int(packed.num_documents)) == (max(lengths), len(lengths))
    roomy = positions_and_cu_seqlens(tokens, 0, max_documents=len(lengths) + 3)
    assert roomy.cu_seqlens.tolist() == bounds + [bounds[-1]] * 3
    assert torch.equal(roomy.max_seqlen, packed.max_seqlen)


def test_more_documents_than_there_is_room_for() -> None:
    tokens = torch.tensor([[1, 0, 1, 0, 1, 1]])
    packed = positions_and_cu_seqlens(tokens, 0, max_documents=2)
    assert packed.cu_seqlens.tolist() == [0, 2, 6]
    assert int(packed.num_documents) == 3


@given(BATCHES)
def test_masks(rows: list[list[int]]) -> None:
    tokens = torch.tensor(rows)
    ids = find_documents(tokens, 0)
    size, length = tokens.shape
    masked = [
        [[key > query or of[key] != of[query] for key in range(length)] for query in range(length)]
        for of in ids.tolist()
    ]
    assert block_diagonal_mask(ids).squeeze(1).tolist() == masked
    attended = create_mask(document_mask_mod(ids), size, 1, length, length, device="cpu")
    assert torch.equal(attended, ~block_diagonal_mask(ids))


@given(BATCHES, st.integers(0, 3), st.booleans())
def test_loss_masks(rows: list[list[int]], skip_first: int, skip_end: bool) -> None:
    mask = mask_loss(torch.tensor(rows), 0, skip_first=skip_first, skip_end=skip_end)
    expected = [
        [
            float(i >= skip_first and not (skip_end and token == 0))
            for document in split(row)
            for i, token in enumerate(document)
        ]
        for row in rows
    ]
    assert (mask.dtype, mask.tolist()) == (torch.float32, expected)


@pytest.mark.parametrize("max_documents", [None, 9])
def test_documents_of_inter_document_masking(max_documents: int | None) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    packed = pack_documents(number_documents(positions), max_documents=max_documents)
    assert torch.equal(packed.position_ids, positions)
    assert packed.cu_seqlens.tolist()[:5] == [0, 3, 5, 6, 10]
