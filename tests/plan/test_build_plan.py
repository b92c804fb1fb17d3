"""Shards grow with the datasets of a large run, within bounds."""

import pytest

from zindex.plan.build_plan import MAX_SHARD_LENGTH, MIN_DATASETS, choose_grid
from zindex.store.layout import SHARD_LENGTH, ChunkGrid

MI = 1 << 20


@pytest.mark.parametrize(
    ("num_documents", "expected"),
    [
        ([1] * 1000, 4 * MI),
        ([4 * MI] * 1000, 4 * MI),  # just one shard
        ([4 * MI + 1] * 1000, 8 * MI),
        ([8 * MI + 1] * 1000, 16 * MI),
        ([1000 * MI] * 1000, 16 * MI),  # several shards in any case: memory bounds them
        ([1000 * MI] * 50 + [1] * 950, 4 * MI),  # the few large ones are cut
        ([8 * MI] * 150 + [1] * 850, 8 * MI),
        ([8 * MI] * (MIN_DATASETS - 1), 4 * MI),  # few datasets: more tasks than datasets
        ([8 * MI] * MIN_DATASETS, 8 * MI),
        ([], 4 * MI),
    ],
)
def test_most_datasets_are_one_shard(num_documents: list[int], expected: int) -> None:
    assert choose_grid(ChunkGrid(), num_documents).shard_length == expected
    assert SHARD_LENGTH <= expected <= MAX_SHARD_LENGTH


def test_a_configured_grid_is_kept() -> None:
    asked = ChunkGrid(chunk_length=1 << 10, shard_length=1 << 20)
    assert choose_grid(asked, [8 * MI] * 1000) is asked
    chunked = ChunkGrid(chunk_length=1 << 10, codec="zstd")
    assert choose_grid(chunked, [8 * MI] * 1000) == ChunkGrid(1 << 10, 8 * MI, "zstd")
