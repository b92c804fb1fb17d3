"""Equal numbers of samples in all worker slots of a finite stream, by padding or dropping."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError
from zindex.plan.tail import Tail
from zindex.streaming.mixed_streams import Stream
from zindex.streaming.protocols import Sample
from zindex.streaming.sources import StreamSource, list_views
from zindex.streaming.worker_slots import Entries, StreamStart, UnreadPartitions

_KEY = "pad /"


class EvenStream:
    """The samples of a worker slot, as many as every other one has.

    Parameters
    ----------
    stream
        The stream of the worker slot.
    sources
        All sources of the stream.
    start
        Where the slot starts.
    tail
        ``Tail.PAD`` or ``Tail.DROP_LAST``.

    Raises
    ------
    ConfigError
        If the number of samples of a source is not known.
    """

    def __init__(
        self, stream: Stream, sources: Sequence[StreamSource], start: StreamStart, tail: Tail
    ) -> None:
        self._stream, self._start = stream, start
        slot, origin = start.slot, start.origin
        views = [view for source in sources for view in list_views(source, origin)]
        self._sources = [view for view in views if view.num_items]
        totals = np.zeros(slot.count, np.int64)
        num_delivered = 0
        for source in self._sources:
            unread = origin.unread(source.view)
            counts = _count_left(source, unread, slot.count, origin.iteration)
            totals += [int(each.sum()) for each in counts]
            finished, begun = start.entries.get(source.key, (0, 0, 0))[:2]
            own = counts[slot.index]
            num_delivered += int(own[:finished].sum())
            if begun:
                place = slot.index + slot.count * finished
                num_delivered += begun - unread.item(place)[1]
        total = int(totals[slot.index])
        even = int(totals.max() if tail is Tail.PAD else totals.min())
        self._num_left = min(total, even) - num_delivered
        self._num_pads = even - total
        self._num_done: int = start.entries.get(_KEY, 0)

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot."""
        return self._stream.entries() | {_KEY: self._num_done}

    def __iter__(self) -> Iterator[Sample]:
        yield from islice(self._stream, max(0, self._num_left))
        while self._num_done < self._num_pads:
            self._num_done += 1
            sample = self._make_pad()
            sample["__state__"] = self._start.head, None, None, _KEY, self._num_done
            yield sample

    def _make_pad(self) -> Sample:
        """Return a copy of the first sample of all, which has no weight in a loss mask."""
        [source, *_] = self._sources
        found: Any = next(source.read([0]))
        slot = self._start.slot
        pad: Sample = dict(found) if isinstance(found, dict) else {"data": found}
        pad |= {
            **{"__datasetname__": source.name, "__dprank__": slot.rank},
            **{"__workerid__": slot.worker, "__seed__": source.seed, "__epoch__": 0},
            "__padding__": True,
        }
        if not source.is_partitioned:
            pad["__index__"] = 0
        if isinstance(pad.get("loss_mask"), torch.Tensor | np.ndarray):
            pad["loss_mask"] = pad["loss_mask"] * 0
        return pad


def _count_left(
    source: StreamSource, unread: UnreadPartitions, num_slots: int, iteration: int
) -> list[Int64Array]:
    """Return the samples of each unread item of an epoch, of every worker slot."""
    size = source.num_items
    if source.is_partitioned:
        lengths = source.lengths(iteration)
        if lengths is None:
            raise ConfigError(
                f"tail must be 'exact', because the number of samples of {source.name!r} is not "
                "known: its process_fn may change it, damaged ones may be skipped, or its files "
                "are read in order; leave tail out, or zindex import the files"
            )
        numbers = unread.items(np.arange(size))
        numbers = numbers[numbers < size]
        counts = lengths[numbers]
        begun = [num_delivered for _, num_delivered in unread.begun]
        counts[: len(begun)] -= np.array(begun, np.int64)
    else:
        # Numbers ascend, as no item is partly read.
        def number_of(place: int) -> int:
            return int(unread.items(np.array([place]))[0])

        counts = np.ones(bisect_left(range(size), size, key=number_of), np.int64)
    return [counts[slot::num_slots] for slot in range(num_slots)]
