"""Mix the samples of several sources in one worker slot, and apply yield functions to them."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice, repeat
from operator import length_hint, setitem
from typing import Any, Protocol

from torch.utils.data import get_worker_info

from zindex.errors import SourceError
from zindex.mixing.lane_picks import Checkpoint
from zindex.mixing.mixture_tree import Mixtures, list_leaves
from zindex.mixing.percent_schedules import parse_percent
from zindex.mixing.percents import LanePieces, Pieces, SpreadPieces
from zindex.mixing.pick_orders import CogdataMixing, ExactMixing, Mixing, Picks
from zindex.streaming.open_source import GrownStream
from zindex.streaming.protocols import Sample
from zindex.streaming.source_streams import EMPTY_BLOCK, PartStream, SourceStream
from zindex.streaming.worker_slots import (
    Changes,
    Entries,
    Position,
    StreamOrigin,
    StreamStart,
    WorkerSlot,
    read_state,
    run_head,
    write_changes,
)

logger = logging.getLogger(__name__)

# Adjacent segments without an output after which a yield function is found to give none.
_MAX_IDLE = 1000
# Those after which a warning says so, if there was no output before.
_NOTICED_IDLE = 10
YieldFunction = Callable[[Iterator[Sample]], Iterable[Sample]]


class Stream(Protocol):
    """Samples of one worker slot, each with its state."""

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot after the last sample."""
        ...

    def __iter__(self) -> Iterator[Sample]: ...


def make_mixing(mixtures: Mixtures, path: str, start: StreamStart) -> Mixing:
    """Return the order of the picks of a mixture in a worker slot.

    Parameters
    ----------
    mixtures
        The mixture, and those within it, as in `StreamOrigin.mixtures`.
    path
        Path of the mixture; that of the outermost one is ``"/"``.
    start
        Where the worker slot starts.
    """
    mixing, children, samples_per_pick, *_ = mixtures[path]
    if mixing != "exact":
        return CogdataMixing([percent for _, percent in children], start.slot.rank)
    schedules = [
        (name, parse_percent(dict(percent) if isinstance(percent, list) else percent) or ())
        for name, percent in children
    ]
    worker = get_worker_info()
    pieces: Pieces = LanePieces(
        schedules,
        start.board if path == "/" else None,
        iteration=start.origin.iteration,
        base=start.origin.delivered.get(path, 0),
        step=start.slot.count * samples_per_pick,
        process=0 if worker is None else 1 + worker.id,
    )
    leaves = list_leaves(mixtures, path)
    if any(leaf.groups for leaf in leaves):
        pieces = SpreadPieces(pieces, [(leaf.child, leaf.share) for leaf in leaves])
    owed = start.origin.owed.get(path, {})
    return ExactMixing(
        pieces,
        [owed.get(leaf.name, 0) for leaf in leaves],
        [[inner for _, inner in leaf.groups] for leaf in leaves],
    )


class MixedStream:
    """Samples of several streams in the order of a mixing; exhausted ones are replaced.

    The checkpoint is the number of picks or, within the samples of a pick, the number of earlier
    picks, of samples of this one, and the source.
    """

    def __init__(
        self,
        path: str,
        streams: Sequence[Stream | SourceStream | GrownStream],
        mixtures: Mixtures,
        start: StreamStart,
        *,
        stop_on_first: bool,
    ) -> None:
        self._samples_per_pick: int = mixtures[path][2]
        self._key, self._lags_key = f"mix {path}", f"lags {path}"
        self._mixing = make_mixing(mixtures, path, start)
        self._streams, self._slot = streams, start.slot
        self._head = start.head
        self._stop_on_first = stop_on_first
        self._checkpoint: Checkpoint | None = start.entries.get(self._lags_key)
        self._position: Position = start.entries.get(self._key, 0)
        # Samples up to the position that are not delivered yet, and as many that follow these.
        self._left: tuple[Iterator[Sample], int] = iter(()), 0

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot."""
        left, num_after = self._left
        found: Entries = {self._key: self._position}
        if num_left := length_hint(left) - num_after:
            found[self._key] -= num_left
        if self._checkpoint is not None:
            found[self._lags_key] = self._checkpoint
        for stream in self._streams:
            found |= stream.entries()
        return found

    def __iter__(self) -> Iterator[Sample]:
        if len(self._streams) == self._samples_per_pick == 1:
            [source] = self._streams
            if isinstance(source, PartStream) and source.makes_blocks:
                return chain.from_iterable(self._take_all(source))
        return self._mix()

    def _picks(self, start: int) -> Iterator[Picks]:
        """Return the picks of the worker slot from one on."""
        slot = self._slot
        return self._mixing.blocks(slot.index, slot.count, start, self._checkpoint)

    def _take_all(self, source: PartStream) -> Iterator[Iterator[Sample]]:
        """Yield the samples of the only source, some at a time: their states are made together."""
        num_picks: int = self._position  # type: ignore[assignment]
        blocks, block, rest = source.blocks(), EMPTY_BLOCK, 0
        for picks, checkpoint in self._picks(num_picks):
            num_left = len(picks)
            while num_left:
                if not rest:
                    if not (block := next(blocks, EMPTY_BLOCK)).samples:
                        return
                    rest, key, cursor = len(block.samples), block.key, block.cursor
                    head = run_head(self._head, key, cursor, block.ends, self._key, num_picks)
                    states = zip(repeat(head), count(1))
                    deque(map(setitem, block.samples, repeat("__state__"), states), maxlen=0)
                if checkpoint is not None:
                    first = block.samples[-rest]
                    _, _, entries = read_state(first["__state__"])
                    changes = write_changes({self._lags_key: checkpoint, **entries})
                    first["__state__"] = self._head, None, *(changes or ())
                    self._checkpoint, checkpoint = checkpoint, None
                length = min(num_left, rest)
                num_picks, num_left, rest = num_picks + length, num_left - length, rest - length
                self._position, self._left = num_picks, (block.left, rest)
                yield islice(block.left, length)

    def _mix(self) -> Iterator[Sample]:
        streams, key, head = self._streams, self._key, self._head
        num_picks: int
        # Samples of an unfinished pick, and its source.
        begun: tuple[int, int | None] | None = None
        if isinstance(self._position, int):
            num_picks = self._position
        else:
            num_picks, *begun = self._position  # type: ignore[assignment]
        left = {source: with_changes(stream) for source, stream in enumerate(streams)}
        is_single, nothing = self._samples_per_pick == 1, iter(())
        unreported: Checkpoint | None = None
        for picks, checkpoint in self._picks(num_picks):
            unreported = checkpoint or unreported
            if len(left) < len(streams):
                if not self._mixing.may_pick([*left], num_picks):
                    return
                if not begun and not self._mixing.picks_now([*left]):
                    num_picks += len(picks)  # a later piece has those that are left
                    continue
            for pick in picks:
                num_picks += 1
                if is_single and unreported is None:  # as below, without what is seldom needed
                    found = next(left.get(pick, nothing), None)
                    if found is not None:
                        sample, changes = found
                        self._position = num_picks
                        sample["__state__"] = head, None, changes, key, num_picks
                        yield sample
                        continue
                num_given, chosen = begun or (0, pick)
                begun = None
                while num_given < self._samples_per_pick:
                    if chosen not in left:
                        if num_given:  # the source has ended
                            break
                        chosen = self._mixing.replace(num_picks, pick, [*left])
                    if chosen is None:
                        break
                    found = next(left[chosen], None)
                    if found is None:
                        del left[chosen]
                        if self._stop_on_first or not self._mixing.may_pick([*left], num_picks):
                            return
                        continue
                    num_given += 1
                    sample, changes = found
                    if unreported is not None:
                        self._checkpoint = unreported
                        changes = changes, self._lags_key, unreported
                        unreported = None
                    is_last = num_given == self._samples_per_pick
                    position = num_picks if is_last else [num_picks - 1, num_given, chosen]
                    self._position = position
                    sample["__state__"] = head, None, changes, key, position
                    yield sample


def with_changes(stream: Stream | SourceStream | GrownStream) -> Iterator[tuple[Sample, Changes]]:
    """Return the samples of a stream, each with the entries that it changed."""
    if isinstance(stream, SourceStream | GrownStream):
        return stream.pairs()
    return ((sample, write_changes(read_state(sample["__state__"])[2])) for sample in stream)


@dataclass
class _Segment:
    """The input samples of one call of a yield function."""

    stream: Stream
    samples: Iterator[Sample]
    length: int
    num_read: int = 0
    num_outputs: int = 0
    ended: bool = False
    changed: Entries = field(default_factory=dict)

    def __iter__(self) -> Iterator[Sample]:
        for sample in islice(self.samples, self.length):
            self.num_read += 1
            self.changed |= read_state(sample["__state__"])[2]
            yield sample
        self.ended = self.num_read < self.length


class YieldStream:
    """Outputs of a yield function over a stream, segment by segment.

    Every segment is a new call of the function, which may buffer samples. The checkpoint is the
    start of the segment and the number of delivered outputs; resuming runs the segment again from
    its start. Unfinished segments of earlier worker slots are rerun up to the last sample read.
    """

    def __init__(
        self,
        path: str,
        function: YieldFunction,
        length: int,
        open_source: Callable[[StreamStart], Stream],
        start: StreamStart,
    ) -> None:
        self._path, self._key = path, f"yield {path}"
        self._function = function
        self._open_source, self._start = open_source, start
        # Finished orphans, length of segments, start of the current one, its outputs, and the
        # inputs of these. A resumed worker slot keeps its length, even if the setting has changed.
        self._progress: dict[str, Any] = {"orphans": 0, "length": length}
        self._progress |= start.entries.get(self._key, {})
        self._length: int = self._progress["length"]
        entries = self._progress.get("start", start.entries)
        self._source = open_source(replace(start, entries=entries))

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot."""
        return self._source.entries() | {self._key: self._progress}

    def __iter__(self) -> Iterator[Sample]:
        origin, slot = self._start.origin, self._start.slot
        orphans = origin.orphans.get(self._path, [])[slot.index :: slot.count]
        for number in range(self._progress["orphans"], len(orphans)):
            orphan, done = orphans[number], self._progress.get("outputs", 0)
            # An unfinished segment of an older origin is run up to its last input that was read.
            older = StreamOrigin.from_json(origin.older[orphan["origin"]])
            start = replace(
                self._start,
                slot=WorkerSlot(**orphan["lane"]),
                origin=older,
                entries=orphan["start"],
            )
            source = self._open_source(start)
            segment = _Segment(source, iter(source), orphan["inputs"])
            yield from self._deliver(segment, max(orphan["outputs"], done), {"orphans": number})
            self._progress = {"orphans": number + 1, "length": self._length}
        samples, ended = iter(self._source), False
        unreported: Entries = {}
        num_idle, num_read = 0, 0
        gave_any = self._key in self._start.entries
        while not ended:
            begin, done = self._progress.get("start"), self._progress.get("outputs", 0)
            # Inputs after the last output of a segment are reported with the next output.
            segment = _Segment(self._source, samples, self._length, changed=unreported)
            if begin is None:
                begin = self._source.entries()
            yield from self._deliver(segment, done, {"orphans": len(orphans), "start": begin})
            num_idle = 0 if segment.num_outputs else num_idle + 1
            num_read, gave_any = num_read + segment.num_read, gave_any or not num_idle
            if num_read and not gave_any and (segment.ended or num_idle == _NOTICED_IDLE):
                logger.warning(
                    "a customized_yield_fn must yield samples, %r yields none of %d; correct it",
                    *(self._function, num_read),
                )
            if num_idle >= _MAX_IDLE and not segment.ended:
                raise SourceError(
                    "a customized_yield_fn must yield samples, "
                    f"{self._function!r} yielded none in {num_idle:,} calls with {self._length:,} "
                    "samples each; correct it, or raise yield_segment if it needs more samples at "
                    "once"
                )
            ended, unreported = segment.ended, segment.changed
            if not segment.num_read and not ended:
                raise SourceError(
                    "a customized_yield_fn must read samples until its source ends, "
                    f"{self._function!r} returned without reading any"
                )
            self._progress = {"orphans": len(orphans), "length": self._length}

    def _deliver(
        self, segment: _Segment, num_delivered: int, progress: dict[str, Any]
    ) -> Iterator[Sample]:
        """Yield the outputs of a segment that were not delivered before, with their states."""
        head = self._start.head
        for number, output in enumerate(self._run(segment), 1):
            segment.num_outputs = number
            if number > num_delivered:
                self._progress = {**progress, "outputs": number, "length": self._length}
                changes = None
                if "start" in progress:
                    self._progress["inputs"] = segment.num_read
                    changes = write_changes(segment.changed)
                    segment.changed = {}
                output["__state__"] = head, None, changes, self._key, self._progress
                yield output

    def _run(self, segment: _Segment) -> Iterator[Sample]:
        """Yield the outputs of a segment, checked."""
        try:
            outputs = iter(self._function(iter(segment)))
        except TypeError as error:
            raise SourceError(
                f"a customized_yield_fn must take an iterator and return one, {self._function!r} "
                f"fails: {error}; write a generator function of one argument"
            ) from error
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
