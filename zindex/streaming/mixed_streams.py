"""The samples of several sources in one lane: mixed, and made into others by a yield function."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from zindex.errors import SourceError
from zindex.streaming.lanes import Entries, Lane, Origin
from zindex.streaming.parted import Sample

YieldFunction = Callable[[Iterator[Sample]], Iterable[Sample]]


class Mixing(Protocol):
    """An order of picks; see `zindex.streaming.mixing`."""

    def picks(self, lane: int, start: int) -> Iterator[int]:
        """Yield the picks of a lane from its pick ``start`` on."""
        ...


class Stream(Protocol):
    """Samples of one lane."""

    #: The entries that changed when the last sample was taken. Whoever took it may add to them.
    changed: Entries

    def entries(self) -> Entries:
        """Return where the lane is, after the last sample that was taken."""
        ...

    def __iter__(self) -> Iterator[Sample]: ...


class MixedStream:
    """Samples of several streams by an order of picks.

    A stream that ended passes on its turns.
    """

    def __init__(
        self,
        path: str,
        streams: list[Stream],
        mixing: Mixing,
        *,
        lane: int,
        stop_on_first: bool,
        entries: Entries,
    ) -> None:
        self._key = f"mix {path}"
        self._streams, self._mixing, self._lane = streams, mixing, lane
        self._stop_on_first = stop_on_first
        self.changed: Entries = {self._key: entries.get(self._key, 0)}

    def entries(self) -> Entries:
        """Return where the lane is."""
        found: Entries = {self._key: self.changed[self._key]}
        for stream in self._streams:
            found |= stream.entries()
        return found

    def __iter__(self) -> Iterator[Sample]:
        streams, key = self._streams, self._key
        num_picks: int = self.changed[key]
        iterators: list[Iterator[Sample] | None] = [*map(iter, streams)]
        num_left = len(iterators)
        for pick in self._mixing.picks(self._lane, num_picks):
            num_picks += 1
            iterator = iterators[pick]
            if iterator is None:
                continue
            sample = next(iterator, None)
            if sample is None:
                iterators[pick] = None
                num_left -= 1
                if not num_left or self._stop_on_first:
                    return
                continue
            self.changed = changed = streams[pick].changed
            changed[key] = num_picks
            yield sample


@dataclass
class _Feed:
    """The source samples of one segment, as a yield function reads them."""

    stream: Stream
    samples: Iterator[Sample]
    length: int
    num_read: int = 0
    ended: bool = False
    changed: Entries = field(default_factory=dict)

    def __iter__(self) -> Iterator[Sample]:
        for sample in islice(self.samples, self.length):
            self.num_read += 1
            self.changed |= self.stream.changed
            yield sample
        self.ended = self.num_read < self.length


class YieldStream:
    """What a yield function makes of a stream, segment by segment.

    The function is called afresh on every segment. It may hold samples back: where a lane is inside
    a segment is told by the start of the segment and by how many outputs were delivered, and the
    segment is run again from its start. The segments of lanes that are no more are finished as far
    as their samples were read.
    """

    def __init__(
        self,
        path: str,
        function: YieldFunction,
        length: int,
        open_source: Callable[[Lane, Origin, Entries], Stream],
        *,
        lane: Lane,
        origin: Origin,
        entries: Entries,
    ) -> None:
        self._path, self._key = path, f"yield {path}"
        self._function = function
        self._open_source, self._lane, self._origin = open_source, lane, origin
        self._head = lane.head(origin.id)
        # Orphans finished, length of segments, start of the one at hand, its outputs and what was
        # read for them. A lane that goes on keeps to its length, whatever the setting is by then.
        self._progress: dict[str, Any] = {"orphans": 0, "length": length}
        self._progress |= entries.get(self._key, {})
        self._length: int = self._progress["length"]
        at_start = self._progress.get("start")
        self._source = open_source(lane, origin, entries if at_start is None else at_start)
        self.changed: Entries = {}

    def entries(self) -> Entries:
        """Return where the lane is."""
        return self._source.entries() | {self._key: self._progress}

    def __iter__(self) -> Iterator[Sample]:
        orphans = self._origin.orphans.get(self._path, [])[self._lane.index :: self._lane.count]
        for number in range(self._progress["orphans"], len(orphans)):
            yield from self._finish(orphans[number], number)
            self._progress = {"orphans": number + 1, "length": self._length}
        samples, ended = iter(self._source), False
        untold: Entries = {}
        while not ended:
            start = self._progress.get("start")
            skip = self._progress.get("outputs", 0)
            # What was read after the last output of a segment is told with the next output.
            feed = _Feed(self._source, samples, self._length, changed=untold)
            if start is None:
                start = self._source.entries()
            for number, output in enumerate(self._run(feed), 1):
                if number <= skip:
                    continue
                self._progress = {
                    "orphans": len(orphans),
                    "start": start,
                    "outputs": number,
                    "inputs": feed.num_read,
                    "length": self._length,
                }
                self.changed = feed.changed | {self._key: self._progress}
                feed.changed = {}
                output["__state__"] = self._head, self.changed, None
                yield output
            ended, untold = feed.ended, feed.changed
            if not feed.num_read and not ended:
                raise SourceError(
                    "a customized_yield_fn must read samples until its source ends, "
                    f"{self._function!r} returned without reading any"
                )
            self._progress = {"orphans": len(orphans), "length": self._length}

    def _finish(self, orphan: dict[str, Any], number: int) -> Iterator[Sample]:
        """Yield what is left of a segment of an older origin."""
        origin = Origin.from_json(self._origin.older[orphan["origin"]])
        source = self._open_source(Lane(**orphan["lane"]), origin, orphan["start"])
        feed = _Feed(source, iter(source), orphan["inputs"])
        delivered = max(orphan["outputs"], self._progress.get("outputs", 0))
        for count, output in enumerate(self._run(feed), 1):
            if count > delivered:
                self._progress = {"orphans": number, "outputs": count, "length": self._length}
                self.changed = {self._key: self._progress}
                output["__state__"] = self._head, self.changed, None
                yield output

    def _run(self, feed: _Feed) -> Iterator[Sample]:
        """Yield what the function makes of a segment."""
        outputs = iter(self._function(iter(feed)))
        while True:
            try:
                output = next(outputs)
            except StopIteration:
                return
            except RuntimeError as error:
                if not isinstance(error.__cause__, StopIteration):
                    raise
                raise SourceError(
                    "a customized_yield_fn must end when its source does, after yielding what it "
                    f"holds; {self._function!r} let a StopIteration of next() out: read with a for "
                    "loop, or catch it and return"
                ) from error
            if not isinstance(output, dict):
                raise SourceError(
                    f"a customized_yield_fn must yield dicts, {self._function!r} gave "
                    f"{type(output).__name__}; wrap it, as in {{'data': ...}}"
                )
            yield output
