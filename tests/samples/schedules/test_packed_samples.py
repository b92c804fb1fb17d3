"""Packed samples: their parts, their padding, and the tokens of each rank."""

from typing import Any

import pytest
import torch

from zindex.errors import PlanError, SourceError
from zindex.samples.schedules.packed_samples import (
    TOKEN_KEYS,
    find_padding,
    find_share,
    join_samples,
    unpack_samples,
)


def make_sample(length: int, **others: Any) -> dict[str, Any]:
    return {name: torch.arange(length) for name in TOKEN_KEYS} | others


def test_packed_samples_are_cut() -> None:
    packed = make_sample(6, cu_seqlens=torch.tensor([0, 2, 2, 6, 6]), max_seqlen=torch.tensor(4))
    parts = unpack_samples([packed])
    assert [part["labels"].tolist() for part in parts] == [[0, 1], [2, 3, 4, 5]]
    assert [part["padded_seq_len"].tolist() for part in parts] == [[2], [4]]
    assert list(parts[0]) == [*TOKEN_KEYS, "original_seq_len", "padded_seq_len"]
    collated = {name: value[None] for name, value in packed.items() if name != "max_seqlen"}
    assert [len(part["tokens"]) for part in unpack_samples([collated])] == [2, 4]


def test_sub_samples_are_kept() -> None:
    [part] = unpack_samples([make_sample(3, padded_seq_len=torch.tensor([3]))])
    assert part["original_seq_len"].tolist() == [3]
    lengths = {"padded_seq_len": torch.tensor([3]), "original_seq_len": torch.tensor([2])}
    assert unpack_samples([make_sample(3, **lengths)])[0]["original_seq_len"].tolist() == [2]
    assert unpack_samples([]) == []


def test_wrong_batches() -> None:
    cut = make_sample(3, padded_seq_len=torch.tensor([3]))
    packed = make_sample(3, cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(SourceError, match="all must have padded_seq_len, sample 1 has tokens"):
        unpack_samples([cut, packed])
    with pytest.raises(SourceError, match=r"must have cu_seqlens, or all .* sample 0 has"):
        unpack_samples([packed | cut])
    with pytest.raises(SourceError, match=r"one by one, tokens has the shape \(2, 3\)"):
        unpack_samples([packed | {"tokens": torch.zeros(2, 3)}])


def test_joined() -> None:
    packed = join_samples(
        [make_sample(4), make_sample(2)], torch.tensor([4, 2]), torch.tensor([3, 2]), "cpu"
    )
    assert packed["tokens"].tolist() == [0, 1, 2, 3, 0, 1]
    assert packed["cu_seqlens"].tolist() == [0, 3, 5]
    assert packed["cu_seqlens_padded"].tolist() == [0, 4, 6]
    assert packed["max_seqlen"].item() == 4
    assert {packed[name].dtype for name in packed if name not in TOKEN_KEYS} == {torch.int32}
    padding = find_padding(packed["cu_seqlens"], packed["cu_seqlens_padded"])
    assert padding.tolist() == [False, False, False, True, False, False]


def test_wrong_bounds() -> None:
    with pytest.raises(SourceError, match=r"one dimension and one size, got \(2,\) and \(3,\)"):
        find_padding(torch.tensor([0, 1]), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_shares(num_ranks: int) -> None:
    lengths = [2 * num_ranks * n for n in (3, 0, 1, 5)]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    shares = [find_share(bounds, num_ranks, rank) for rank in range(num_ranks)]
    assert torch.cat(shares).sort().values.tolist() == list(range(sum(lengths)))
    for rank, share in enumerate(shares):
        expected = []
        for start, length in zip(bounds.tolist(), lengths, strict=False):
            chunks = torch.arange(start, start + length).reshape(2 * num_ranks, -1)
            expected += [*chunks[rank].tolist(), *chunks[2 * num_ranks - 1 - rank].tolist()]
        assert share.tolist() == expected


def test_a_length_that_cannot_be_shared() -> None:
    with pytest.raises(PlanError, match=r"padded to a multiple of 4 tokens, .* got 6; set context"):
        find_share(torch.tensor([0, 4, 10]), 2, 0)
