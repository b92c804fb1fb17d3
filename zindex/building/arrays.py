"""The three arrays of an index as a reader sees them: stored, computed on read, or in memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.documents import compute_documents, shuffle_documents
from zindex.building.shuffle import compute_shuffle, shuffle_samples
from zindex.kernels.samples import fill_boundaries, gather_lengths
from zindex.plan.index_plan import IndexPlan
from zindex.store.follow import FollowedStore
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store
from zindex.store.reader import RowReader

AnyArray = npt.NDArray[Any]


class IndexArrays(NamedTuple):
    """What maps a position of the run to documents and offsets."""

    #: Rows to document ids: shape (rows,).
    document_index: RowReader | AnyArray
    #: Boundaries of samples: shape (samples + 1, 2), row and token offset.
    sample_index: RowReader | AnyArray
    #: Positions to sample ids: shape (samples,).
    shuffle_index: RowReader | AnyArray


class ComputedArray(RowReader):
    """An array that is not stored: a pure function of the plan, computed for the rows asked."""

    def __init__(
        self,
        layout: ArrayLayout,
        plan: IndexPlan,
        compute: Callable[[IndexPlan, int, int], AnyArray],
    ) -> None:
        super().__init__(layout)
        self.plan = plan
        self.compute = compute

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        out[:] = self.compute(self.plan, start, stop)


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
    spec = dict(store.spec)
    plan = IndexPlan.from_spec(spec, stored=spec.pop("store"))
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
    """
    if plan.order == "scalable":
        documents: AnyArray = compute_documents(plan, 0, plan.num_rows)
        shuffled: AnyArray = compute_shuffle(plan, 0, plan.num_samples)
    else:
        documents, state = shuffle_documents(plan)
        shuffled = shuffle_samples(plan, state)
    gathered = np.empty(plan.num_rows, np.int32)
    gather_lengths(lengths, documents, plan.start, gathered)
    boundaries = np.empty((plan.num_samples + 1, 2), plan.sample_layout.dtype)
    stop = plan.num_full_samples + 1
    length, extra = plan.sequence_length, plan.extra_token
    fill_boundaries(gathered, 0, 0, length, extra, boundaries[:stop], 0, 0)
    boundaries[stop:] = plan.num_rows - 1, gathered[-1] - extra
    return IndexArrays(documents, boundaries, shuffled)
