"""How well a stream mixes the files of a source, measured by reading its beginning."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from zindex.arrays import Float64Array

#: Adjacent samples of a source that are compared.
WINDOW = 256
# Most samples of a stream to read, and most seconds; images take milliseconds each.
_MAX_SAMPLES, _MAX_SECONDS = 10 * WINDOW, 10.0
# Random windows whose mean is expected.
_NUM_DRAWS = 200


@dataclass(frozen=True, slots=True)
class FileMixing:
    """The files of adjacent samples of a source, in one loader worker of one rank."""

    source: str
    #: Files of the source.
    num_files: int
    #: Adjacent samples, at most `WINDOW`.
    window: int
    #: Mean entropy of the files of these samples, in bits.
    bits: float
    #: That of a uniformly random order.
    random_bits: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def measure_mixing(dataset: Any) -> tuple[FileMixing, ...]:
    """Return how well the files of each source are mixed; only of sources of several files.

    Parameters
    ----------
    dataset
        A ``MergedDataset``. Up to 2,560 of its samples are read, for ten seconds at most. Files
        that can only be read in order are left out, as their numbers of samples are not known.

    Notes
    -----
    Law: with one file after the other, the entropy is near 0. In a random order, the files of a
    window are a multinomial sample of their shares.
    """
    counts: dict[str, list[int]] = {}
    for source in dataset.sources(read=True):
        find = getattr(getattr(source.dataset, "files", None), "find_samples", None)
        tables = getattr(find and find(), "tables", ())
        if len(tables) > 1:
            counts[source.name] = [len(table) - 1 for table in tables]
    if not counts:
        return ()
    urls: dict[str, list[str]] = {name: [] for name in counts}
    stop = time.monotonic() + _MAX_SECONDS
    samples = dataset.__iter_from__({}, ignore_customized_yield_fn=True)
    for sample in islice(samples, _MAX_SAMPLES):
        if (found := urls.get(sample["__datasetname__"])) is not None:
            found.append(sample["__url__"])
        if time.monotonic() > stop:
            break
    return tuple(_measure(name, counts[name], found) for name, found in urls.items() if found)


def _measure(name: str, counts: Sequence[int], urls: Sequence[str]) -> FileMixing:
    """Compare the windows of a source with those of a random order."""
    window = min(WINDOW, len(urls))
    starts = range(0, len(urls) - window + 1, window)
    found = [[*Counter(urls[start : start + window]).values()] for start in starts]
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_hypergeometric(counts, min(window, sum(counts)), _NUM_DRAWS)
    return FileMixing(
        source=name,
        num_files=len(counts),
        window=window,
        bits=float(np.mean([_entropy(np.array(row)) for row in found])),
        random_bits=float(np.mean([_entropy(row) for row in drawn])),
    )


def _entropy(counts: Any) -> float:
    """Return the entropy of counts, in bits."""
    shares: Float64Array = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0
