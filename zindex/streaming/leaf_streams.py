"""The samples of one source in one lane, each with how far the lane is in that source."""

import math
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError
from zindex.streaming.lanes import Entries, Lane, Origin
from zindex.streaming.leaves import Leaf, read_items
from zindex.streaming.orders import block_order, keyed_order, mix_like_cogdata, mix_samples
from zindex.streaming.parted import Sample
from zindex.streaming.pool import Pool

Int64Array = npt.NDArray[np.int64]

SEED_STEP = 131  # cogdata adds it to the seed with each epoch
_BLOCK = 256  # positions of a map-style set that are looked up at once

# Number of the part or file, its samples, their labels, how many of them were delivered before,
# and how many parts or files the lane comes to.
_Place = tuple[int, Iterator[Sample], Sample, int, int]


class LeafStream:
    """Base of the three kinds: where a lane is in a source.

    The cursor counts the finished items of the lane's row, the samples delivered of the next item,
    and the damaged samples left out.
    """

    def __init__(self, leaf: Leaf, lane: Lane, origin: Origin, entries: Entries) -> None:
        self.leaf, self.lane, self.pool = leaf, lane, origin.pool(leaf.name)
        self._head = lane.head(origin.id)
        finished, delivered, skipped = entries.get(leaf.key, (0, 0, 0))
        self._begin: tuple[int, int, int] = (finished, delivered, skipped)
        self.changed: Entries = {leaf.key: self._begin}

    def entries(self) -> Entries:
        """Return where the lane is."""
        return {self.leaf.key: self.changed[self.leaf.key]}

    def _labels(self, seed: int, epoch: int) -> Sample:
        """Return what all samples of an epoch carry."""
        return {
            "__datasetname__": self.leaf.name,
            "__dprank__": self.lane.rank,
            "__workerid__": self.lane.worker,
            "__seed__": seed,
            "__epoch__": epoch,
            # Its place is made here, so that a dict grows once.
            "__state__": None,
        }

    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError


class _ReadStream(LeafStream):
    """A lane of a source that is read in order, part by part or file by file."""

    def __iter__(self) -> Iterator[Sample]:
        return self._read() if self.leaf.num_items else iter(())

    def _read(self) -> Iterator[Sample]:
        key, head = self.leaf.key, self._head
        dataset, empty = self.leaf.dataset, set[int]()
        # Asking after every sample is a twentieth of the time of a short line.
        may_skip = getattr(dataset, "may_skip", True)
        finished, start, skipped = self._begin
        while (place := self._place(finished)) is not None:
            item, samples, labels, begun, num_items = place
            delivered, numbered = 0, enumerate(samples, 1)
            try:
                for delivered, _ in islice(numbered, max(start, begun)):  # noqa: B007
                    pass
                # What this process has left out besides: elsewhere before, and here again.
                other = dataset.num_skipped - skipped
                for delivered, sample in numbered:
                    if delivered == 1:
                        self._check(sample)
                    sample.update(labels)
                    left_out = dataset.num_skipped - other if may_skip else skipped
                    self.changed = changed = {key: (finished, delivered, left_out)}
                    sample["__state__"] = head, changed, None
                    yield sample
            except Exception as error:
                self._add_place(error, item)
                raise
            finished, start, skipped = finished + 1, 0, dataset.num_skipped - other
            if delivered:
                empty.clear()
            else:
                empty.add(item)
            if self.leaf.cyclic and len(empty) >= num_items:
                self._refuse_empty(len(empty))

    def _add_place(self, error: Exception, item: int) -> None:
        """Let an error of what makes samples say where it came up."""
        what = "file" if self.leaf.order == "cogdata_urlbuffer" else "part"
        error.add_note(f"This came up in {what} {item} of the dataset {self.leaf.name!r}.")

    def _check(self, sample: Sample) -> None:
        """Check what a source gives, by the first sample of a part."""
        if "__url__" not in sample or "__key__" not in sample:
            raise SourceError(
                f"samples of {self.leaf.name!r} must have __url__ and __key__, got "
                f"{sorted(sample)}; let its process_fn copy both from the sample that it was given"
            )

    def _refuse_empty(self, num_empty: int) -> None:
        raise SourceError(
            f"{self.leaf.name!r} must give samples in every loader worker, all {num_empty} parts "
            f"that worker {self.lane.worker} of rank {self.lane.rank} reads gave none; check the "
            "files and the process_fn, or shuffle the parts, so that each worker comes to all"
        )

    def _place(self, finished: int) -> _Place | None:
        """Return what the next item is, or None at the end."""
        raise NotImplementedError


class PartStream(_ReadStream):
    """Parts in a keyed order, all of them once in an epoch over all lanes."""

    def _place(self, finished: int) -> _Place | None:
        leaf = self.leaf
        number, begun = self.pool.item(self.lane.index + self.lane.count * finished)
        epoch, part = divmod(number, leaf.dataset.num_parts)
        if epoch and not leaf.cyclic:
            return None
        if leaf.order == "keyed":
            place = np.array([part])
            size = leaf.dataset.num_parts
            order = keyed_order(place, size, seed=leaf.seed, name=leaf.name, epoch=epoch)
            part = int(order[0])
        num_items = leaf.dataset.num_parts
        samples = leaf.dataset.read_part(part)
        if leaf.order == "keyed":
            samples = mix_samples(
                samples, leaf.dataset.shuffle_buffer, key=(leaf.seed, leaf.name, epoch, part)
            )
        else:
            # In the order of the files, a lane comes to every so many parts only.
            num_items //= math.gcd(num_items, self.lane.count)
        return part, samples, self._labels(leaf.seed, epoch), begun, num_items


class UrlStream(_ReadStream):
    """Whole files as cogdata shares them: by stride, in order, repeated where they are few."""

    def _place(self, finished: int) -> _Place | None:
        dataset, lane = self.leaf.dataset, self.lane
        own = split_urls(len(dataset.urls), lane)
        if self.pool == Pool():
            epoch, place = divmod(finished, len(own))
            url, num_items = own[place], len(set(own))
        else:
            # After another number of lanes began anew, what is left is dealt like parts.
            number, _ = self.pool.item(lane.index + lane.count * finished)
            epoch, url = divmod(number, len(dataset.urls))
            num_items = len(dataset.urls) // math.gcd(len(dataset.urls), lane.count)
        if epoch and not self.leaf.cyclic:
            return None
        seed = self.leaf.seed + SEED_STEP * epoch + 64 * lane.rank + lane.slot
        samples = mix_like_cogdata(dataset.read_url(url), dataset.shuffle_buffer, seed=seed)
        return url, samples, self._labels(seed, epoch), 0, num_items


def split_urls(num_urls: int, lane: Lane) -> list[int]:
    """Return the files of a lane, as cogdata shares them.

    Examples
    --------
    >>> [split_urls(3, Lane(rank, 2)) for rank in range(2)]
    [[0, 2], [1]]
    >>> [split_urls(3, Lane(rank, 5)) for rank in range(5)]
    [[0, 2], [1], [2], [0], [1]]
    """
    urls = list(range(num_urls))
    urls *= max(1, -(-lane.num_ranks // num_urls))
    urls = urls[lane.rank :: lane.num_ranks]
    if len(urls) < lane.num_slots:
        urls = (urls * -(-lane.num_slots // len(urls)))[: lane.num_slots]
    return urls[lane.slot :: lane.num_slots]


class ItemStream(LeafStream):
    """Items of a map-style set, in an order that is known without reading."""

    def __iter__(self) -> Iterator[Sample]:
        key, by_position = self.leaf.key, self.leaf.order == "cogdata_block2m"
        finished, _, skipped = self._begin
        for epoch, positions, indices in self._blocks(finished):
            seed = self.leaf.seed + (SEED_STEP * epoch if by_position else 0)
            labels = self._labels(seed, epoch)
            shown = positions if by_position else indices
            for index, item in zip(
                shown, read_items(self.leaf.dataset, self.leaf.name, indices), strict=True
            ):
                # Items may be kept by their set, so they are copied before they are labelled.
                sample = {**item, **labels} if isinstance(item, dict) else {"data": item, **labels}
                sample["__index__"] = index
                finished += 1
                self.changed = {key: (finished, 0, skipped)}
                sample["__state__"] = self._head, self.changed, None
                yield sample

    def _blocks(self, start: int) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield epochs, with positions and indices of the lane's next items in them."""
        size, lane = len(self.leaf.dataset), self.lane
        if not size:
            return
        for first in count(start, _BLOCK):
            turns = np.arange(first, first + _BLOCK, dtype=np.int64)
            numbers = self.pool.items(lane.index + lane.count * turns)
            epochs = numbers // size
            # Items come by number, so an epoch's are together.
            for epoch in np.unique(epochs).tolist():
                if epoch and not self.leaf.cyclic:
                    return
                positions = numbers[epochs == epoch] % size
                yield epoch, positions.tolist(), self._order(positions, size, epoch).tolist()

    def _order(self, positions: Int64Array, size: int, epoch: int) -> Int64Array:
        leaf = self.leaf
        if leaf.order == "keyed":
            return keyed_order(positions, size, seed=leaf.seed, name=leaf.name, epoch=epoch)
        if leaf.order == "cogdata_block2m":
            return block_order(positions, size, seed=leaf.seed + SEED_STEP * epoch)
        return positions


def open_leaf(leaf: Leaf, lane: Lane, origin: Origin, entries: Entries) -> LeafStream:
    """Return the stream of a source in a lane."""
    if leaf.order == "cogdata_urlbuffer":
        return UrlStream(leaf, lane, origin, entries)
    return (PartStream if leaf.is_parted else ItemStream)(leaf, lane, origin, entries)
