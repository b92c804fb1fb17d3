"""The sample index: where in the stream of documents each sample starts.

Boundary k is token ``k * S`` of the stream. A shard of boundaries needs the documents that hold
its tokens and the number of tokens before them: an exclusive prefix sum over document shards.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zindex.building.documents import read_documents
from zindex.building.held import find_ordered, order_lengths
from zindex.building.source import LengthSource
from zindex.errors import VerificationError
from zindex.kernels.samples import fill_boundaries
from zindex.plan.index_plan import IndexPlan
from zindex.store.objects import Place
from zindex.store.shard_files import ShardResult, store_shard


def find_partitions(
    plan: IndexPlan, token_starts: Sequence[int], shard: int
) -> tuple[int, list[int]]:
    """Return which shards of the document index hold a shard of samples.

    Parameters
    ----------
    plan
        The index.
    token_starts
        Position in the stream of the first token of each shard of the document index.
    shard
        Number of the sample index's shard.

    Returns
    -------
    first_partition
        The first of these shards.
    token_starts
        Of these shards only: however long a run is, a task is given few numbers.
    """
    start, stop = plan.sample_layout.shard_bounds(shard)
    stop_full = min(stop, plan.num_full_samples + 1)
    first = _find_partition(plan, token_starts, start)
    last = bisect_right(token_starts, (stop_full - 1) * plan.sequence_length) - 1
    return first, list(token_starts[first : max(first, last) + 1])


def _find_partition(plan: IndexPlan, token_starts: Sequence[int], boundary: int) -> int:
    """Return the place in ``token_starts`` of the shard of documents in which a boundary lies."""
    # With no extra token a boundary belongs to the document that ends there, if one does.
    token = boundary * plan.sequence_length - (1 - plan.extra_token)
    # Boundary 0 is row 0 by definition, even where the first documents are empty.
    return bisect_right(token_starts, token) - 1 if boundary else 0


def store_sample_shard(
    plan: IndexPlan,
    root: Place,
    source: LengthSource,
    first_partition: int,
    token_starts: Sequence[int],
    shard: int,
) -> ShardResult:
    """Task: one shard of the sample index.

    Parameters
    ----------
    plan, root, source
        The index, its store and its dataset.
    first_partition, token_starts
        As `find_partitions` returns them.
    shard
        Number of the sample index's shard.
    """
    start, stop = plan.sample_layout.shard_bounds(shard)
    return store_shard(
        root,
        plan.sample_layout,
        shard,
        lambda: compute_boundaries(
            plan, root, source, token_starts, start, stop, first_partition=first_partition
        ),
    )


def compute_boundaries(
    plan: IndexPlan,
    root: Place,
    source: LengthSource,
    token_starts: Sequence[int],
    start: int,
    stop: int,
    *,
    first_partition: int = 0,
) -> npt.NDArray[np.signedinteger]:
    """Return rows ``[start, stop)`` of the sample index.

    Parameters
    ----------
    plan, root, source
        The index, its store and its dataset.
    token_starts
        Position in the stream of the first token of each shard of the document index.
    start, stop
        Boundaries, half-open.
    first_partition
        The shard that ``token_starts`` begins with, as of `find_partitions`.

    Returns
    -------
    boundaries
        Shape (stop - start, 2): row in document_index, token offset in that document.

    Notes
    -----
    Source: Megatron Core ``build_sample_idx``. Cost: one pass over the documents of these samples.
    """
    boundaries = np.empty((stop - start, 2), plan.sample_layout.dtype)
    length, extra = plan.sequence_length, plan.extra_token
    stop_full = min(stop, plan.num_full_samples + 1)
    if start < stop_full:
        near = _find_partition(plan, token_starts, start)
        boundary = start
        full = boundaries[: stop_full - start]
        while boundary < stop_full:
            if near == len(token_starts):
                raise VerificationError(
                    f"{source.path} must hold the tokens that its offsets name, boundary "
                    f"{boundary} lies beyond its last document; convert it again"
                )
            partition = first_partition + near
            row, token = partition * plan.document_layout.shard_length, token_starts[near]
            ordered = _read_ordered(plan, root, source, partition)
            boundary = fill_boundaries(ordered, row, token, length, extra, full, start, boundary)
            near += 1
    if stop > stop_full:
        # The last, shorter sample ends with the last document.
        last = read_documents(plan, root, plan.num_rows - 1, plan.num_rows)
        boundaries[-1] = plan.num_rows - 1, int(order_lengths(plan, source, last)[0]) - extra
    return boundaries


def _read_ordered(
    plan: IndexPlan, root: Place, source: LengthSource, partition: int
) -> npt.NDArray[np.int32]:
    """Return the lengths of one document shard in document order."""
    rows = plan.document_layout.shard_bounds(partition)
    held = find_ordered(root, rows)
    if held is not None:
        return held
    return order_lengths(plan, source, read_documents(plan, root, *rows))
