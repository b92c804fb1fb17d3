"""The arrays of a GPT index as a reader sees them: stored, computed on read, or in memory."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.arrays import AnyArray
from zindex.indexing.computed_arrays import ComputedArray
from zindex.indexing.index_tasks import (
    compute_documents,
    compute_shuffle,
    shuffle_documents,
    shuffle_samples,
)
from zindex.kernels._jit import is_loaded
from zindex.kernels.early import is_early
from zindex.kernels.samples import fill_boundaries, gather_lengths
from zindex.plan.index_plan import IndexPlan
from zindex.store.open import FollowedStore, Store
from zindex.store.rows import RowReader

# Rows up to which numpy is faster than importing numba and loading the kernels.
_FEW_ROWS = 1 << 22
# Rows that numpy computes in the time of one value of a permutation.
_ROWS_PER_VALUE = 4
# Rows that numpy takes at a time.
_BLOCK = 1 << 15


class IndexArrays(NamedTuple):
    """What maps a position of the run to documents and offsets."""

    #: Rows to document ids: shape (rows,).
    document_index: RowReader | AnyArray
    #: Boundaries of samples: shape (samples + 1, 2), row and token offset.
    sample_index: RowReader | AnyArray
    #: Positions to sample ids: shape (samples,).
    shuffle_index: RowReader | AnyArray


def open_index_arrays(store: Store) -> IndexArrays:
    """Return the arrays of an index; nothing is read before it is used.

    Parameters
    ----------
    store
        An index store, built with ``store="all"`` or ``"minimal"``, or followed while it is built:
        then nothing is waited for that the scalable order computes on read.
    """
    samples = store[schema.SAMPLE_INDEX.name]
    is_computed = isinstance(store, FollowedStore) and store.spec["algorithm"] == "scalable"
    if schema.DOCUMENT_INDEX.name in store and not is_computed:
        return IndexArrays(
            store[schema.DOCUMENT_INDEX.name], samples, store[schema.SHUFFLE_INDEX.name]
        )
    plan = IndexPlan.from_spec(store.spec)
    return IndexArrays(
        ComputedArray(plan.document_layout, plan, compute_documents),
        samples,
        ComputedArray(plan.shuffle_layout, plan, compute_shuffle),
    )


def compute_index_arrays(plan: IndexPlan, lengths: npt.NDArray[np.int32]) -> IndexArrays:
    """Return the arrays of an index in memory, without storing anything.

    Parameters
    ----------
    plan
        What to compute.
    lengths
        Shape (plan.num_documents,), int32, tokens of the split's documents.

    Notes
    -----
    Cost: in Megatron's order about 40 ns per row up to some million rows, with no numba imported,
    and 10 ns where kernels are loaded.
    """
    length, extra = plan.sequence_length, plan.extra_token
    boundaries = np.empty((plan.num_samples + 1, 2), plan.sample_layout.dtype)
    full = boundaries[: plan.num_full_samples + 1]
    by_numpy = (
        is_few(plan)
        and not is_loaded(fill_boundaries)
        and is_early(plan.num_build_rows // _ROWS_PER_VALUE)
    )
    if plan.order == "scalable":
        documents = compute_documents(plan, 0, plan.num_rows)
        shuffled = compute_shuffle(plan, 0, plan.num_samples)
    elif by_numpy:
        documents, shuffled = _shuffle_few(plan)
    else:
        documents, state = shuffle_documents(plan)
        shuffled = shuffle_samples(plan, state)
    if by_numpy:
        _fill_few(plan, lengths, documents, full)
    else:
        gathered = np.empty(plan.num_rows, np.int32)
        gather_lengths(lengths, documents, plan.start, gathered)
        fill_boundaries(gathered, 0, 0, length, extra, full, 0, 0)
    last = int(lengths[int(documents[-1]) - plan.start])
    boundaries[len(full) :] = plan.num_rows - 1, last - extra
    documents = documents.astype(plan.document_layout.dtype, copy=False)
    return IndexArrays(documents, boundaries, shuffled)


def is_few(plan: IndexPlan) -> bool:
    """Return whether an index is so small that numpy computes it before kernels are loaded."""
    return plan.num_build_rows <= _FEW_ROWS


def _shuffle_few(plan: IndexPlan) -> tuple[AnyArray, AnyArray]:
    """Return documents and samples in Megatron's order."""
    epochs, state = plan.epochs, np.random.RandomState(plan.seed)
    documents = build_document_index(
        np.arange(plan.start, plan.stop),
        epochs.num_epochs,
        state,
        epochs.separate_final_epoch,
        np.int64,  # words of 8 bytes are shuffled faster than any others
    )
    return documents, build_shuffle_index(plan.num_mixed_samples, plan.num_samples, state)


def _fill_few(
    plan: IndexPlan, lengths: npt.NDArray[np.int32], documents: AnyArray, boundaries: AnyArray
) -> None:
    """Fill the sample boundaries as `fill_boundaries` does, by rows that fit the cache."""
    length = plan.sequence_length
    boundaries[0] = 0
    boundary, num_ended, token = 1, np.int64(0), np.int64(0)
    for first in range(0, len(documents), _BLOCK):
        parts = lengths.take(documents[first : first + _BLOCK] - plan.start)
        stops = np.cumsum(parts, dtype=np.int64)
        stops += token
        # Boundaries up to the end of each document; the first one is at its own place in any case.
        ended = np.maximum(stops - plan.extra_token, 0) // length
        counts = np.diff(ended, prepend=num_ended)
        rows = np.flatnonzero(counts > 0)
        rows = np.repeat(rows, counts[rows])[: len(boundaries) - boundary]
        found = boundaries[boundary : boundary + len(rows)]
        found[:, 0] = rows + first
        tokens = np.arange(boundary, boundary + len(rows)) * length
        found[:, 1] = tokens - (stops[rows] - parts[rows])
        boundary, num_ended, token = boundary + len(rows), ended[-1], stops[-1]


def build_document_index(
    documents: npt.NDArray[np.integer[Any]],
    num_epochs: int,
    numpy_random_state: np.random.RandomState,
    separate_final_epoch: bool,
    dtype: npt.DTypeLike = np.int32,
) -> npt.NDArray[Any]:
    """Return the documents of some epochs in shuffled order, drawn from a given generator.

    Parameters
    ----------
    documents
        Shape (documents,), of one epoch.
    num_epochs
        Epochs.
    numpy_random_state
        The generator; its state advances.
    separate_final_epoch
        Whether the last epoch is shuffled separately.
    dtype
        Of the result.

    Returns
    -------
    document_index
        Shape (num_epochs * documents,).

    Notes
    -----
    Source: Megatron Core ``gpt_dataset``, bit by bit.
    """
    together = num_epochs - 1 if separate_final_epoch and num_epochs > 1 else num_epochs
    epochs = np.tile(np.asarray(documents).astype(dtype, copy=False), num_epochs)
    cut = together * len(documents)
    numpy_random_state.shuffle(epochs[:cut])
    if cut < epochs.size:
        numpy_random_state.shuffle(epochs[cut:])
    return epochs


def build_shuffle_index(
    num_samples: int, total_size: int, numpy_random_state: np.random.RandomState
) -> npt.NDArray[np.integer[Any]]:
    """Return samples in shuffled order: the first ones among themselves, then the others.

    Parameters
    ----------
    num_samples
        Samples that are shuffled among themselves first.
    total_size
        All samples.
    numpy_random_state
        The generator; its state advances.

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
