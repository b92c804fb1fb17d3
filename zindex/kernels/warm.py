"""Compile the kernels of common builds and batches ahead of their first use."""

from pathlib import Path
from typing import Any

import numpy as np

from zindex.errors import ConfigError
from zindex.kernels import numpy_budget
from zindex.kernels.batches import read_samples
from zindex.kernels.bijection import KEY_DTYPE, NUM_ROUNDS, permute_range
from zindex.kernels.blend import blend_range
from zindex.kernels.gather import GROUP_LENGTH, gather
from zindex.kernels.legacy_shuffle import legacy_shuffle
from zindex.kernels.locate import locate
from zindex.kernels.mersenne import seed_state
from zindex.kernels.samples import fill_boundaries, gather_lengths
from zindex.kernels.scatter_shuffle import KEY_LENGTH, scatter, shuffle


def warm(*, shared: bool = False) -> Path:
    """Compile the kernels of builds, blends and batches, or load them from the cache.

    For images, installation steps and read-only home directories. Other processes on the same type
    of processor load the compiled kernels; rare kernels are still compiled at their first use.

    Parameters
    ----------
    shared
        Store them in the installed package, for all its users; call it in a separate process.

    Returns
    -------
    folder
        The directory that holds them.

    Raises
    ------
    ConfigError
        If no directory can be written.
    """
    from zindex.kernels import _cache, _cache_folders

    _cache_folders.chosen = _cache_folders.SHARED if shared else None
    try:
        _compile_common()
        kept = [folder for folder in _cache_folders.folders() if folder in _cache.used]
        if not kept:
            raise ConfigError(
                "a directory for compiled kernels must belong to this user, be writable for no "
                f"one else and have room, got {' and '.join(map(str, _cache_folders.folders()))}; "
                "set NUMBA_CACHE_DIR to another one"
            )
    finally:
        _cache_folders.chosen = None
    return kept[0]


def _compile_common() -> None:
    """Call or compile kernels with the types of common use."""
    longs = np.ones(2, np.int64)
    numpy_budget.exhaust()
    rounds = np.ones(NUM_ROUNDS, KEY_DTYPE)
    rounds.flags.writeable = False
    dtype: Any
    for dtype in (np.int32, np.int64):
        few = np.ones(2, dtype)
        legacy_shuffle(few, seed_state(0))
        gather_lengths(np.ones(2, np.int32), few, 0, np.ones(2, np.int32))
        fill_boundaries(np.ones(2, np.int32), 0, 0, 1, 0, np.zeros((2, 2), dtype), 0, 0)
        permute_range(0, 2, rounds, 0, few)
    blend_range(longs / 2, longs.copy(), 0, np.zeros(2, np.int16), np.zeros(2, np.int32))
    for dtype in (np.uint32, np.int64):
        numbers = np.zeros(64, dtype)
        locate(numbers, longs, np.zeros(64, np.int16), np.zeros(64, np.int32))
    key = np.ones(KEY_LENGTH, np.uint64)
    scatter(0, 2, 1, key, np.zeros(2, np.uint32))
    shuffle(np.zeros(2, np.uint32), key)
    # These take addresses as arguments, so they are compiled without a call.
    table, batch = np.zeros((1, GROUP_LENGTH), np.int64), np.zeros((1, 1), np.float32)
    _compile(gather, table, longs, longs, longs, 0, 0, 0, longs)
    rows = table, 0, longs, longs, 0, 0, np.zeros(8, np.uint8), 0, 0
    _compile(read_samples, *rows, table, table, batch, longs)


def _compile(kernel: Any, *arguments: Any) -> None:
    """Compile a kernel for the types of arguments."""
    kernel.compile(tuple(map(kernel.typeof_pyval, arguments)))
