"""Which values of a store each window covers: arithmetic on lengths and bounds, without reads.

A window of w inputs has w targets, each one value after its input, so it covers w + 1 values; the
last one is the first input of the next window if the stride is w.
"""

from typing import NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.kernels.packing import SPLIT, FitRules, pack_documents
from zindex.plan.tail import Tail, count_windows, describe_waste
from zindex.store.rows import count_from


class WindowSpans(NamedTuple):
    """Spans of values that make up windows; those of one window are consecutive."""

    #: Shape (spans,), int64: the window of each span, as its row in the batch.
    rows: Int64Array
    #: Shape (spans,), int64: its first value among the window's w + 1 values.
    offsets: Int64Array
    #: Shape (spans,), int64: its first value in the store.
    starts: Int64Array
    #: Shape (spans,), int64: its number of values.
    lengths: Int64Array


class StreamWindows:
    """Windows over streams of values; no window spans two streams.

    Parameters
    ----------
    starts, stops
        Shape (streams,), int64, values: bounds of each stream. A single stream of all values makes
        windows that ignore document boundaries.
    window_size, stride, tail
        The windows.

    Notes
    -----
    Law: with ``stride == window_size`` and a tail that is kept, every value of a stream but the
    first is a target exactly once.
    """

    def __init__(
        self,
        starts: Int64Array,
        stops: Int64Array,
        window_size: int,
        stride: int,
        tail: Tail = Tail.DROP_LAST,
    ) -> None:
        self.window_size = window_size
        self.stride = stride
        counts = count_windows(stops - starts, window_size, stride, tail)
        self.num_windows = int(counts.sum())
        self._starts = starts
        self._stops = stops
        self._window_bounds = np.append(0, np.cumsum(counts))

    def describe_waste(self) -> str | None:
        """Return what is lost or padded, if it is more than half; or None."""
        lengths, counts = self._stops - self._starts, np.diff(self._window_bounds)
        return describe_waste(lengths, counts, self.window_size, self.stride)

    def find_spans(self, numbers: Int64Array) -> WindowSpans:
        """Return the span of each window, by number."""
        starts, stops = self.find_starts(numbers)
        lengths = np.minimum(self.window_size + 1, stops - starts)
        rows = np.arange(len(numbers))
        return WindowSpans(rows, np.zeros(len(numbers), np.int64), starts, lengths)

    def count_inputs(self, numbers: Int64Array) -> Int64Array:
        """Return the inputs of each window: all but its last value."""
        starts, stops = self.find_starts(numbers)
        counts: Int64Array = np.minimum(self.window_size, stops - starts - 1)
        return counts

    def find_starts(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first value of each window, and the end of its stream."""
        if len(self._starts) == 1:
            return self._starts[0] + numbers * self.stride, self._stops
        streams = np.searchsorted(self._window_bounds, numbers, "right") - 1
        within = numbers - self._window_bounds[streams]
        return self._starts[streams] + within * self.stride, self._stops[streams]


def divide_spans(whole: WindowSpans, bounds: Int64Array) -> WindowSpans:
    """Return the span of each document in each window over one stream.

    Parameters
    ----------
    whole
        The windows, a span each.
    bounds
        Shape (documents + 1,), int64, values: first value of each document, and the end of the
        last one.
    """
    stops = whole.starts + whole.lengths
    first = np.searchsorted(bounds, whole.starts, "right") - 1
    counts = np.searchsorted(bounds, stops - 1, "right") - first
    rows = np.repeat(whole.rows, counts)
    documents = count_from(first, counts)
    starts = np.maximum(bounds[documents], whole.starts[rows])
    lengths = np.minimum(bounds[documents + 1], stops[rows]) - starts
    kept = lengths > 0  # empty documents have no span
    rows, starts, lengths = rows[kept], starts[kept], lengths[kept]
    return WindowSpans(rows, starts - whole.starts[rows], starts, lengths)


class PackedWindows:
    """Samples of whole documents, packed by best-fit decreasing.

    Parameters
    ----------
    starts, stops
        Shape (documents,), int64, values: bounds of each document.
    window_size
        Values of a sample, plus one as the last target. A longer document is split, so that each
        of its values but the first is a target once.

    Notes
    -----
    Cost: 30 to 60 ns and 40 bytes for each document.
    """

    def __init__(self, starts: Int64Array, stops: Int64Array, window_size: int) -> None:
        numbers = np.arange(len(starts), dtype=np.int64)
        rules = FitRules(window_size, 1, window_size + 1, SPLIT)
        packing = pack_documents(stops - starts, numbers, rules)
        documents, offsets = packing.part_index[:, 0], packing.part_index[:, 1]
        self._starts = starts[documents] + offsets
        self._lengths = np.minimum(window_size + 1, stops[documents] - self._starts)
        self._part_bounds = packing.sample_offset
        self.num_windows = len(packing.sample_offset) - 1

    def find_spans(self, numbers: Int64Array) -> WindowSpans:
        """Return the spans of the documents in each sample."""
        first = self._part_bounds[numbers]
        counts = self._part_bounds[numbers + 1] - first
        rows = np.repeat(np.arange(len(numbers)), counts)
        before = np.cumsum(counts) - counts
        parts = count_from(first, counts)
        lengths = self._lengths[parts]
        sums = np.cumsum(lengths) - lengths
        offsets = sums - np.repeat(sums[before] if len(sums) else sums, counts)
        return WindowSpans(rows, offsets, self._starts[parts], lengths)


Windows = StreamWindows | PackedWindows
