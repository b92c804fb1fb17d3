"""Values of an extent read into memory, from a raw file or through HDF5's own library."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError, SourceError
from zindex.formats.keyed.shards import KeyedArray


def read_extent(
    array: KeyedArray, extent: int, start: int = 0, stop: int | None = None
) -> npt.NDArray[Any]:
    """Return values of one extent of an array.

    Parameters
    ----------
    array
        The array.
    extent
        Number of the extent.
    start, stop
        Values of the extent; all of them if left out.

    Returns
    -------
    values
        Shape (stop - start,), in the array's dtype, in memory of their own.

    Raises
    ------
    SourceError
        If the file has become shorter.
    ConfigError
        If HDF5 has the extent in chunks and its library is missing.
    """
    length = int(array.extent_length[extent])
    stop = length if stop is None else stop
    first = int(array.extent_start[extent])
    if first < 0:
        return _read_chunked(array, extent, start, stop)
    dtype = np.dtype(array.dtype)
    with open(array.path, "rb") as file:
        values = np.fromfile(file, dtype, stop - start, offset=first + start * dtype.itemsize)
    if len(values) != stop - start:
        raise SourceError(
            f"{array.path} must hold values [{start:,}, {stop:,}) of {array.key}, it ends after "
            f"{len(values):,} of them; write it again"
        )
    return values


def _read_chunked(array: KeyedArray, extent: int, start: int, stop: int) -> npt.NDArray[Any]:
    """Return values that HDF5 keeps in chunks, or in another byte order."""
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            f"reading {array.path} needs the h5py library; install zindex[keyed]"
        ) from error
    assert array.names is not None
    with h5py.File(array.path, "r") as file:
        values: npt.NDArray[Any] = file[array.names[extent]][start:stop]
    return values.astype(array.dtype, copy=False)
