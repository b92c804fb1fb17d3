"""Which values of a store each window covers: arithmetic on lengths and bounds, nothing is read.

A window of w values has w inputs and w targets, each one value behind its input, so it covers w + 1
values; the last one is the first input of the next window where the stride is w.
"""

from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError
from zindex.kernels.packing import SPLIT, pack_documents

Int64Array = npt.NDArray[np.int64]

#: What becomes of targets behind the last full window: left out, or a window that is filled up or
#: that is short.
Tail = Literal["drop", "pad", "short"]


class Parts(NamedTuple):
    """Runs of values that make up samples; the parts of a sample follow each other."""

    #: Shape (parts,), int64: the sample of each part, as its place in the batch.
    rows: Int64Array
    #: Shape (parts,), int64: at which of the sample's w + 1 values it begins.
    offsets: Int64Array
    #: Shape (parts,), int64: its first value in the store.
    starts: Int64Array
    #: Shape (parts,), int64: its values.
    lengths: Int64Array


class Windows(Protocol):
    """Where the values of each sample lie."""

    @property
    def num_windows(self) -> int:
        """Samples."""
        ...

    def find_parts(self, windows: Int64Array) -> Parts:
        """Return what samples are made of."""
        ...

    def find_runs(self, windows: Int64Array, parts: Parts) -> Parts:
        """Return the same with parts joined that lie one after the other in the store."""
        ...


def count_windows(
    lengths: Int64Array, window_size: int, stride: int, tail: Tail = "drop"
) -> Int64Array:
    """Return how many windows streams have.

    Parameters
    ----------
    lengths
        Shape (streams,), int64, values.
    window_size, stride
        Values of a window, and from one to the next, both > 0.
    tail
        ``"drop"``: full windows alone. Otherwise one more where targets are left behind them.

    Returns
    -------
    counts
        Shape (streams,), int64.

    Notes
    -----
    Source: AstrAI's rule; at least one value must follow a window, as its last target.

    Examples
    --------
    >>> count_windows(np.array([64, 65, 128, 129]), 64, 64).tolist()
    [0, 1, 1, 2]
    >>> count_windows(np.array([64, 65, 128, 1]), 64, 64, "pad").tolist()
    [1, 1, 2, 0]
    """
    full = np.where(lengths <= window_size, 0, (lengths - 1 - window_size) // stride + 1)
    if tail == "drop":
        return full
    covered = np.where(full > 0, (full - 1) * stride + window_size, 0)
    # A window further on than the last target would have none.
    has_tail = (covered < lengths - 1) & (full * stride < lengths - 1)
    counts: Int64Array = full + has_tail
    return counts


def check_sizes(window_size: int, stride: int) -> None:
    """Refuse windows that there cannot be.

    Raises
    ------
    ConfigError
        If a number is not whole or not > 0.
    """
    for name, value in (("window_size", window_size), ("stride", stride)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number of values from 1 on, got {value!r}")


class StreamWindows:
    """Windows over runs of values; none reaches from one run into another.

    Parameters
    ----------
    starts, stops
        Shape (runs,), int64, values: where each run begins and ends. One run of everything makes
        windows that ignore where documents end.
    window_size, stride, tail
        The windows.

    Notes
    -----
    Law: with ``stride == window_size`` and a tail that is kept, every value of a run but the first
    is a target exactly once.
    """

    def __init__(
        self,
        starts: Int64Array,
        stops: Int64Array,
        window_size: int,
        stride: int,
        tail: Tail = "drop",
    ) -> None:
        self.window_size = window_size
        self.stride = stride
        counts = count_windows(stops - starts, window_size, stride, tail)
        self.num_windows = int(counts.sum())
        self._starts = starts
        self._stops = stops
        self._window_bounds = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(counts, out=self._window_bounds[1:])

    def find_parts(self, windows: Int64Array) -> Parts:
        """Return the run of values of each window."""
        runs = self._find_runs(windows)
        starts = self._find_in(runs, windows)
        lengths = np.minimum(self.window_size + 1, self._stops[runs] - starts)
        return Parts(np.arange(len(windows)), np.zeros(len(windows), np.int64), starts, lengths)

    def find_runs(self, windows: Int64Array, parts: Parts) -> Parts:
        """Return the parts: each is a run by itself."""
        return parts

    def find_starts(self, windows: Int64Array) -> Int64Array:
        """Return the first value of each window: all there is to know of one that is full."""
        if len(self._starts) == 1:
            starts: Int64Array = self._starts[0] + windows * self.stride
            return starts
        return self._find_in(self._find_runs(windows), windows)

    def _find_runs(self, windows: Int64Array) -> Int64Array:
        """Return the run that each window lies in."""
        runs: Int64Array = np.searchsorted(self._window_bounds, windows, "right") - 1
        return runs

    def _find_in(self, runs: Int64Array, windows: Int64Array) -> Int64Array:
        """Return the first value of windows whose runs are known."""
        within = windows - self._window_bounds[runs]
        starts: Int64Array = self._starts[runs] + within * self.stride
        return starts


class BoundedWindows:
    """Windows over a whole stream that know where its documents end.

    Parameters
    ----------
    windows
        The windows.
    bounds
        Shape (documents + 1,), int64, values: where documents begin, and where the last one ends.
    """

    def __init__(self, windows: StreamWindows, bounds: Int64Array) -> None:
        self.windows = windows
        self.bounds = bounds
        self.num_windows = windows.num_windows

    def find_runs(self, windows: Int64Array, parts: Parts) -> Parts:
        """Return the windows themselves, whose documents lie one after the other."""
        return self.windows.find_parts(windows)

    def find_parts(self, windows: Int64Array) -> Parts:
        """Return the parts of documents in each window."""
        whole = self.windows.find_parts(windows)
        stops = whole.starts + whole.lengths
        first = np.searchsorted(self.bounds, whole.starts, "right") - 1
        counts = np.searchsorted(self.bounds, stops - 1, "right") - first
        rows = np.repeat(whole.rows, counts)
        documents = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        starts = np.maximum(self.bounds[documents], whole.starts[rows])
        lengths = np.minimum(self.bounds[documents + 1], stops[rows]) - starts
        kept = lengths > 0  # of documents without values there is nothing
        rows, starts, lengths = rows[kept], starts[kept], lengths[kept]
        return Parts(rows, starts - whole.starts[rows], starts, lengths)


class PackedWindows:
    """Samples of whole documents, as few as best-fit decreasing makes.

    Parameters
    ----------
    starts, stops
        Shape (documents,), int64, values: where each document begins and ends.
    window_size
        Values of a sample, which has room for one more as the last target. A longer document is
        split, so that each of its values but the first is a target once.

    Notes
    -----
    Cost: 30 to 60 ns and 40 bytes for each document.
    """

    def __init__(self, starts: Int64Array, stops: Int64Array, window_size: int) -> None:
        numbers = np.arange(len(starts), dtype=np.int64)
        packing = pack_documents(stops - starts, numbers, window_size, 1, window_size + 1, SPLIT)
        documents, offsets = packing.part_index[:, 0], packing.part_index[:, 1]
        self._starts = starts[documents] + offsets
        self._lengths = np.minimum(window_size + 1, stops[documents] - self._starts)
        self._part_bounds = packing.sample_offset
        self.num_windows = len(packing.sample_offset) - 1

    def find_parts(self, windows: Int64Array) -> Parts:
        """Return the documents of each sample."""
        first = self._part_bounds[windows]
        counts = self._part_bounds[windows + 1] - first
        rows = np.repeat(np.arange(len(windows)), counts)
        before = np.cumsum(counts) - counts
        parts = np.arange(len(rows)) + np.repeat(first - before, counts)
        lengths = self._lengths[parts]
        sums = np.cumsum(lengths) - lengths
        offsets = sums - np.repeat(sums[before] if len(sums) else sums, counts)
        return Parts(rows, offsets, self._starts[parts], lengths)

    def find_runs(self, windows: Int64Array, parts: Parts) -> Parts:
        """Return the parts, which lie anywhere."""
        return parts
