"""Between a GPT dataset and its index: how large it is, where it lies, and how it is opened."""

import hashlib
import os
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from zindex.building.on_demand import Needed, needed_index
from zindex.building.source import DIGEST_BLOCK, LengthSource, count_tokens, join_digests
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import PlanError
from zindex.formats.bin_idx import IdxFile
from zindex.plan.epochs import EpochPlan, plan_epochs
from zindex.plan.index_plan import IndexPlan, SourceFacts
from zindex.store.open import Store

#: Low-level datasets that lie on disk, so that their index does too.
STORED = (IndexedDataset, ZarrIndexedDataset)

# The three splits of a dataset share one validation and one digest.
_sources: "WeakKeyDictionary[Any, LengthSource]" = WeakKeyDictionary()


def document_span(indices: npt.NDArray[np.integer[Any]] | range, where: str) -> range:
    """Return the consecutive documents of a split.

    Raises
    ------
    PlanError
        If they are not consecutive and ascending, or there are none.
    """
    if isinstance(indices, range) and indices.step == 1 and len(indices):
        return indices
    if not len(indices):
        raise PlanError(f"{where} must hold documents, got none; give it a larger share")
    falls = np.flatnonzero(np.diff(np.asarray(indices).reshape(-1)) != 1)
    first = int(falls[0]) if falls.size else 0
    raise PlanError(
        f"{where} must hold consecutive documents in ascending order, got "
        f"{np.asarray(indices)[first : first + 2].tolist()} at place {first} of {len(indices)}; "
        "give a range of documents"
    )


def plan_samples(
    low_level_dataset: Any,
    span: range,
    num_samples: int | None,
    *,
    drop_last: bool,
    config: GPTDatasetConfig,
    where: str,
) -> EpochPlan:
    """Return how many samples a split gives, from its number of tokens alone.

    Raises
    ------
    PlanError
        If its documents hold no tokens.
    """
    num_tokens = _count_tokens(low_level_dataset, span)
    if not num_tokens:
        raise PlanError(
            f"{where} must hold tokens to give samples, its documents [{span.start}, {span.stop}) "
            "hold none; give it a larger share"
        )
    return plan_epochs(
        num_tokens,
        num_samples,
        sequence_length=config.sequence_length,
        extra_token=int(config.add_extra_token_to_sequence),
        drop_last=drop_last,
    )


def _count_tokens(low_level_dataset: Any, span: range) -> int:
    """Return the tokens of a run of documents: from offsets where there are some."""
    if isinstance(low_level_dataset, STORED):
        return count_tokens(_opened(low_level_dataset), span.start, span.stop)
    lengths = low_level_dataset.sequence_lengths
    return int(np.sum(lengths[span.start : span.stop], dtype=np.int64))


def plan_index(
    source: SourceFacts,
    span: range,
    epochs: EpochPlan,
    *,
    split: str,
    drop_last: bool,
    config: GPTDatasetConfig,
) -> IndexPlan:
    """Return the plan of a split's index: the same as ``zindex.build`` makes of these settings."""
    return IndexPlan(
        source=source,
        split=split,
        start=span.start,
        stop=span.stop,
        epochs=epochs,
        sequence_length=config.sequence_length,
        extra_token=int(config.add_extra_token_to_sequence),
        seed=config.random_seed,
        drop_last=drop_last,
        order=config.order,
        stored=config.store,
        grid=config.grid,
    )


def index_folder(
    low_level_dataset: Any, class_name: str, config: BlendedMegatronDatasetConfig
) -> str:
    """Return the directory of a dataset's indices: the cache, or one beside the dataset."""
    if config.path_to_cache:
        return config.path_to_cache
    beside = str(low_level_dataset.path_prefix).rstrip("/").removesuffix(".zarr")
    return os.path.join(beside, "cache", f"{class_name}_indices")


def stored_source(low_level_dataset: Any) -> LengthSource:
    """Return the lengths of a dataset on disk, digested once for all its splits."""
    source = _sources.get(low_level_dataset)
    if source is None:
        source = LengthSource.of(str(low_level_dataset.path_prefix), _opened(low_level_dataset))
        _sources[low_level_dataset] = source
    return source


def _opened(low_level_dataset: IndexedDataset | ZarrIndexedDataset) -> Store | IdxFile:
    """Return what a dataset on disk holds open: its store, or its checked ``.idx`` file."""
    if isinstance(low_level_dataset, ZarrIndexedDataset):
        return low_level_dataset.store
    return low_level_dataset.index.file


def memory_facts(lengths: npt.NDArray[np.int32]) -> SourceFacts:
    """Return what decides the index of a dataset whose lengths are in memory."""
    values = np.ascontiguousarray(lengths, "<i4")
    blocks = range(0, len(values), DIGEST_BLOCK)
    digests = [hashlib.sha256(values[i : i + DIGEST_BLOCK].data).digest() for i in blocks]
    return SourceFacts(join_digests(digests), len(values), int(values.sum(dtype=np.int64)))


def index_needed(low_level_dataset: Any, plan: IndexPlan, folder: str) -> Needed:
    """Return the need for the index of a dataset on disk."""
    return needed_index(plan, stored_source(low_level_dataset), folder)


def _build_document_index(
    documents: npt.NDArray[np.integer[Any]],
    num_epochs: int,
    numpy_random_state: np.random.RandomState,
    separate_final_epoch: bool,
) -> npt.NDArray[np.int32]:
    """Return the documents of some epochs in shuffled order, drawn from a given generator.

    Datasets do not come here: their indices are built by ``zindex.building``, from a seed.

    Parameters
    ----------
    documents
        Shape (documents,), of one epoch.
    num_epochs
        Epochs.
    numpy_random_state
        The generator; it moves on.
    separate_final_epoch
        Whether the last epoch is shuffled by itself.

    Returns
    -------
    document_index
        Shape (num_epochs * documents,), int32.

    Notes
    -----
    Source: Megatron Core ``gpt_dataset``, bit by bit.
    """
    together = num_epochs - 1 if separate_final_epoch and num_epochs > 1 else num_epochs
    epochs = np.tile(np.asarray(documents).astype(np.int32), num_epochs)
    cut = together * len(documents)
    numpy_random_state.shuffle(epochs[:cut])
    if cut < epochs.size:
        numpy_random_state.shuffle(epochs[cut:])
    return epochs


def _build_shuffle_index(
    num_samples: int, total_size: int, numpy_random_state: np.random.RandomState
) -> npt.NDArray[np.integer[Any]]:
    """Return samples in shuffled order: the first ones among themselves, then the others.

    Datasets do not come here, as with ``_build_document_index``.

    Parameters
    ----------
    num_samples
        The first ones.
    total_size
        All of them.
    numpy_random_state
        The generator; it moves on.

    Returns
    -------
    shuffle_index
        Shape (total_size,), uint32, or int64 from ``2**32 - 2`` samples on.
    """
    dtype = np.int64 if total_size >= np.iinfo(np.uint32).max - 1 else np.uint32
    samples: npt.NDArray[np.integer[Any]] = np.arange(total_size, dtype=dtype)
    numpy_random_state.shuffle(samples[:num_samples])
    if num_samples < total_size:
        numpy_random_state.shuffle(samples[num_samples:])
    return samples
