"""Open Megatron Core's ``.npy`` caches of indices that are those of a plan."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import VerificationError
from zindex.formats.megatron_cache import cache_paths
from zindex.indexing.store_build import find_index
from zindex.io.objects import PlaceLike, place_of
from zindex.store.commit import StorePlan

logger = logging.getLogger(__name__)

_ENDING = "-description.txt"


def list_caches(folder: PlaceLike, kind: str = "") -> list[str]:
    """Return the names of the caches in a folder that have a description, sorted.

    Parameters
    ----------
    folder
        Megatron's ``path_to_cache``; it may not exist.
    kind
        How their names end: ``<class>-<split>``.
    """
    ending, place = f"{kind}{_ENDING}", place_of(folder)
    if not isinstance(place, Path) or not place.is_dir():
        return []
    with os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(ending)]
    return sorted(name.removesuffix(_ENDING) for name in names)


@dataclass(frozen=True, slots=True)
class MegatronCache:
    """The files of one cache, which may not exist."""

    #: Megatron's ``path_to_cache``.
    folder: PlaceLike
    #: ``<md5>-<class>-<split>``, without the split if the class masks words.
    name: str
    #: The arrays, in the order of Megatron's methods.
    arrays: tuple[str, ...]

    @property
    def paths(self) -> dict[str, Path]:
        """The files by their content; empty if the folder is in object storage."""
        place = place_of(self.folder)
        return cache_paths(place, self.name, self.arrays) if isinstance(place, Path) else {}

    @property
    def exists(self) -> bool:
        """Whether all files exist."""
        return bool(paths := self.paths) and all(path.is_file() for path in paths.values())

    def open(self) -> list[AnyArray]:
        """Return the arrays as memory maps.

        Raises
        ------
        VerificationError
            If a file is not an array.
        """
        paths, opened = self.paths, []
        for name in self.arrays:
            try:
                opened.append(np.load(paths[name], mmap_mode="r", allow_pickle=False))
            except (ValueError, OSError, EOFError) as error:
                raise VerificationError(
                    f"{paths[name]} must be an array of Megatron's cache: {error}; remove the cache"
                ) from error
        return opened

    def is_sound(
        self, description: str, plan: StorePlan, check: Callable[[list[AnyArray]], object]
    ) -> bool:
        """Return whether the cache exists and passes a check, and there is no store of the index.

        Parameters
        ----------
        description
            The content that its description must have.
        plan
            The store of the same index.
        check
            Raises VerificationError for arrays of other data, which is logged.
        """
        if not self.exists or find_index(plan) is not None:
            return False
        try:
            if self.paths["description"].read_text("utf-8") != description:
                return False
            check(self.open())
        except VerificationError as error:
            logger.warning("%s in %s is not used: %s", self.name, self.folder, error)
            return False
        return True
