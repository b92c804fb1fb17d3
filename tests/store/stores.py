"""Small stores for the tests of this folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.schema import ArraySpec
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.shard_files import store_shard

Values = npt.NDArray[Any]

#: The eight dtypes of tokens, and those of indices.
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16", "uint32")

ONE = ArraySpec("one", ("row",), "number", "One column.")
TWO = ArraySpec("two", ("row", "field"), "number", "Two columns.", num_columns=2)
#: 3 elements per chunk and 6 per shard: ten elements make a full and a partial shard.
GRID = ChunkGrid(chunk_length=3, shard_length=6)


def count_up(length: int, *, dtype: str = "int32", num_columns: int = 1) -> Values:
    """Return 0, 1, 2, ... in the shape of an array of the schema."""
    values = np.arange(length * num_columns).astype(dtype)
    return values if num_columns == 1 else values.reshape(length, num_columns)


def plan_arrays(
    root: Path,
    arrays: Mapping[ArraySpec, Values],
    grid: ChunkGrid = GRID,
    spec: dict[str, Any] | None = None,
) -> StorePlan:
    """Return the plan of a store that holds the given arrays."""
    layouts = [
        ArrayLayout.plan(item, len(values), values.dtype, grid) for item, values in arrays.items()
    ]
    return StorePlan(root, "index", {"seed": 1} if spec is None else spec, tuple(layouts))


def build_arrays(
    root: Path,
    arrays: Mapping[ArraySpec, Values],
    grid: ChunkGrid = GRID,
    spec: dict[str, Any] | None = None,
) -> StorePlan:
    """Build and commit a store that holds the given arrays."""
    plan = begin_store(plan_arrays(root, arrays, grid, spec))
    commit_arrays(plan, arrays)
    return plan


def commit_arrays(plan: StorePlan, arrays: Mapping[ArraySpec, Values]) -> None:
    """Store the shards that are missing, one after another, and commit."""
    receipts = []
    for layout, values in zip(plan.layouts, arrays.values(), strict=True):
        for shard in range(layout.num_shards):
            start, stop = layout.shard_bounds(shard)
            result = store_shard(plan.root, layout, shard, lambda v=values, i=start, j=stop: v[i:j])
            receipts.append(result.receipt)
    commit_store(plan, receipts)
