"""Inverses of stored orders: the rows of each document, and the position of each sample.

Megatron's shuffles and uniform blends have no formula for the position of a sample, so that finding
one reads the whole order. A stored inverse, of about the same size, answers with one read. It is
optional: only `zindex.find` uses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.execution.executor import Executor, run_together
from zindex.execution.progress import Progress
from zindex.indexing.run_plan import RunPlan, label_paths
from zindex.indexing.store_build import BuildResult, StoreBuild, find_index, store_together
from zindex.io.objects import Place, PlaceLike
from zindex.kernels.invert import collect_rows
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import BuildPlan
from zindex.plan.inverse_plan import InversePlan, InvertedArray
from zindex.store.open import Store, open_store
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.shard_files import ShardResult, find_receipt, store_shard

#: Rows of an inverse that a task collects, in 320 MiB of memory: each task reads the whole order.
TASK_LENGTH = 1 << 26
# Rows of an order that are read at a time.
_BLOCK = 1 << 20


class Inverse(NamedTuple):
    """The stored inverse of an index or a blend."""

    #: Shape (documents * epochs,): rows of ``document_index`` of each document; None for a blend.
    document_row: RowReader | None
    #: Shape (samples,): position of each sample.
    sample_position: RowReader


def find_inverse(plan: BuildPlan, folder: PlaceLike) -> Inverse | None:
    """Return the stored inverse of an index or a blend, or None if there is none.

    Parameters
    ----------
    plan, folder
        The plan of the index or blend, and the directory of the index stores.
    """
    inverse = InversePlan.of(plan)
    store = None if inverse is None else find_index(inverse.store_plan(folder))
    if store is None:
        return None
    store = replace(store, verify="never")  # `look_up` compares each answer with the order
    has_rows = schema.DOCUMENT_ROW.name in store
    rows = store[schema.DOCUMENT_ROW.name] if has_rows else None
    return Inverse(rows, store[schema.SAMPLE_POSITION.name])


def look_up(
    inverse: RowReader, entries: Int64Array, *expected: tuple[RowReader | AnyArray, Any]
) -> Int64Array:
    """Return entries of an array of an inverse, if the order agrees with them.

    Parameters
    ----------
    inverse, entries
        The array, and shape (entries,), int64: which of its entries.
    expected
        Each array that was inverted, and its value or values in the returned rows.

    Raises
    ------
    VerificationError
        If the order has other values there.
    """
    rows = inverse.take(entries).astype(np.int64)
    is_inside = not rows.size or 0 <= rows.min() <= rows.max() < len(expected[0][0])
    if is_inside:
        found = read_many([Spans(array, rows, rows + 1) for array, _ in expected])
        if all((at == value).all() for at, (_, value) in zip(found, expected, strict=True)):
            return rows
    raise VerificationError(
        f"{inverse.layout.name} must be the inverse of its order, it is not; look for damage "
        "with `zindex verify`"
    )


@dataclass(frozen=True, slots=True)
class InverseTasks:
    """The tasks of the build of one inverse; any worker may run any of them."""

    plan: InversePlan
    root: Place
    #: The store that is inverted.
    inverted: Place

    def store_shards(self, array: InvertedArray, shards: range) -> list[ShardResult]:
        """Task: store some consecutive shards of an array, reading the whole order once.

        Raises
        ------
        VerificationError
            If the order lacks a value, or has one too often.
        """
        layout = array.layout
        receipts = [find_receipt(self.root, layout, shard) for shard in shards]
        known = [ShardResult(receipt, written=False) for receipt in receipts if receipt is not None]
        if len(known) == len(shards):
            return known
        bounds = [layout.shard_bounds(shard) for shard in shards]
        first = bounds[0][0]
        rows = self._collect(array, first, bounds[-1][1])
        return [
            store_shard(self.root, layout, shard, partial(rows.__getitem__, slice(*part)))
            for shard, part in zip(shards, np.subtract(bounds, first).tolist(), strict=True)
        ]

    def _collect(self, array: InvertedArray, start: int, stop: int) -> AnyArray:
        """Return entries ``[start, stop)`` of an array of the inverse."""
        most, readers = array.num_occurrences, self._open(array)
        low, high = start // most, -(-stop // most)
        counts: AnyArray = np.zeros(high - low, np.uint8 if most < 256 else np.int32)
        rows: AnyArray = np.empty((high - low, most), array.layout.dtype)
        is_sound = True
        for row in range(0, len(readers[0]), _BLOCK):
            values = self._join(*(reader[row : row + _BLOCK] for reader in readers))
            is_sound &= collect_rows(values, row, array.first_value + low, counts, rows)
        if not is_sound or (counts != most).any():
            raise VerificationError(
                f"{' and '.join(array.names)} of {self.inverted} must have every value "
                f"{most} times, it has not; look for damage with `zindex verify`"
            )
        return rows.reshape(-1)[start - low * most : stop - low * most]

    def _open(self, array: InvertedArray) -> list[RowReader]:
        store = open_store(self.inverted, kind="index")
        return [store[name] for name in array.names]

    def _join(self, values: AnyArray, *samples: AnyArray) -> AnyArray:
        """Return the values of an order: those of a blend count through its datasets."""
        if not samples:
            return values
        assert isinstance(self.plan.inverted, BlendPlan)
        counts = self.plan.inverted.counts
        return (np.cumsum(counts) - counts)[values] + samples[0]


@dataclass(kw_only=True)
class InverseBuild(StoreBuild[InversePlan]):
    """One build of an inverse; the index or blend must be committed."""

    #: The store that is inverted.
    inverted: Store
    #: Minimum rows of a task, unless a shard is longer.
    task_length: int = TASK_LENGTH

    async def store_arrays(self) -> tuple[list[ShardResult], Mapping[str, Any]]:
        """Store the rows of documents and the positions of samples."""
        await self.begin()
        tasks = InverseTasks(self.plan, self.root, self.inverted.root)
        work = []
        for array in self.plan.arrays:
            layout = array.layout
            step = max(1, self.task_length // layout.shard_length)
            for first in range(0, layout.num_shards, step):
                shards = range(first, min(first + step, layout.num_shards))
                stage = f"invert-{layout.name}"
                work.append(self.store(stage, tasks.store_shards, array, shards, number=first))
        return await store_together(work), {}


async def build_inverses(
    plan: RunPlan, folder: PlaceLike, executor: Executor, progress: Progress
) -> list[BuildResult]:
    """Build the missing inverses of all stores of a run that need one; return them all.

    Parameters
    ----------
    plan, folder
        The stores of a run, which must be committed, and their directory.
    executor, progress
        Runs the tasks, and displays the steps.

    Notes
    -----
    Cost: every task reads a whole order, and collects the rows of `TASK_LENGTH` of its values.
    Datasets of equal lengths share an inverse.
    """

    async def build_one(name: str, inverse: InversePlan) -> BuildResult:
        store = find_index(inverse.inverted.store_plan(folder))
        assert store is not None
        num_shards = inverse.store_plan(folder).num_shards
        with progress.step(f"inverse of {name}", num_shards) as advance:
            settings: Any = {"executor": executor, "advance": advance, "inverted": store}
            return await InverseBuild(plan=inverse, folder=folder, **settings).build()

    inverses: dict[Place, tuple[str, InversePlan]] = {}
    labels = label_paths([*dict.fromkeys(item.dataset for item in plan.members)])
    for item in plan:
        inverse = InversePlan.of(item.plan)
        if inverse is not None:
            inverses[inverse.store_plan(folder).root] = item.name(labels), inverse
    return await run_together([build_one(*inverse) for inverse in inverses.values()])
