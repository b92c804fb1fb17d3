"""Megatron Core's names of its cache files, as attributes of datasets."""

import os
from typing import Any


class CachePath:
    """Path of Megatron Core's ``.npy`` file of an array of an index, ``path_to_<array>``.

    The file need not exist: ``zindex export-cache`` writes it. None if a dataset has no folder of
    indices.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._array = name.removeprefix("path_to_")

    def __get__(self, dataset: Any, owner: type) -> Any:
        if dataset is None:
            return self
        folder = dataset.config.path_to_cache or getattr(dataset, "_index_folder", None)
        if folder is None:
            return None
        split = dataset.split if hasattr(dataset, "split") else dataset.index_split
        name = dataset._name_cache(folder, split.name, (self._array,)).name
        return os.path.join(folder, f"{name}-{self._array}.npy")
