"""Name, hash and write Megatron Core's ``.npy`` index caches.

Source: Megatron Core ``megatron_dataset`` and ``gpt_dataset``. A cache is found by the MD5 of a
JSON description, which includes all keys, their order and the indentation.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zindex.arrays import AnyArray
from zindex.io.local import replacing

#: The arrays of a cache by the kind of dataset, in the order of Megatron's methods.
GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLEND_ARRAYS = ("dataset_index", "dataset_sample_index")
MASKED_ARRAYS = ("sample_index",)


def describe(identifiers: dict[str, Any]) -> tuple[str, str]:
    r"""Return Megatron's description of a dataset and the MD5 that names its cache.

    Parameters
    ----------
    identifiers
        The identifiers of the dataset, in Megatron's order. A tokenizer is represented by its
        ``unique_identifiers``.

    Examples
    --------
    >>> describe({"class": "GPTDataset"})
    ('{\n    "class": "GPTDataset"\n}', '2e53e2d4ec0b6fcaacdd192fb4daff20')
    """
    text = json.dumps(identifiers, indent=4, default=lambda value: value.unique_identifiers)
    return text, hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def cache_paths(
    folder: str | os.PathLike[str], name: str, arrays: Sequence[str] = GPT_ARRAYS
) -> dict[str, Path]:
    """Return the files of a cache by their content.

    Parameters
    ----------
    folder
        Megatron's ``path_to_cache``.
    name
        ``<md5>-<class>-<split>``, without the split if the class masks words.
    arrays
        The names of the arrays.
    """
    paths = {kind: Path(folder) / f"{name}-{kind}.npy" for kind in arrays}
    return paths | {"description": Path(folder) / f"{name}-description.txt"}


class Rows(Protocol):
    """An array that is read by slices of rows."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        ...

    def __getitem__(self, rows: slice, /) -> AnyArray:
        """Return some rows."""
        ...


def write_npy(path: Path, array: Rows, block_rows: int = 1 << 20) -> None:
    """Write an array as a ``.npy`` file in blocks, atomically."""
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": array.shape,
    }
    with replacing(path) as partial, open(partial, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, array.shape[0], block_rows):
            stream.write(np.ascontiguousarray(array[start : start + block_rows]).data)
