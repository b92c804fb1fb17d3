"""How well a stream mixes the files of each source, as the entropy of adjacent samples' files."""

from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.loading.sample_units import SampleUnits
from zindex.sources.sample_offsets import SampleOffsets
from zindex.streaming.lengths.statistics import list_sources
from zindex.streaming.sources import StreamSource

#: Adjacent samples whose files are counted.
WINDOW = 256
_NUM_WINDOWS = 64


class FileMixing(NamedTuple):
    """Mean entropy of the files of 256 samples, in bits; 0 if all are of one file."""

    #: Of adjacent samples of a worker.
    adjacent: float
    #: Of samples that are drawn from all files.
    random: float


def measure_mixing(dataset: Any) -> dict[str, FileMixing]:
    """Return how well the files of the sources of a stream are mixed, without reading samples.

    Parameters
    ----------
    dataset
        A `MergedDataset`, or one source of it.

    Returns
    -------
    mixing
        By the name of the source, for those of several files whose samples can be read in any
        order. cogdata's order reads one file after the other.
    """
    found = {source.name: _measure(source) for source in list_sources(dataset)}
    return {name: mixing for name, mixing in found.items() if mixing is not None}


def _measure(source: StreamSource) -> FileMixing | None:
    units: SampleUnits | None = getattr(source.dataset, "units", None)
    if units is None or not units.num_samples:
        return None
    offsets = source.dataset.files.find_samples()
    if not isinstance(offsets, SampleOffsets) or len(offsets.tables) < 2:
        return None
    most = min(units.num_samples, WINDOW * _NUM_WINDOWS)
    adjacent = _first_samples(source, units, most) if source.order == "keyed" else np.arange(most)
    generator = np.random.Generator(np.random.PCG64(source.seed))
    drawn = generator.integers(units.num_samples, size=most)
    return FileMixing(*(_mean_entropy(offsets.locate(one)[0]) for one in (adjacent, drawn)))


def _first_samples(source: StreamSource, units: SampleUnits, most: int) -> Int64Array:
    """Return the numbers of the first samples of an epoch, in its order."""
    order, found, group = (source.seed, source.name, 0), np.empty(0, np.int64), 0
    while len(found) < most:
        ranges, places = units.shuffled(group, order)
        samples = np.concatenate([np.arange(*one) for one in ranges])
        found = np.append(found, samples if places is None else samples[places])
        group += 1
    return found[:most]


def _mean_entropy(files: Int64Array) -> float:
    """Return the mean entropy of the files of adjacent samples, in bits."""
    windows = [files[start : start + WINDOW] for start in range(0, len(files), WINDOW)]
    if len(windows) > 1 and len(windows[-1]) < WINDOW:
        del windows[-1]
    entropies = []
    for window in windows:
        _, counts = np.unique(window, return_counts=True)
        shares = counts / len(window)
        entropies.append(-(shares * np.log2(shares)).sum())
    return float(np.mean(entropies)) + 0.0  # never -0.0
