"""Files in the layouts of AstrAI, written by h5py, numpy and json alone, as its own tools do."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Values = Sequence[np.ndarray]


def write_h5(path: Path, groups: Mapping[str, Values]) -> None:
    """Write one file: ``/<key>/data_<i>``, plain and without attributes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, tensors in groups.items():
            group = file.create_group(key)
            for i, values in enumerate(tensors):
                group.create_dataset(f"data_{i}", data=values)


def write_bin(folder: Path, groups: Mapping[str, Values], record_keys: Sequence[str] = ()) -> None:
    """Write one folder: each key's tensors one after the other, and what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    meta: dict[str, dict[str, Any]] = {}
    for key, tensors in groups.items():
        values = np.concatenate(tensors)
        values.tofile(folder / f"{key}.bin")
        meta[key] = {"shape": list(values.shape), "dtype": str(values.dtype)}
        if key in record_keys:
            meta[key]["offsets"] = [0, *np.cumsum([len(t) for t in tensors]).tolist()]
    (folder / "meta.json").write_text(json.dumps(meta))


def documents(lengths: Sequence[int], start: int = 0, dtype: str = "int32") -> list[np.ndarray]:
    """Return documents of these lengths, whose tokens count up from a number."""
    bounds = np.cumsum([start, *lengths])
    return [np.arange(a, b, dtype=dtype) for a, b in pairwise(bounds)]


def masks(tensors: Values) -> list[np.ndarray]:
    """Return a mask for each document: whether the token is odd."""
    return [values % 2 == 1 for values in tensors]


def positions(tensors: Values) -> list[np.ndarray]:
    """Return places in the document."""
    return [np.arange(len(values), dtype="int32") for values in tensors]
