"""A file that is one array and nothing else, such as the tokens of a ``.bin``, by position."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.formats.bin_reader import BinFile
from zindex.store.layout import ArrayLayout
from zindex.store.reader import RowReader


class FlatFile(RowReader):
    """The values of a file, in the machine's byte order and without checksums.

    It opens at the first read in each process. Pickles as its arguments.

    Parameters
    ----------
    path
        The file.
    nbytes
        The size that it must have.
    dtype
        Dtype of the values.
    """

    def __init__(self, path: str, nbytes: int, dtype: npt.DTypeLike) -> None:
        values = np.dtype(dtype)
        length = nbytes // values.itemsize
        layout = ArrayLayout(
            path, length, values.name, max(1, length), max(1, length), "none", 1, (), "", ""
        )
        super().__init__(layout)
        self.path = path
        self.file = BinFile(path, nbytes)

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        out[:] = self.file.read(self.dtype, stop - start, start * self.dtype.itemsize)
