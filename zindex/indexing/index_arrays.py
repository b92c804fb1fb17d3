"""The arrays of a GPT index as a reader sees them: stored, computed on read, or in memory."""

from typing import NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int32Array, IntegerArray
from zindex.indexing import index_tasks
from zindex.indexing.computed_arrays import ComputedArray, KeyedEpochs, keyed_shuffle
from zindex.kernels._jit import is_loaded
from zindex.kernels.numpy_budget import use_numpy
from zindex.kernels.samples import fill_boundaries, gather_lengths
from zindex.plan.index_plan import IndexPlan
from zindex.plan.keys import Stage
from zindex.store.open import FollowedStore, Store
from zindex.store.rows import RowReader

# Maximum rows for which numpy is faster than importing numba and loading the kernels.
_FEW_ROWS = 1 << 22
# Rows that numpy computes in the time of one value of a permutation.
_ROWS_PER_VALUE = 4
# Rows that numpy processes at a time.
_BLOCK = 1 << 15


class IndexArrays(NamedTuple):
    """The arrays that map a position of the run to documents and offsets."""

    #: Rows to document ids: shape (rows,).
    document_index: RowReader | AnyArray
    #: Boundaries of samples: shape (samples + 1, 2), row and token offset.
    sample_index: RowReader | AnyArray
    #: Positions to sample ids: shape (samples,).
    shuffle_index: RowReader | AnyArray


def open_index_arrays(store: Store) -> IndexArrays:
    """Return the arrays of an index, read lazily.

    Parameters
    ----------
    store
        An index store, built with ``store="all"`` or ``"minimal"``, or followed while it is built;
        then arrays that the scalable order computes on read are available immediately.
    """
    samples = store[schema.SAMPLE_INDEX.name]
    is_computed = isinstance(store, FollowedStore) and store.spec["algorithm"] == "scalable"
    if schema.DOCUMENT_INDEX.name in store and not is_computed:
        return IndexArrays(
            store[schema.DOCUMENT_INDEX.name], samples, store[schema.SHUFFLE_INDEX.name]
        )
    plan = IndexPlan.from_spec(store.spec)
    return IndexArrays(
        ComputedArray(plan.document_layout, plan, index_tasks.compute_documents),
        samples,
        ComputedArray(plan.shuffle_layout, plan, index_tasks.compute_shuffle),
    )


def keyed_documents(plan: IndexPlan) -> KeyedEpochs:
    """Return the document index of the scalable order, with its inverse."""
    starts = np.arange(plan.epochs.num_epochs + 1) * plan.num_documents
    return KeyedEpochs(plan.document_layout, plan, Stage.DOCUMENT, starts, plan.start)


def keyed_samples(plan: IndexPlan) -> KeyedEpochs:
    """Return the shuffle index of the scalable order, with its inverse."""
    starts = [plan.samples_of_epoch(epoch)[0] for epoch in range(plan.epochs.num_epochs)]
    return keyed_shuffle(plan, np.array([*starts, plan.num_samples], np.int64))


def compute_index_arrays(plan: IndexPlan, lengths: Int32Array) -> IndexArrays:
    """Return the arrays of an index in memory, without storing anything.

    Parameters
    ----------
    plan
        What to compute.
    lengths
        Shape (plan.num_documents,), int32, tokens of the split's documents.

    Notes
    -----
    Cost: in Megatron's order about 40 ns per row up to some million rows, without importing numba,
    and 10 ns if kernels are loaded.
    """
    length, extra = plan.sequence_length, plan.extra_token
    boundaries = np.empty((plan.num_samples + 1, 2), plan.sample_layout.dtype)
    full = boundaries[: plan.num_full_samples + 1]
    by_numpy = (
        is_few(plan)
        and not is_loaded(fill_boundaries)
        and use_numpy(plan.num_build_rows // _ROWS_PER_VALUE)
    )
    if plan.order == "scalable":
        documents = index_tasks.compute_documents(plan, 0, plan.num_rows)
        shuffled = index_tasks.compute_shuffle(plan, 0, plan.num_samples)
    elif by_numpy:
        documents, shuffled = _shuffle_few(plan)
    else:
        documents, state = index_tasks.shuffle_documents(plan)
        shuffled = index_tasks.shuffle_samples(plan, state)
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
    # Words of 8 bytes are shuffled fastest.
    documents = np.arange(plan.start, plan.stop, dtype=np.int64)
    num_documents = documents.size
    if epochs.num_epochs > 1:
        documents = np.tile(documents, epochs.num_epochs)
    _shuffle_epochs(documents, num_documents, state, epochs.separate_final_epoch)
    return documents, build_shuffle_index(plan.num_mixed_samples, plan.num_samples, state)


def _shuffle_epochs(
    epochs: AnyArray,
    num_documents: int,
    state: np.random.RandomState,
    separate_final_epoch: bool,
) -> None:
    """Shuffle all epochs together, or the last one separately."""
    is_cut = separate_final_epoch and epochs.size > num_documents
    cut = epochs.size - num_documents if is_cut else epochs.size
    state.shuffle(epochs[:cut])
    if is_cut:
        state.shuffle(epochs[cut:])


def _fill_few(
    plan: IndexPlan, lengths: Int32Array, documents: AnyArray, boundaries: AnyArray
) -> None:
    """Fill the sample boundaries as `fill_boundaries` does, in blocks that fit the cache."""
    length = plan.sequence_length
    boundaries[0] = 0
    boundary, num_ended, token = 1, np.int64(0), np.int64(0)
    for first in range(0, len(documents), _BLOCK):
        parts = lengths.take(documents[first : first + _BLOCK] - plan.start)
        stops = np.cumsum(parts, dtype=np.int64)
        stops += token
        # Boundaries up to the end of each document; the first one is always at its own place.
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
    documents: IntegerArray,
    num_epochs: int,
    numpy_random_state: np.random.RandomState,
    separate_final_epoch: bool,
) -> AnyArray:
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

    Returns
    -------
    document_index
        Shape (num_epochs * documents,), int32.

    Notes
    -----
    Source: Megatron Core ``gpt_dataset``, bit by bit.
    """
    epochs = np.tile(np.asarray(documents).astype(np.int32, copy=False), num_epochs)
    _shuffle_epochs(epochs, len(documents), numpy_random_state, separate_final_epoch)
    return epochs


def build_shuffle_index(
    num_samples: int, total_size: int, numpy_random_state: np.random.RandomState
) -> IntegerArray:
    """Return samples in shuffled order: the first ones among themselves, then the others.

    Parameters
    ----------
    num_samples
        Samples to shuffle among themselves first.
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
    samples: IntegerArray = np.arange(total_size, dtype=dtype)
    numpy_random_state.shuffle(samples[:num_samples])
    if num_samples < total_size:
        numpy_random_state.shuffle(samples[num_samples:])
    return samples
