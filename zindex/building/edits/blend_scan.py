"""The draws of a blend, read once through and marked: the proof that none comes twice."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.blend_arrays import BlendArrays
from zindex.building.edits.edited import blocks_of
from zindex.errors import VerificationError
from zindex.kernels.bitset import WORD_BITS, mark

Int64Array = npt.NDArray[np.int64]
Ranges = Sequence[tuple[int, int]]

#: Positions that are read at a time.
BLOCK = 1 << 20


class BlendScan:
    """The draws of one blend, marked as they are read: every one must be new.

    Parameters
    ----------
    arrays
        The blend.
    """

    def __init__(self, arrays: BlendArrays) -> None:
        self.arrays = arrays
        self.counts = arrays.dataset_count
        num = -(-self.counts // WORD_BITS)
        #: First word of each dataset of the blend.
        self.starts = np.cumsum(num) - num
        self.words = np.zeros(int(num.sum()), np.uint64)

    def blocks(self, ranges: Ranges) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield datasets and numbers of positions, block by block."""
        for start, stop in blocks_of(ranges, BLOCK):
            datasets = self.arrays.dataset_index[start:stop]
            yield datasets, self.arrays.dataset_sample_index[start:stop]

    def mark(self, datasets: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> Int64Array:
        """Mark draws and return how many each dataset gave.

        Raises
        ------
        VerificationError
            If a sample was drawn twice.
        """
        num_fresh = mark(datasets, numbers, self.starts, self.words)
        if num_fresh != len(datasets):
            raise VerificationError(
                f"a blend must draw no sample twice, {len(datasets) - num_fresh} of "
                f"{len(datasets)} positions do; look for damage with `zindex verify`"
            )
        return np.bincount(datasets, minlength=len(self.counts)).astype(np.int64)

    def mark_all(self, ranges: Ranges) -> Int64Array:
        """Mark the draws of all positions of ranges; return how many each dataset gave."""
        total = np.zeros(len(self.counts), np.int64)
        for datasets, numbers in self.blocks(ranges):
            total += self.mark(datasets, numbers)
        return total
