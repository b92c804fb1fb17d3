"""Sequences that are packed from the texts of a source, with a checkpoint of those left over."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count, groupby, islice
from operator import itemgetter

from zindex.errors import SourceError
from zindex.processing.document_window import PackedText
from zindex.streaming.protocols import Sample
from zindex.streaming.source_streams import MAX_IDLE, TOKENS, PartStream, SourceStream, naming
from zindex.streaming.sources import StreamSource
from zindex.streaming.worker_slots import (
    WHOLE,
    Changes,
    StreamOrigin,
    StreamStart,
    UnreadPartitions,
    WorkerSlot,
)

logger = logging.getLogger(__name__)


class PackedStream(PartStream):
    """Sequences of the texts of all parts, which continue from part to part.

    The process function's ``pack`` is called once. Of the next part, the cursor has the samples
    that are in delivered sequences, and the tokens of the next one that are: one number. It ends
    with the pieces of documents that have been read but not delivered, each as the number of its
    part in all epochs, of the sample in the part, and of the piece in the sample.
    """

    _scale, _labels_all = TOKENS, False
    makes_blocks = False
    #: Whether all worker slots pack these texts, and have their shares of the sequences.
    is_of_all = False

    def __init__(self, source: StreamSource, start: StreamStart) -> None:
        super().__init__(source, start)
        self.source = replace(source, dataset=source.dataset.without_process_fn())
        self._pack = source.dataset.process_fn.pack

    def pairs(self) -> Iterator[tuple[Sample, Changes]]:
        """Yield the sequences of the worker slot, each with the entries that it changed."""
        key, dataset = self.source.key, self.source.dataset
        self._fed: deque[tuple[int, int]] = deque()
        self._labels_now: Sample = {}
        finished, start, skipped, *pieces = self._cursor
        is_new, num_made = not finished and not start and self.unread == UnreadPartitions(), 0
        self._next = finished, start
        self._num_idle = num_before = 0
        held = list(self._reread(pieces))
        other = dataset.num_skipped - skipped
        for made in self._pack(self._feed(), held):
            for _ in range(made.num_done - num_before):
                self._fed.popleft()
            num_before, self._num_idle = made.num_done, 0
            finished, row = self._fed[0] if self._fed else self._next
            if made.place is not None:
                epoch = made.place[0] // self.source.num_items
                self._labels_now = self._labels(self.source.seed, epoch)
            sample = made.sample
            sample.update(self._labels_now)
            left = ((*place, number) for place, number in made.held)
            cursor = finished, row * TOKENS + made.num_tokens, dataset.num_skipped - other, *left
            self._cursor = cursor
            num_made += 1
            yield sample, (None, key, cursor)
        self._cursor = *self._next, dataset.num_skipped - other
        if is_new and not num_made and not self.is_of_all:
            is_left_out = self._cursor[:2] == (0, 0)
            _warn(self.source, self.slot, self.source.num_items * is_left_out, "units")

    def _feed(self) -> Iterator[PackedText]:
        """Yield the texts of all parts, each with its tokens in delivered sequences."""
        finished, start = self._next
        while (item := self._item(finished, start)) is not None:
            self._labels_now = item.labels
            first, num_tokens = divmod(item.begun, TOKENS)
            with naming(item.number, self.source):
                for row, sample in enumerate(item.samples, item.num_skipped):
                    if row >= first:
                        self._fed.append((finished, row))
                        self._next = finished, row + 1
                        begun = num_tokens if row == first else 0
                        yield PackedText(sample, begun, (item.turn, row))
            finished, start = finished + 1, 0
            self._num_idle += 1
            if self.source.cyclic and self._num_idle >= MAX_IDLE * item.num_items:
                raise SourceError(
                    f"{self.source.name!r} must give sequences in every loader worker, "
                    f"{MAX_IDLE} epochs of worker {self.slot.worker} of rank {self.slot.rank} "
                    "gave none; check the texts"
                )
        self._next = finished, 0

    def _reread(self, held: Sequence[Sequence[int]]) -> Iterator[PackedText]:
        """Yield the texts of pieces that have been read but not delivered, in order."""
        for turn, of_part in groupby(held, key=itemgetter(0)):
            rows: dict[int, set[int]] = {}
            for _, row, piece in of_part:
                rows.setdefault(row, set()).add(piece)
            item = self._open(turn, min(rows) * TOKENS)
            with naming(item.number, self.source):
                numbered = enumerate(item.samples, item.num_skipped)
                found = dict(islice((one for one in numbered if one[0] in rows), len(rows)))
            for row, pieces in rows.items():
                whole = WHOLE in pieces
                yield PackedText(found[row], 0, (turn, row), None if whole else pieces)


class WholeStream(SourceStream):
    """Sequences of a small source: each worker slot packs all its texts, and has every n-th one.

    What is left over at the end is then in one sequence, not in one of each worker slot. The cursor
    has the number of delivered sequences.
    """

    def pairs(self) -> Iterator[tuple[Sample, Changes]]:
        """Yield the sequences of the worker slot, each with the entry that it changed."""
        finished, _, skipped = self._cursor
        labels = {"__dprank__": self.slot.rank, "__workerid__": self.slot.worker}
        every, num_made = enumerate(pack_all(self.source, self._past), 1), 0
        for turn in count(finished):
            number, _ = self.unread.item(self.slot.index + self.slot.count * turn)
            if number >= self.source.num_turns:
                return
            sample = None
            for num_made, one in every:
                if num_made > number:
                    sample = one
                    break
            if sample is None:
                if number == self.slot.index:
                    _warn(self.source, self.slot, num_made, "sequences")
                return
            self._cursor = turn + 1, 0, skipped
            yield sample | labels, (None, self.source.key, self._cursor)


def pack_all(source: StreamSource, iteration: int) -> Iterator[Sample]:
    """Return the sequences of a whole source in an iteration, as a single worker slot has them."""
    start = StreamStart(WorkerSlot(), StreamOrigin("", {}, iteration=iteration), {})
    stream = PackedStream(replace(source, last=None), start)
    stream.is_of_all = True
    return (sample for sample, _ in stream.pairs())


@lru_cache(maxsize=16)
def count_sequences(source: StreamSource, iteration: int) -> int:
    """Return the number of sequences of a whole source in an iteration."""
    return sum(1 for _ in pack_all(source, iteration))


def _warn(source: StreamSource, slot: WorkerSlot, number: int, what: str) -> None:
    """Log that a worker slot has no sequence of a source, which has too few units or sequences."""
    reason = (
        "no tokens or, with tail='drop_last', fewer than one sequence; leave tail out to pad them"
    )
    if number:
        reason = (
            f"{number} {what}, for {slot.count} loader workers of all ranks; take fewer of them"
        )
    logger.warning(
        "%r gave worker %d of rank %d no sequence: its texts have %s",
        *(source.name, slot.worker, slot.rank, reason),
    )
