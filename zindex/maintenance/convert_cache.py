"""Convert Megatron Core's ``.npy`` caches of indices to index stores."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Int32Array
from zindex.errors import StoreNotFoundError, VerificationError, ZindexError
from zindex.execution.executor import open_executor, run_builds
from zindex.formats.megatron_cache import BLEND_ARRAYS, GPT_ARRAYS, MASKED_ARRAYS, cache_paths
from zindex.indexing.blend_arrays import open_blend_arrays
from zindex.indexing.ensure import build_store
from zindex.indexing.index_arrays import IndexArrays, compute_index_arrays
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import MappingArrays, plan_mapping, stored_facts
from zindex.indexing.store_build import find_index
from zindex.indexing.store_computed import store_arrays
from zindex.ingest.length_source import LengthSource, open_source
from zindex.io.local import local_path
from zindex.maintenance.cache_checks import check_blend, check_index, check_mapping, mismatch
from zindex.maintenance.megatron_caches import MegatronCache, list_caches
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import BuildPlan, SourceFacts
from zindex.plan.epochs import plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.plan.split import SPLIT_NAMES, split_range
from zindex.store.open import Store
from zindex.store.rows import RowReader

# Rows that are compared at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ConvertedCache:
    """A cache, and the store that was made of it."""

    #: ``<md5>-<class>-<split>``.
    name: str
    #: Path under which Megatron opened the dataset; None for a blend.
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
        All caches of the folder, by name: of ``GPTDataset``, of BERT and T5, and of blends. Those
        of other classes are not converted.

    Raises
    ------
    StoreNotFoundError
        If the folder does not exist.
    """
    place = local_path(folder, "a Megatron cache")
    if not place.is_dir():
        raise StoreNotFoundError(f"{place} must be a folder of Megatron's caches, there is none")
    job = _Job(place, str(index), dataset_paths or {}, remove)
    return [_convert(job, name) for name in list_caches(place)]


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of `convert_cache`."""

    folder: Path
    index: str
    dataset_paths: Mapping[str, str]
    remove: bool

    def open_source(self, facts: Mapping[str, Any]) -> LengthSource:
        """Return the dataset that a description names."""
        path = facts["dataset_path"]
        return open_source(self.dataset_paths.get(path, path), require_bin=False)


def _convert(job: _Job, name: str) -> ConvertedCache:
    """Convert one cache."""
    description, path = cache_paths(job.folder, name)["description"], None
    try:
        facts = json.loads(description.read_text("utf-8"))
        path = facts.get("dataset_path")
        names, store = _KINDS.get(facts["class"], ((), None))
        if store is None:
            what = f"caches of {facts['class']} are not converted; later runs build this index"
            return ConvertedCache(name, path, problem=what)
        cache = MegatronCache(job.folder, name, names)
        if not cache.exists:
            return ConvertedCache(name, path, problem="some of its files are missing")
        stores = store(job, facts, cache.open())
    except (ZindexError, OSError) as error:
        return ConvertedCache(name, path, problem=str(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{description} must describe a dataset of Megatron Core: {error!r}"
        return ConvertedCache(name, path, problem=problem)
    if job.remove:
        files = cache.paths
        for file in (files.pop("description"), *files.values()):
            file.unlink()
    return ConvertedCache(name, path, stores)


def _bookends(facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return the fractions of a dataset that belong to the split of a description."""
    matrix = facts["split_matrix"]
    split = SPLIT_NAMES.index(facts["index_split"])
    return (0.0, 1.0) if matrix is None else tuple(matrix[split])


def _store_index(job: _Job, facts: Mapping[str, Any], opened: list[AnyArray]) -> tuple[str, ...]:
    """Return the stores of a GPT index, which are written unless they are there."""
    source, arrays = job.open_source(facts), IndexArrays(*opened)
    start, stop = split_range(source.facts.num_sequences, _bookends(facts))
    lengths = source.lengths(start, stop)
    stores, problem = list[str](), None
    # The description does not name all settings.
    for plan in _possible_plans(facts, source.facts, (start, stop), lengths):
        try:
            check_index(plan, arrays, lengths)
            computed = compute_index_arrays(plan, lengths)._asdict()
            for name, array in arrays._asdict().items():
                _compare(name, array, computed[name])
        except VerificationError as error:
            problem = problem or error
            continue
        if find_index(plan.store_plan(job.index)) is None:
            store_arrays(plan, job.index, arrays)
        stores.append(str(plan.store_plan(job.index).root))
    if problem is not None and not stores:
        raise problem
    return tuple(stores)


def _store_blend(job: _Job, facts: Mapping[str, Any], opened: list[AnyArray]) -> tuple[str, ...]:
    """Return the store of a blend, which is built unless it is there."""
    weights, size, split = facts["weights"], facts["size"], facts["split"]
    if size is None:
        plan = BlendPlan.exhaustive(weights, split=split)
    else:
        plan = BlendPlan.weighted(weights, size, split=split)
    check_blend(plan, *opened)
    arrays = open_blend_arrays(_build(plan, None, job.index))
    _compare("dataset_index", opened[0], arrays.dataset_index)
    _compare("dataset_sample_index", opened[1], arrays.dataset_sample_index)
    return (str(plan.store_plan(job.index).root),)


def _store_mapping(job: _Job, facts: Mapping[str, Any], opened: list[AnyArray]) -> tuple[str, ...]:
    """Return the store of a sentence mapping, which is built unless it is there."""
    source, (rows,) = SentenceSource(job.open_source(facts)), opened
    found = stored_facts(source)
    span = range(*split_range(found.num_documents, _bookends(facts)))
    is_bert = "classification_head" in facts  # three special tokens, and two segments with it
    plan = plan_mapping(
        source,
        span,
        facts=found,
        split=facts["index_split"],
        max_sequence_length=int(facts["sequence_length"]) - (3 if is_bert else 2),
        min_num_sentences=2 if facts.get("classification_head") else 1,
        short_sequence_probability=facts["short_sequence_probability"],
        num_requested=facts["num_samples"],
        seed=int(facts["random_seed"]),
    )
    check_mapping(plan, rows, source)
    built = MappingArrays.open(_build(plan, source, job.index))
    _compare("sample_index", rows, built.sample_index)
    return (str(plan.store_plan(job.index).root),)


def _build(plan: BuildPlan, source: Any, index: str) -> Store:
    """Return the store of a plan, which is built unless it is there."""
    with open_executor() as executor:
        return run_builds(build_store(plan, source, index, executor)).store


# Class of a dataset -> the arrays of its cache, and what stores them.
_KINDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "GPTDataset": (GPT_ARRAYS, _store_index),
    "BlendedDataset": (BLEND_ARRAYS, _store_blend),
    "BERTMaskedWordPieceDataset": (MASKED_ARRAYS, _store_mapping),
    "T5MaskedWordPieceDataset": (MASKED_ARRAYS, _store_mapping),
}


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


def _compare(name: str, array: AnyArray, computed: RowReader | AnyArray) -> None:
    """Raise if a value of a cache is another one."""
    if len(array) != len(computed):
        raise mismatch(f"{len(computed)} rows of {name}", len(array))
    for start in range(0, len(array), _BLOCK):
        found = np.asarray(array[start : start + _BLOCK])
        wanted = np.asarray(computed[start : start + _BLOCK])
        differing = np.argwhere(found != wanted)
        if len(differing):
            row = int(differing[0][0])
            raise mismatch(
                f"{wanted[row].tolist()} in row {start + row} of {name}", found[row].tolist()
            )
