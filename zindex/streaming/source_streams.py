"""Read the samples of one source in one worker slot, each with a checkpoint of its position."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, count, islice, repeat
from operator import length_hint
from typing import NamedTuple, TypedDict

import numpy as np

from zindex.errors import SourceError, StateMismatchError
from zindex.loading.sample_units import Order
from zindex.loading.stream_orders import (
    keyed_order,
    shuffle_like_cogdata,
    shuffle_samples,
)
from zindex.sources.unit_requests import Unit
from zindex.streaming.files_dataset import NUM_PARSED
from zindex.streaming.protocols import Sample
from zindex.streaming.sources import StreamSource
from zindex.streaming.worker_slots import (
    Changes,
    Cursor,
    Entries,
    StreamStart,
    UnreadPartitions,
    WorkerSlot,
    advance,
)

logger = logging.getLogger(__name__)

SEED_STEP = 131  # cogdata adds it to the seed with each epoch
# Epochs of one iteration over an infinite stream.
_MAX_EPOCHS = 1 << 20
#: In the cursor of a packed source: the sample's number in its part times this, and the tokens.
TOKENS = 1 << 32
# Epochs without a sequence after which a packed source is found to be empty.
MAX_IDLE = 1000
_FILES_AHEAD = 4  # files read in order whose starts are requested in advance, at least


class Item(NamedTuple):
    """A part or file that a worker slot reads."""

    number: int
    #: Its samples, labelled, some at a time.
    blocks: Iterator[Sequence[Sample]]
    #: Fields that its samples share.
    labels: Sample
    #: Parts or files that the worker slot reads in an epoch.
    num_items: int
    #: How much of it was delivered before, as in a cursor, and the samples of that which are not
    #: among `samples`.
    begun: int = 0
    num_skipped: int = 0
    #: Its number in all epochs.
    turn: int = 0

    @property
    def samples(self) -> Iterator[Sample]:
        """Its samples one by one."""
        return chain.from_iterable(self.blocks)


@contextmanager
def naming(number: int, source: StreamSource) -> Iterator[None]:
    """Add the part or file that is read to errors."""
    try:
        yield
    except Exception as error:
        what = f"{source.kind.removesuffix('s')} {number}"
        error.add_note(f"This came up in {what} of the dataset {source.name!r}.")
        raise


class _Key(TypedDict):
    """Key of an order."""

    seed: int
    name: str
    epoch: int


class SourceStream:
    """Base class of the three kinds of streams: the cursor of a worker slot in a source.

    The cursor holds the number of finished items of the worker slot, of samples delivered of the
    next item, and of damaged samples skipped.
    """

    def __init__(self, source: StreamSource, start: StreamStart) -> None:
        self.source, self.slot = source, start.slot
        self.unread = start.origin.unread(source.view or source.name)
        iteration = start.origin.iteration
        # Epochs of the order before the first one of this iteration.
        self._past = iteration * _MAX_EPOCHS if source.cyclic else iteration
        cursor = start.entries.get(source.key)
        first = self.unread.first_cursor(start.slot.index, start.slot.count)
        self._cursor: Cursor = tuple(cursor or first)
        if len(self._cursor) > 3 and not source.is_packed:
            raise StateMismatchError(
                f"a state with held documents of {source.name!r} needs a process_fn that packs "
                "documents, as the one that it was saved with; take that"
            )

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot."""
        return {self.source.key: self._cursor}

    def _labels(self, seed: int, epoch: int) -> Sample:
        """Return the fields that all samples of an epoch share."""
        return {
            "__datasetname__": self.source.name,
            "__dprank__": self.slot.rank,
            "__workerid__": self.slot.worker,
            "__seed__": seed,
            "__epoch__": epoch if self.source.cyclic else epoch + self._past,
            # Reserved here, so that a dict grows only once.
            "__state__": None,
        }

    def pairs(self) -> Iterator[tuple[Sample, Changes]]:
        """Return the samples of the worker slot, each with the entries that it changed."""
        raise NotImplementedError

    def _warn_of_no_samples(self, num_parts: int) -> None:
        """Log that the worker slot got no sample in a finite stream, unless it has resumed."""
        if self.unread == UnreadPartitions():
            logger.warning(
                "%r gave worker %d of rank %d no sample, in %d parts; check its files and its "
                "process_fn, which must yield what it holds at the end of each part",
                *(self.source.name, self.slot.worker, self.slot.rank, num_parts),
            )


class Block(NamedTuple):
    """Some samples of a source, which are counted as delivered when they are taken."""

    samples: Sequence[Sample]
    #: The same, to take them from.
    left: Iterator[Sample]
    #: Name of the entry that they change, and its value before the first of them.
    key: str
    cursor: Cursor
    #: Samples of it up to the end of each item but the last one.
    ends: Sequence[int] = ()

    def now(self) -> Cursor:
        """Return the cursor after the samples that were taken."""
        return advance(self.cursor, self.ends, len(self.samples) - length_hint(self.left))

    def pairs(self) -> Iterable[tuple[Sample, Changes]]:
        """Return the samples, each with the entries that it changes."""
        cursors: Iterable[Cursor]
        if self.ends:
            cursors = map(advance, repeat(self.cursor), repeat(self.ends), count(1))
        else:
            finished, delivered, damaged = self.cursor
            if len(self.samples) == 1:
                return ((next(self.left), (None, self.key, (finished, delivered + 1, damaged))),)
            cursors = zip(repeat(finished), count(delivered + 1), repeat(damaged))
        return zip(self.left, zip(repeat(None), repeat(self.key), cursors), strict=False)


EMPTY_BLOCK = Block((), iter(()), "", (0, 0, 0))


class _ReadStream(SourceStream):
    """A stream of a source that is read part by part or file by file."""

    #: What a cursor counts for each delivered sample of a part or file.
    _scale = 1
    # What is delivered now; without samples the cursor counts.
    _block = EMPTY_BLOCK

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot."""
        return {self.source.key: self._block.now() if self._block.samples else self._cursor}

    def pairs(self) -> Iterator[tuple[Sample, Changes]]:
        """Return the samples of the worker slot, each with the entries that it changed."""
        return chain.from_iterable(map(Block.pairs, self.blocks()))

    def blocks(self) -> Iterator[Block]:
        """Yield the samples of the worker slot, some at a time."""
        if not self.source.num_items:
            self._warn_of_no_samples(0)
            return
        key, dataset, empty = self.source.key, self.source.dataset, set[int]()
        may_skip = getattr(dataset, "may_skip", True)
        finished, start, skipped = self._cursor
        gave_any = bool(finished or start)
        while True:
            is_joined = False
            for joined in self._join(finished, start, skipped):
                self._block, is_joined = joined, True
                yield joined
                finished, start = finished + len(joined.ends) + 1, 0
            if is_joined:
                gave_any = True
                empty.clear()
                continue
            if (item := self._item(finished, start)) is None:
                break
            delivered, blocks = item.num_skipped, item.blocks
            with naming(item.number, self.source):
                if delivered < item.begun:
                    blocks = _drop(blocks, item.begun - delivered)
                    delivered = item.begun
                # Samples that this process has skipped in other parts, or skips again here.
                other = dataset.num_skipped - skipped
                for block in blocks:
                    damaged = dataset.num_skipped - other if may_skip else skipped
                    cursor = finished, delivered, damaged
                    delivered += len(block)
                    self._block = Block(block, iter(block), key, cursor)
                    yield self._block
            finished, start, skipped = finished + 1, 0, dataset.num_skipped - other
            if delivered:
                gave_any = True
                empty.clear()
            else:
                empty.add(item.number)
            if self.source.cyclic and len(empty) >= item.num_items:
                raise SourceError(
                    f"{self.source.name!r} must give samples in every loader worker, all "
                    f"{len(empty)} parts that worker {self.slot.worker} of rank {self.slot.rank} "
                    "reads gave none; check the files and the process_fn, or shuffle the parts, so "
                    "that each worker comes to all"
                )
        if empty and not gave_any:
            self._warn_of_no_samples(len(empty))
        self._cursor, self._block = (finished, 0, skipped), EMPTY_BLOCK

    def _join(self, finished: int, start: int, skipped: int) -> Iterator[Block]:
        """Yield the samples of the next parts from a cursor on, as far as small ones are joined."""
        return iter(())

    def _item(self, finished: int, start: int) -> Item | None:
        """Return the next part or file, or None at the end.

        Parameters
        ----------
        finished
            Parts or files that the worker slot has finished.
        start
            Samples of the next one that it has delivered.
        """
        raise NotImplementedError


def _label(samples: Iterable[Sample], labels: Sample, name: str) -> Iterator[Sequence[Sample]]:
    """Yield samples of a source one by one, with further fields."""
    is_first = True
    for sample in samples:
        if is_first and not {"__url__", "__key__"} <= sample.keys():
            raise SourceError(
                f"samples of {name!r} must have __url__ and __key__, got {sorted(sample)}; let its "
                "process_fn copy both from its input"
            )
        is_first = False
        sample.update(labels)
        yield (sample,)


def _drop(blocks: Iterator[Sequence[Sample]], number: int) -> Iterator[Sequence[Sample]]:
    """Return blocks without the first samples, which are read."""
    while number and (block := next(blocks, None)) is not None:
        if number < len(block):
            return chain([block[number:]], blocks)
        number -= len(block)
    return blocks


class PartStream(_ReadStream):
    """Parts in a keyed order; together the worker slots read each part once per epoch."""

    # Epoch of the last part, and the fields that its samples share.
    _epoch = -1
    _common: Sample
    # Whether samples are given these fields when they are read.
    _labels_all = True

    def __init__(self, source: StreamSource, start: StreamStart) -> None:
        super().__init__(source, start)
        self._num_items, self._end = source.num_items, source.end

    @cached_property
    def _can_skip(self) -> bool:
        return getattr(self.source.dataset, "can_skip", False)

    @cached_property
    def _share(self) -> int:
        """Units of a group if several of a worker slot are read together, otherwise 0."""
        if not self.makes_blocks:
            return 0
        units = self.source.dataset.units
        is_joined = units.max_unit < NUM_PARSED and units.share >= 4 * self.slot.count
        return units.share if is_joined else 0

    @property
    def makes_blocks(self) -> bool:
        """Whether `blocks` have several samples."""
        dataset = self.source.dataset
        return (
            getattr(dataset, "units", None) is not None
            and dataset.process_fn is None
            and dataset.files.parses_blocks
        )

    def _item(self, finished: int, start: int) -> Item | None:
        number, begun = self.unread.item(self.slot.index + self.slot.count * finished)
        if number >= self._end:
            return None
        return self._open(number, max(start, begun), self._upcoming(finished))

    def _join(self, finished: int, start: int, skipped: int) -> Iterator[Block]:
        """Yield the samples of the next units of a group, as far as small ones are joined."""
        slot, unread = self.slot, self.unread
        if not self._share or (start and not self._can_skip):
            return
        turns = np.arange(finished, finished + self._share // slot.count + 1)
        places = slot.index + slot.count * turns
        if places[0] < len(unread.begun):
            return
        numbers = unread.items(places)
        inside = (numbers // self._share == numbers[0] // self._share) & (numbers < self._end)
        parts, epoch = numbers[inside], int(numbers[0]) // self._num_items
        if len(parts) < 2:
            return
        parts -= epoch * self._num_items
        dataset, labels = self.source.dataset, self._labels_of(epoch)
        with naming(int(parts[0]), self.source):
            for samples, ends in dataset.read_runs(parts, self._order_of(epoch), start, labels):
                cursor = finished, start, skipped
                yield Block(samples, iter(samples), self.source.key, cursor, ends)
                finished, start = finished + len(ends) + 1, 0

    def _labels_of(self, epoch: int) -> Sample:
        """Return the fields that all samples of an epoch share, made once."""
        if epoch != self._epoch:
            self._epoch, self._common = epoch, self._labels(self.source.seed, epoch)
        return self._common

    def _open(self, number: int, begun: int, upcoming: Iterator[Unit] | None = None) -> Item:
        """Return a part by its number in all epochs."""
        source, num_items = self.source, self._num_items
        epoch, part = divmod(number, num_items)
        labels = self._labels_of(epoch)
        dataset = source.labelled(labels)
        order = epoch + self._past
        key: _Key = {"seed": source.seed, "name": source.name, "epoch": order}
        is_keyed = source.order == "keyed"
        can_skip = getattr(dataset, "can_skip", False)
        num_skipped = begun // self._scale if can_skip else 0
        if getattr(dataset, "units", None) is not None:
            unit = self._unit(part, epoch, begun)
            if dataset.process_fn is None:
                blocks = dataset.read_blocks(unit, labels if self._labels_all else {}, upcoming)
            else:
                blocks = _label(dataset.read_unit(unit, upcoming), labels, source.name)
        else:
            raw = dataset.without_process_fn() if can_skip else dataset
            if upcoming is not None and hasattr(dataset, "begin"):
                some = islice(upcoming, -(-_FILES_AHEAD // dataset.num_together))
                dataset.begin([self._unit(part, epoch, 0), *some])
            if is_keyed and getattr(dataset, "num_together", 1) > 1:
                samples = raw.read_mixed(part, **key)
            else:
                if is_keyed:
                    part = int(keyed_order(np.array([part]), num_items, **key)[0])
                samples = raw.read_part(part)
            buffer = dataset.shuffle_buffer if is_keyed else 0
            of_part = (source.seed, source.name, order, part)
            samples = shuffle_samples(samples, buffer, key=of_part)
            if can_skip:  # only those that are left are processed
                samples = dataset.process(islice(samples, num_skipped, None))
            blocks = _label(samples, labels, source.name)
        if not is_keyed:
            # In file order, a worker slot reads only every k-th part.
            num_items //= math.gcd(num_items, self.slot.count)
        return Item(part, blocks, labels, num_items, begun, num_skipped, number)

    def _unit(self, part: int, epoch: int, begun: int) -> Unit:
        """Return a unit of files, without samples that were delivered if these can be skipped."""
        return Unit(part, self._order_of(epoch), begun // self._scale if self._can_skip else 0)

    def _order_of(self, epoch: int) -> Order:
        """Return the key of the order of samples in an epoch; None for that of the files."""
        source = self.source
        return (source.seed, source.name, epoch + self._past) if source.order == "keyed" else None

    def _upcoming(self, finished: int) -> Iterator[Unit]:
        """Yield the units that the worker slot reads next."""
        for turn in count(finished + 1):
            number, begun = self.unread.item(self.slot.index + self.slot.count * turn)
            if number >= self._end:
                return
            epoch, part = divmod(number, self._num_items)
            yield self._unit(part, epoch, begun)


class UrlStream(_ReadStream):
    """Whole files as cogdata distributes them: by stride, in order, repeated if they are few."""

    def _item(self, finished: int, start: int) -> Item | None:
        dataset, slot = self.source.dataset, self.slot
        own = split_urls(len(dataset.urls), slot)
        if self.unread == UnreadPartitions():
            epoch, place = divmod(finished, len(own))
            url, num_items = own[place], len(set(own))
            following = own[place + 1 :] or own * self.source.cyclic
        else:
            # After a change of the worker slots, unread files are dispatched like parts.
            number, _ = self.unread.item(slot.index + slot.count * finished)
            epoch, url = divmod(number, len(dataset.urls))
            num_items, following = len(dataset.urls) // math.gcd(len(dataset.urls), slot.count), []
        if self.source.num_epochs is not None and epoch >= self.source.num_epochs:
            return None
        seed = self.source.seed + SEED_STEP * epoch + 64 * slot.rank + slot.slot
        labels = self._labels(seed, epoch)
        read = self.source.labelled(labels).read_url
        if hasattr(dataset, "begin_urls"):
            dataset.begin_urls([url, *following[:_FILES_AHEAD]])
        samples = shuffle_like_cogdata(read(url), dataset.shuffle_buffer, seed=seed)
        return Item(url, _label(samples, labels, self.source.name), labels, num_items, start)


def split_urls(num_urls: int, slot: WorkerSlot) -> list[int]:
    """Return the files of a worker slot, as cogdata distributes them.

    Examples
    --------
    >>> [split_urls(3, WorkerSlot(rank, 2)) for rank in range(2)]
    [[0, 2], [1]]
    >>> [split_urls(3, WorkerSlot(rank, 5)) for rank in range(5)]
    [[0, 2], [1], [2], [0], [1]]
    """
    urls = list(range(num_urls))
    urls *= max(1, -(-slot.num_ranks // num_urls))
    urls = urls[slot.rank :: slot.num_ranks]
    if len(urls) < slot.num_slots:
        urls = (urls * -(-slot.num_slots // len(urls)))[: slot.num_slots]
    return urls[slot.slot :: slot.num_slots]
