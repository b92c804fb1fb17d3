"""Layouts: arithmetic by table, laws by hypothesis, metadata as Zarr reads it."""

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.stores import DTYPES, ONE, TWO
from zindex import schema
from zindex.errors import ConfigError
from zindex.store.layout import (
    CHUNK_LENGTH,
    MAX_SHARDS,
    SHARD_LENGTH,
    ArrayLayout,
    ChunkGrid,
    PaddedGrid,
    fit_chunks,
    parse_layouts,
)


@pytest.mark.parametrize(
    ("length", "chunk_length", "shard_length", "expected_shard_length", "num_shards"),
    [
        (0, 4, 8, 1, 0),  # nothing stored, but the grid stays valid
        (1, 4, 8, 1, 1),  # a shard and its chunk shrink to the array
        (3, 4, 8, 3, 1),
        (4, 4, 8, 4, 1),  # exactly one chunk
        (5, 4, 8, 8, 1),  # two chunks fill the shard
        (8, 4, 8, 8, 1),  # exactly one shard
        (9, 4, 8, 8, 2),  # one element more opens a shard
        (10_000, 1, 1, 1, 10_000),  # as many shards as a directory may hold
        (10_001, 1, 1, 2, 5_001),  # one more doubles the shards
        (40_001, 1, 1, 8, 5_001),  # and doubles them as often as needed
        (7, 5, 5, 5, 2),  # chunk and shard alike
    ],
)
def test_plan_fits_shards_to_the_array(
    length: int, chunk_length: int, shard_length: int, expected_shard_length: int, num_shards: int
) -> None:
    layout = ArrayLayout.plan(ONE, length, np.int32, ChunkGrid(chunk_length, shard_length))
    assert layout.shard_length == expected_shard_length
    assert layout.num_shards == num_shards


def test_plan_of_a_quadrillion_elements_keeps_a_directory_listable() -> None:
    layout = ArrayLayout.plan(ONE, 10**15, np.int64, ChunkGrid())
    assert MAX_SHARDS / 2 < layout.num_shards <= MAX_SHARDS
    assert layout.shard_bounds(layout.num_shards - 1)[1] == 10**15
    assert layout.nbytes == 8 * 10**15


@given(
    length=st.integers(0, 2**60),
    chunk_length=st.integers(1, 2**20),
    chunks_per_shard=st.integers(1, 2**10),
)
def test_shards_tile_the_array(length: int, chunk_length: int, chunks_per_shard: int) -> None:
    grid = ChunkGrid(chunk_length, chunk_length * chunks_per_shard)
    layout = ArrayLayout.plan(ONE, length, np.int8, grid)
    assert layout.num_shards <= MAX_SHARDS
    assert layout.shard_length % layout.chunk_length == 0
    assert layout.chunks_per_shard * layout.chunk_length == layout.shard_length
    bounds = [layout.shard_bounds(shard) for shard in range(layout.num_shards)]
    assert [0, *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), length]
    assert all(start < stop for start, stop in bounds)


@given(
    length=st.integers(0, SHARD_LENGTH),
    grid=st.sampled_from([ChunkGrid(), ChunkGrid(shard_length=4 * SHARD_LENGTH)]),
)
def test_default_chunks_of_one_shard_are_evenly_long(length: int, grid: ChunkGrid) -> None:
    chunk_length, shard_length = grid.fit(length)
    num_chunks = max(1, -(-length // CHUNK_LENGTH))
    assert chunk_length <= CHUNK_LENGTH
    assert shard_length == num_chunks * chunk_length
    assert 0 <= shard_length - length < max(num_chunks, 2)


@pytest.mark.parametrize(
    ("length", "fitted"),
    [
        (100, (100, 100)),
        (CHUNK_LENGTH, (CHUNK_LENGTH, CHUNK_LENGTH)),
        (CHUNK_LENGTH + 1, (CHUNK_LENGTH // 2 + 1, CHUNK_LENGTH + 2)),
        (SHARD_LENGTH + 1, (CHUNK_LENGTH, SHARD_LENGTH)),  # many shards share one length
    ],
)
def test_a_chosen_chunk_length_is_kept_unless_the_array_is_shorter(
    length: int, fitted: tuple[int, int]
) -> None:
    assert ChunkGrid().fit(length) == fitted
    chosen = ChunkGrid(CHUNK_LENGTH // 2, SHARD_LENGTH)
    whole = -(-length // chosen.chunk_length) * chosen.chunk_length
    expected = (length, length) if length == 100 else (CHUNK_LENGTH // 2, min(SHARD_LENGTH, whole))
    assert chosen.fit(length) == expected


def test_grids_of_earlier_versions_fill_up_the_chunks_of_short_arrays() -> None:
    stored = {"chunk_length": 4, "shard_length": 8, "codec": "zstd"}
    earlier = ChunkGrid.from_json(stored)
    assert type(earlier) is PaddedGrid
    assert earlier.to_json() == stored
    assert [earlier.fit(length) for length in (0, 1, 5, 9)] == [(4, 4), (4, 4), (4, 8), (4, 8)]
    grid = ChunkGrid(4, 8, "zstd")
    assert ChunkGrid.from_json(grid.to_json()) == grid != earlier
    default = PaddedGrid()
    assert default.fit(100) == (CHUNK_LENGTH, CHUNK_LENGTH)
    assert default.fit(CHUNK_LENGTH + 1) == (CHUNK_LENGTH, 2 * CHUNK_LENGTH)


@pytest.mark.parametrize(
    ("layout", "key", "shape", "row_nbytes", "nbytes"),
    [
        (ArrayLayout.plan(ONE, 9, np.int32, ChunkGrid(4, 8)), "one/c/1", (9,), 4, 36),
        (ArrayLayout.plan(TWO, 9, np.int32, ChunkGrid(4, 8)), "two/c/1/0", (9, 2), 8, 72),
        (ArrayLayout.plan(TWO, 9, np.int64, ChunkGrid(4, 8)), "two/c/1/0", (9, 2), 16, 144),
    ],
)
def test_keys_and_sizes(
    layout: ArrayLayout, key: str, shape: tuple[int, ...], row_nbytes: int, nbytes: int
) -> None:
    assert layout.shard_key(1) == key
    assert (layout.shape, layout.row_nbytes, layout.nbytes) == (shape, row_nbytes, nbytes)


@pytest.mark.parametrize(
    ("grid", "length", "span_length", "expected"),
    [
        (ChunkGrid(), 10**9, 800, CHUNK_LENGTH),  # nothing is decoded
        (ChunkGrid(4, 8, "zstd"), 10**9, 800, 4),  # as configured
        (ChunkGrid(codec="zstd"), 10**9, 1, 1 << 10),
        (ChunkGrid(codec="zstd"), 10**9, 800, 1 << 11),  # at least two reads
        (ChunkGrid(codec="zstd"), 10**9, 10**6, CHUNK_LENGTH),
        (ChunkGrid(codec="zstd"), 10**11, 800, 1 << 14),  # at most 2**23 chunks
        (ChunkGrid(codec="zstd"), 10**13, 800, CHUNK_LENGTH),
    ],
)
def test_compressed_chunks_fit_what_is_read(
    grid: ChunkGrid, length: int, span_length: int, expected: int
) -> None:
    found = fit_chunks(grid, length, span_length)
    assert found.chunk_length == expected
    assert (found.shard_length, found.codec) == (grid.shard_length, grid.codec)


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [("int8", -1), ("int64", -1), ("uint8", 255), ("uint16", 65535), ("uint32", 4294967295)],
)
def test_padding_is_a_value_that_no_index_holds(dtype: str, fill_value: int) -> None:
    assert ArrayLayout.plan(ONE, 1, dtype, ChunkGrid()).fill_value == fill_value


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_padding_of_floats_is_nan(dtype: str) -> None:
    layout = ArrayLayout.plan(ONE, 1, dtype, ChunkGrid())
    assert np.isnan(layout.fill_value)
    assert layout.zarr_metadata()["fill_value"] == "NaN"


def test_padding_of_booleans_is_false() -> None:
    layout = ArrayLayout.plan(ONE, 1, bool, ChunkGrid())
    assert layout.fill_value is False
    assert layout.zarr_metadata()["fill_value"] is False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [ONE, TWO])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_json_round_trip(dtype: str, spec: Any, codec: Any) -> None:
    layout = ArrayLayout.plan(spec, 9, dtype, ChunkGrid(4, 8, codec))
    assert parse_layouts([json.loads(json.dumps(layout.to_json()))], "a store") == (layout,)


def test_metadata_says_what_the_array_is() -> None:
    metadata = ArrayLayout.plan(
        schema.SAMPLE_INDEX, 100, np.int64, ChunkGrid(4, 8, "zstd")
    ).zarr_metadata()
    assert metadata["shape"] == [100, 2]
    assert metadata["data_type"] == "int64"
    assert metadata["chunk_grid"]["configuration"] == {"chunk_shape": [8, 2]}
    assert metadata["dimension_names"] == ["boundary", "field"]
    assert metadata["fill_value"] == -1
    assert metadata["attributes"]["unit"] == "row of document_index, tokens"
    (codec,) = metadata["codecs"]
    assert codec["configuration"]["chunk_shape"] == [4, 2]
    assert [item["name"] for item in codec["configuration"]["codecs"]] == [
        "bytes",
        "zstd",
        "crc32c",
    ]


def test_default_grid() -> None:
    assert ChunkGrid() == ChunkGrid(CHUNK_LENGTH, SHARD_LENGTH, "none")
    assert SHARD_LENGTH % CHUNK_LENGTH == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 8), "must be at least 1, got 0 and 8"),
        ((4, 0), "must be at least 1, got 4 and 0"),
        ((-3, 6), "must be at least 1, got -3 and 6"),
        ((4, 10), "got 10 and 4; for example 12"),
        ((8, 4), "got 4 and 8; for example 8"),
        ((4, 8, "gzip"), "codec must be one of none, zstd, got 'gzip'"),
    ],
)
def test_impossible_grids_are_refused(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ChunkGrid(*fields)
