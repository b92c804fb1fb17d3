"""Read the items of a map-style dataset in one worker slot."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from zindex.arrays import Int64Array
from zindex.loading.stream_orders import block_order, keyed_order
from zindex.streaming.protocols import Sample
from zindex.streaming.source_streams import SEED_STEP, SourceStream
from zindex.streaming.sources import read_items
from zindex.streaming.worker_slots import Changes

_BLOCK = 256  # positions of a map-style dataset that are looked up together


class ItemStream(SourceStream):
    """Items of a map-style dataset, in an order that is known without reading."""

    def pairs(self) -> Iterator[tuple[Sample, Changes]]:
        """Yield the items of the worker slot, each with the entries that it changed."""
        key, by_position = self.source.key, self.source.order == "cogdata_block2m"
        finished, _, skipped = self._cursor
        for epoch, positions, indices in self._blocks(finished):
            seed = self.source.seed + (SEED_STEP * epoch if by_position else 0)
            labels = self._labels(seed, epoch)
            items = read_items(self.source.dataset, self.source.name, indices)
            for index, item in zip(positions if by_position else indices, items, strict=True):
                # The dataset may cache items, so they are copied before they are labelled.
                sample = {**item, **labels} if isinstance(item, dict) else {"data": item, **labels}
                sample["__index__"] = index
                finished += 1
                self._cursor = finished, 0, skipped
                yield sample, (None, key, self._cursor)

    def _blocks(self, start: int) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield epochs, with positions and indices of the next items of the worker slot in them."""
        size, slot, end = len(self.source.dataset), self.slot, self.source.end
        if not size:
            self._warn_of_no_samples(0)
            return
        for first in count(start, _BLOCK):
            turns = np.arange(first, first + _BLOCK, dtype=np.int64)
            numbers = self.unread.items(slot.index + slot.count * turns)
            epochs = numbers // size
            # Numbers ascend, so the items of an epoch are adjacent.
            for epoch in np.unique(epochs).tolist():
                if epoch * size >= end:
                    return
                positions = numbers[epochs == epoch] % size
                yield epoch, positions.tolist(), self._order(positions, size, epoch).tolist()

    def _order(self, positions: Int64Array, size: int, epoch: int) -> Int64Array:
        source = self.source
        if source.order == "keyed":
            epoch += self._past
            return keyed_order(positions, size, seed=source.seed, name=source.name, epoch=epoch)
        if source.order == "cogdata_block2m":
            return block_order(positions, size, seed=source.seed + SEED_STEP * epoch)
        return positions
