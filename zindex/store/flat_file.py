"""A file that is one array and nothing else, such as the tokens of a ``.bin``, by position."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.store.array_files import ArrayFiles
from zindex.store.codecs import CodecChain
from zindex.store.reader import LocalReader, forget_open_shards


class FlatFile(LocalReader):
    """The values of a file, in the machine's byte order and without checksums.

    It opens at the first read in each process and takes part in rounds. Pickles as its arguments.

    Parameters
    ----------
    path
        The file.
    nbytes
        The size that it must have at least when it is opened.
    dtype
        Dtype of the values.
    """

    def __init__(self, path: str, nbytes: int, dtype: npt.DTypeLike) -> None:
        values = np.dtype(dtype)
        length = nbytes // values.itemsize
        form = ArrayFiles(
            name=path,
            length=length,
            num_columns=1,
            dtype=values.name,
            chunk_length=max(1, length),
            shard_length=max(1, length),
            chain=CodecChain(),
            index=None,
            prefix=path,
            flat=True,
        )
        super().__init__(path, form)
        # The file may have been made anew since this process read it last.
        forget_open_shards(path)
        self.path = path
        self.file_nbytes = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.file_nbytes, self.dtype)
