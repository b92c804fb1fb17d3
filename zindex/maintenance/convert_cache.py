"""Convert Megatron Core's ``.npy`` caches of GPT indices to index stores."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import Int32Array
from zindex.errors import StoreNotFoundError, VerificationError, ZindexError
from zindex.formats.megatron_cache import cache_paths
from zindex.indexing.index_arrays import IndexArrays, compute_index_arrays
from zindex.indexing.store_build import find_index
from zindex.indexing.store_computed import store_arrays
from zindex.ingest.length_source import open_source
from zindex.io.local import local_path
from zindex.maintenance.megatron_caches import check_cache, open_cache
from zindex.plan.build_plan import SourceFacts
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.split import SPLIT_NAMES, split_range

_ENDING = "-description.txt"


@dataclass(frozen=True, slots=True)
class ConvertedCache:
    """A cache, and the store that was made of it."""

    #: ``<md5>-<class>-<split>``.
    name: str
    #: Path under which Megatron opened the dataset; None if it is not a dataset's.
    dataset_path: str | None = None
    #: Location of the store; several if settings that Megatron's name lacks make no difference.
    stores: tuple[str, ...] = ()
    #: Why it was not converted.
    problem: str | None = None


def convert_cache(
    folder: str | os.PathLike[str],
    index: str | os.PathLike[str],
    *,
    dataset_paths: Mapping[str, str] | None = None,
    remove: bool = False,
) -> list[ConvertedCache]:
    """Convert the caches of a folder to index stores, which later runs open instead of building.

    Each index is computed again and compared with the cache, value by value.

    Parameters
    ----------
    folder
        Megatron's ``path_to_cache``, or a ``cache/GPTDataset_indices`` next to a dataset.
    index
        Folder of the stores: the ``path_to_cache`` of later runs, or the ``index`` of a run file.
    dataset_paths
        The path of each dataset here, by its path in the caches, if it is another one.
    remove
        Whether to remove the files of each cache whose store is committed.

    Returns
    -------
    caches
        All caches of the folder, by name. Those of blends and of other classes than ``GPTDataset``
        are not converted.

    Raises
    ------
    StoreNotFoundError
        If the folder does not exist.
    """
    place = local_path(folder, "a Megatron cache")
    if not place.is_dir():
        raise StoreNotFoundError(f"{place} must be a folder of Megatron's caches, there is none")
    names = sorted(path.name.removesuffix(_ENDING) for path in place.glob(f"*{_ENDING}"))
    return [_convert(place, name, str(index), dataset_paths or {}, remove=remove) for name in names]


def _convert(
    folder: Path, name: str, index: str, dataset_paths: Mapping[str, str], *, remove: bool
) -> ConvertedCache:
    """Convert one cache."""
    files = cache_paths(folder, name)
    path = None
    try:
        facts = json.loads(files["description"].read_text("utf-8"))
        path = facts.get("dataset_path")
        if facts["class"] != "GPTDataset" or path is None:
            what = "only indices of GPTDataset are converted; later runs compute this one"
            return ConvertedCache(name, path, problem=what)
        arrays = open_cache(folder, name)
        if arrays is None:
            return ConvertedCache(name, path, problem="some of its files are missing")
        stores = _store(facts, arrays, dataset_paths.get(path, path), index)
    except (ZindexError, OSError) as error:
        return ConvertedCache(name, path, problem=str(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{files['description']} must describe a dataset of Megatron Core: {error!r}"
        return ConvertedCache(name, path, problem=problem)
    if remove:
        for file in (files.pop("description"), *files.values()):
            file.unlink()
    return ConvertedCache(name, path, stores)


def _store(facts: Mapping[str, Any], arrays: IndexArrays, path: str, index: str) -> tuple[str, ...]:
    """Return the locations of the stores of an index, which are written unless they are there."""
    source = open_source(path, require_bin=False)
    split = SPLIT_NAMES.index(facts["index_split"])
    matrix = facts["split_matrix"]
    bookends = (0.0, 1.0) if matrix is None else tuple(matrix[split])
    start, stop = split_range(source.facts.num_sequences, bookends)
    lengths = source.lengths(start, stop)
    stores, problem = list[str](), None
    # The description does not name all settings.
    for plan in _possible_plans(facts, source.facts, (start, stop), lengths):
        try:
            check_cache(plan, arrays, lengths)
            _compare(arrays, compute_index_arrays(plan, lengths))
        except VerificationError as error:
            problem = problem or error
            continue
        if find_index(plan.store_plan(index)) is None:
            store_arrays(plan, index, arrays)
        stores.append(str(plan.store_plan(index).root))
    if problem is not None and not stores:
        raise problem
    return tuple(stores)


def _possible_plans(
    facts: Mapping[str, Any], source: SourceFacts, span: tuple[int, int], lengths: Int32Array
) -> Iterator[IndexPlan]:
    """Yield the plans that a description allows, the usual one first."""
    split, length = facts["index_split"], int(facts["sequence_length"])
    num_tokens = int(lengths.sum(dtype=np.int64))
    for drop_last in (True, False) if split == "valid" else (True,):
        for extra in (1, 0):
            settings: dict[str, Any] = {
                "sequence_length": length,
                "extra_token": extra,
                "drop_last": drop_last,
            }
            yield IndexPlan(
                source=source,
                start=span[0],
                stop=span[1],
                split=split,
                seed=int(facts["random_seed"]),
                epochs=plan_epochs(num_tokens, facts["num_samples"], **settings),
                **settings,
            )


def _compare(arrays: IndexArrays, computed: IndexArrays) -> None:
    """Raise if a value of a cache is another one."""
    for name, array in arrays._asdict().items():
        wanted = np.asarray(getattr(computed, name))
        differing = np.argwhere(np.asarray(array) != wanted)
        if len(differing):
            row = int(differing[0][0])
            raise VerificationError(
                f"Megatron's cache must have {wanted[row].tolist()} in row {row} of {name}, got "
                f"{np.asarray(array[row]).tolist()}; it is of other data or damaged: remove it"
            )
