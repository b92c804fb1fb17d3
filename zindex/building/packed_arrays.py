"""The arrays of a packed index as a reader sees them, and how one comes to be when it is needed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.on_demand import Needed
from zindex.building.packing import build_packing, packing_store_plan
from zindex.building.packing_tasks import ShuffledPlan, compute_packed_shuffle
from zindex.building.source import LengthSource
from zindex.kernels.bijection import permute
from zindex.plan.keys import Stage
from zindex.plan.packing import PackingPlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.objects import PlaceLike
from zindex.store.open import Store
from zindex.store.reader import RowReader

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedArrays:
    """What maps a position of the run to whole documents, or parts of long ones."""

    plan: PackingPlan
    #: Parts of samples: shape (parts, 2), document id and token offset in that document.
    part_index: RowReader
    #: Samples to parts: shape (samples + 1,).
    sample_offset: RowReader
    #: Where partitions start: shape (partitions + 1, 3), sample, part and token.
    partition_offset: RowReader
    #: Positions to sample ids: shape (samples,); None where it is computed.
    stored_shuffle: RowReader | None

    @cached_property
    def sample_starts(self) -> Int64Array:
        """Shape (epochs + 1,), int64: sample at which each epoch starts."""
        starts: Int64Array = np.asarray(self.partition_offset)
        return np.ascontiguousarray(starts[:: self.plan.partitions_per_epoch, 0])

    @cached_property
    def shuffle_index(self) -> RowReader:
        """Positions to sample ids: shape (samples,), stored or computed."""
        if self.stored_shuffle is not None:
            return self.stored_shuffle
        return ComputedShuffle(self.plan, self.sample_starts, self.plan.grid)

    def epochs_of(self, samples: Int64Array) -> Int64Array:
        """Return the epoch that each sample belongs to."""
        return np.searchsorted(self.sample_starts, samples, side="right") - 1


class ComputedShuffle(RowReader):
    """A shuffle that goes epoch by epoch and is not stored, computed for the rows asked.

    Parameters
    ----------
    plan
        Gives the keys.
    sample_starts
        Shape (epochs + 1,), int64: sample at which each epoch starts.
    grid
        How the array would be cut.
    """

    def __init__(self, plan: ShuffledPlan, sample_starts: Int64Array, grid: ChunkGrid) -> None:
        num_samples = int(sample_starts[-1])
        dtype = np.uint32 if num_samples < np.iinfo(np.uint32).max - 1 else np.int64
        super().__init__(ArrayLayout.plan(schema.SHUFFLE_INDEX, num_samples, dtype, grid))
        self.plan = plan
        self.sample_starts = sample_starts

    def take(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return what stands at scattered positions, those of an epoch computed together."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            self.refuse(rows, rows + 1)
        out = np.empty(len(rows), self.dtype)
        epochs = np.searchsorted(self.sample_starts, rows, side="right") - 1
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            first, last = self.sample_starts[epoch : epoch + 2].tolist()
            keys = self.plan.round_keys(Stage.SAMPLE, epoch)
            out[here] = first + permute(rows[here] - first, last - first, keys)
        return out

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        compute_packed_shuffle(self.plan, self.sample_starts, start, stop, out)


def open_packed_arrays(store: Store) -> PackedArrays:
    """Return the arrays of a committed packed index; nothing is read before it is used.

    Parameters
    ----------
    store
        An index store, built with ``store="all"`` or ``"minimal"``.
    """
    spec = dict(store.spec)
    is_stored = schema.SHUFFLE_INDEX.name in store
    return PackedArrays(
        PackingPlan.from_spec(spec, stored=spec.pop("store")),
        store[schema.PART_INDEX.name],
        store[schema.SAMPLE_OFFSET.name],
        store[schema.PARTITION_OFFSET.name],
        store[schema.SHUFFLE_INDEX.name] if is_stored else None,
    )


def needed_packing(plan: PackingPlan, source: LengthSource, folder: PlaceLike) -> Needed:
    """Return the need for a packed index below a folder, built from a dataset's lengths."""
    store_plan = packing_store_plan(plan, folder)
    return Needed(
        store_plan,
        plan.estimated_layouts.part.length,
        lambda executor: build_packing(plan, source, folder, executor),
    )
