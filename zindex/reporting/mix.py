"""The share of each dataset over a run, against the weights, and the fill of samples."""

from dataclasses import dataclass

import numpy as np

from zindex.arrays import Float64Array
from zindex.inspection.answers.run_order import RunOrder
from zindex.reporting.observations import Observations

#: Datasets with a band of their own; the others share one.
MAX_BANDS = 7
# Windows of a run that is read in full, and least samples in each.
_NUM_WINDOWS, _LEAST_SAMPLES = 60, 16
# Documents per sample that have a bar of their own; more share the last one.
_MAX_DOCUMENTS = 12


@dataclass(frozen=True, slots=True)
class MixFigures:
    """Shares of the largest datasets in windows of a run; the last one is that of all others."""

    #: Numbers of the datasets in the run; the rest, if any, is one more column.
    datasets: tuple[int, ...]
    has_rest: bool
    #: Center of each window.
    positions: tuple[int, ...]
    #: Share of each column in each window: as drawn, and as the weights intend.
    shares: tuple[tuple[float, ...], ...]
    targets: tuple[tuple[float, ...], ...]

    @property
    def largest_deviation(self) -> float:
        """Largest difference of a share from its target in any window."""
        return float(np.abs(np.array(self.shares) - np.array(self.targets)).max())


def measure_mix(order: RunOrder, seen: Observations) -> MixFigures:
    """Return the shares of datasets in windows of a run."""
    size, num_datasets = len(seen.positions), len(order.paths)
    if seen.blocks[-1]:
        windows = seen.blocks
    else:
        num_windows = max(1, min(_NUM_WINDOWS, size // _LEAST_SAMPLES))
        windows = np.arange(size) * num_windows // size
    totals = np.bincount(seen.datasets, minlength=num_datasets)
    largest = np.sort(np.argsort(-totals, kind="stable")[:MAX_BANDS])
    column = np.full(num_datasets, len(largest))
    column[largest] = np.arange(len(largest))
    width = len(largest) + (num_datasets > len(largest))
    num_windows = int(windows[-1]) + 1
    counts = np.bincount(windows, minlength=num_windows)
    cells = windows * width + column[seen.datasets]
    shares = np.bincount(cells, minlength=num_windows * width).reshape(num_windows, width)
    by_segment = np.zeros((len(order.segments), width))
    for row, segment in enumerate(order.segments):
        by_segment[row] = np.bincount(column, order.target_shares(segment), width)
    stops = np.array([segment.stop for segment in order.segments])
    segments = np.searchsorted(stops, seen.positions, side="right")
    places = np.bincount(windows * len(stops) + segments, minlength=num_windows * len(stops))
    targets = places.reshape(num_windows, -1) @ by_segment
    centers = np.bincount(windows, seen.positions) / counts
    return MixFigures(
        datasets=tuple(largest.tolist()),
        has_rest=num_datasets > len(largest),
        positions=tuple(np.rint(centers).astype(np.int64).tolist()),
        shares=_as_rows(shares / counts[:, None]),
        targets=_as_rows(targets / counts[:, None]),
    )


def _as_rows(table: Float64Array) -> tuple[tuple[float, ...], ...]:
    """Return a table as tuples, rounded."""
    return tuple(map(tuple, np.round(table, 6).tolist()))


def mean_targets(order: RunOrder) -> Float64Array:
    """Return the share of each dataset that the weights intend over the whole run."""
    lengths = np.array([segment.stop - segment.start for segment in order.segments])
    shares = np.stack([order.target_shares(segment) for segment in order.segments])
    means: Float64Array = lengths @ shares / lengths.sum()
    return means


@dataclass(frozen=True, slots=True)
class FillFigures:
    """How samples are filled with documents."""

    #: Share of token positions that hold a token; the others are padding.
    filled_share: float
    #: Samples that are not full.
    num_short: int
    #: Mean documents of a sample, counting each span.
    mean_documents: float
    #: Samples with 1, 2, ... documents; the last entry counts all with more.
    document_counts: tuple[int, ...]
    #: Share of samples that begin within a document.
    cut_share: float


def measure_fill(seen: Observations) -> FillFigures:
    """Return how samples are filled."""
    inputs = seen.num_inputs
    firsts = np.searchsorted(seen.parts.owners, np.arange(len(seen.positions)))
    counts = np.bincount(np.minimum(seen.num_parts, _MAX_DOCUMENTS + 1))[1:]
    return FillFigures(
        filled_share=float(inputs.sum() / seen.lengths.sum()),
        num_short=int((inputs < seen.lengths).sum()),
        mean_documents=float(seen.num_parts.mean()),
        document_counts=tuple(counts.tolist()),
        cut_share=float((seen.parts.starts[firsts] > 0).mean()),
    )
