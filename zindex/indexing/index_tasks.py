"""The tasks of a GPT index: shards of documents, of sample boundaries and of the shuffle.

Boundary k of the sample index is token ``k * S`` of the token stream. A shard of boundaries needs
the documents that hold its tokens, and the number of tokens before them: the exclusive prefix sum
over the tokens of document shards.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from zindex.arrays import IntegerArray, UInt32Array
from zindex.errors import StoreError, VerificationError
from zindex.indexing.computed_arrays import permute_epochs
from zindex.indexing.length_cache import cache_shard, find_shard, order_lengths
from zindex.indexing.store_build import find_shards, store_whole_array
from zindex.ingest.length_source import LengthSource
from zindex.io import files
from zindex.io.objects import Place
from zindex.kernels.legacy_shuffle import legacy_shuffle
from zindex.kernels.mersenne import seed_state
from zindex.kernels.samples import fill_boundaries
from zindex.plan.index_plan import IndexPlan
from zindex.plan.keys import Stage
from zindex.store.commit import read_sealed, seal
from zindex.store.open import open_reader
from zindex.store.shard_files import ShardResult, store_all_shards, store_shard

#: File with the state of Megatron's generator after the documents, for resumed builds.
GENERATOR_KEY = "_zindex/generator.json"


@dataclass(frozen=True, slots=True)
class IndexTasks:
    """The tasks of the build of one index; any worker may run any of them."""

    plan: IndexPlan
    root: Place
    source: LengthSource
    #: Lengths in document order, by document shard, if a single process builds everything.
    ordered: dict[int, IntegerArray] = field(default_factory=dict)

    def read_documents(self, start: int, stop: int) -> IntegerArray:
        """Return rows ``[start, stop)`` of the document index, read or computed."""
        if self.plan.stored == "minimal":
            return compute_documents(self.plan, start, stop)
        return open_reader(self.root, self.plan.document_layout).read(start, stop)

    def store_document_shard(self, shard: int, *, counted: bool) -> tuple[list[ShardResult], int]:
        """Task: store one shard of the scalable order's document index, and count its tokens.

        Returns
        -------
        results, num_tokens
            Without result if the shard is not stored, and without tokens unless they are to be
            counted.
        """
        layout = self.plan.document_layout
        documents = compute_documents(self.plan, *layout.shard_bounds(shard))
        results = []
        if self.plan.stored == "all":
            results = [store_shard(self.root, layout, shard, lambda: documents, whole=True)]
        return results, self._count_tokens(shard, documents) if counted else 0

    def store_shuffled_documents(self) -> list[ShardResult]:
        """Task: store all shards of Megatron's document index.

        The legacy shuffle is serial, since each draw depends on all earlier ones. It is one task
        per dataset and split, which writes shards in parallel while it continues.
        """
        plan, root, layout = self.plan, self.root, self.plan.document_layout
        if _has_generator(root) and (found := find_shards(root, layout, whole=True)) is not None:
            return found
        documents, state = start_documents(plan)
        shards = shuffle_shards(plan, documents, state)
        results = store_all_shards(root, layout, documents, shards=shards, whole=True)
        save_generator(root, state)
        return results

    def count_document_shard(self, shard: int) -> int:
        """Task: count the tokens of one stored shard of the document index."""
        documents = self.read_documents(*self.plan.document_layout.shard_bounds(shard))
        return self._count_tokens(shard, documents)

    def _count_tokens(self, shard: int, documents: IntegerArray) -> int:
        """Return the tokens of a shard of documents; cache their lengths for the sample index."""
        ordered = order_lengths(self.plan, self.source, documents)
        cache_shard(self.root, self.plan.document_layout.shard_bounds(shard), ordered)
        return int(ordered.sum(dtype=np.int64))

    def find_partitions(
        self, token_starts: Sequence[int], start: int, stop: int
    ) -> tuple[int, list[int]]:
        """Return the shards of the document index that rows of the sample index overlap.

        Parameters
        ----------
        token_starts
            Stream position of the first token of each shard of the document index.
        start, stop
            Rows of the sample index, half-open.

        Returns
        -------
        first_partition
            The first of these shards.
        token_starts
            For these shards only: a task gets few numbers even in a long run.
        """
        stop_full = min(stop, self.plan.num_full_samples + 1)
        first = self._find_partition(token_starts, start)
        last = bisect_right(token_starts, (stop_full - 1) * self.plan.sequence_length) - 1
        return first, list(token_starts[first : max(first, last) + 1])

    def _find_partition(self, token_starts: Sequence[int], boundary: int) -> int:
        """Return the row of ``token_starts`` for the document shard that contains a boundary."""
        # Without an extra token, a boundary belongs to the document that ends there, if any.
        token = boundary * self.plan.sequence_length - (1 - self.plan.extra_token)
        # Boundary 0 is row 0 by definition, even if the first documents are empty.
        return bisect_right(token_starts, token) - 1 if boundary else 0

    def store_sample_shard(
        self, first_partition: int, token_starts: Sequence[int], shard: int
    ) -> ShardResult:
        """Task: store one shard of the sample index, given the result of `find_partitions`."""
        layout = self.plan.sample_layout
        args = (first_partition, token_starts, *layout.shard_bounds(shard))
        return store_shard(self.root, layout, shard, lambda: self.compute_boundaries(*args))

    def compute_boundaries(
        self, first_partition: int, token_starts: Sequence[int], start: int, stop: int
    ) -> IntegerArray:
        """Return rows ``[start, stop)`` of the sample index.

        Parameters
        ----------
        first_partition, token_starts
            From `find_partitions`.
        start, stop
            Boundaries, half-open.

        Returns
        -------
        boundaries
            Shape (stop - start, 2): row in document_index, token offset in that document.

        Notes
        -----
        Source: Megatron Core ``build_sample_idx``. Cost: O(documents of these samples).
        """
        plan = self.plan
        boundaries = np.empty((stop - start, 2), plan.sample_layout.dtype)
        length, extra = plan.sequence_length, plan.extra_token
        stop_full = min(stop, plan.num_full_samples + 1)
        if start < stop_full:
            near = self._find_partition(token_starts, start)
            boundary = start
            full = boundaries[: stop_full - start]
            while boundary < stop_full:
                if near == len(token_starts):
                    raise VerificationError(
                        f"{self.source.path} must hold the tokens that its offsets name, boundary "
                        f"{boundary} is beyond its last document; convert it again"
                    )
                partition = first_partition + near
                row, token = partition * plan.document_layout.shard_length, token_starts[near]
                ordered = self._read_ordered(partition)
                boundary = fill_boundaries(
                    ordered, row, token, length, extra, full, start, boundary
                )
                near += 1
        if stop > stop_full:
            # The last, shorter sample ends with the last document.
            last = self._read_ordered(plan.document_layout.num_shards - 1)[-1]
            boundaries[-1] = plan.num_rows - 1, int(last) - extra
        return boundaries

    def _read_ordered(self, partition: int) -> IntegerArray:
        """Return the lengths of one document shard, in document order."""
        rows = self.plan.document_layout.shard_bounds(partition)
        cached = self.ordered.get(partition)
        if cached is None:
            cached = find_shard(self.root, rows)
        if cached is not None:
            return cached
        return order_lengths(self.plan, self.source, self.read_documents(*rows))

    def store_shuffle_shard(self, shard: int) -> ShardResult:
        """Task: store one shard of the scalable order's shuffle index."""
        plan, layout = self.plan, self.plan.shuffle_layout
        bounds = layout.shard_bounds(shard)
        return store_shard(self.root, layout, shard, lambda: compute_shuffle(plan, *bounds))

    def store_shuffled_samples(self) -> list[ShardResult]:
        """Task: store all shards of Megatron's shuffle, with the generator of the documents."""
        plan, root = self.plan, self.root
        return store_whole_array(
            root, plan.shuffle_layout, lambda: shuffle_samples(plan, read_generator(root))
        )


def compute_documents(plan: IndexPlan, start: int, stop: int) -> IntegerArray:
    """Return rows ``[start, stop)`` of the scalable order's document index.

    Parameters
    ----------
    plan
        A plan with ``order="scalable"``.
    start, stop
        Rows, ``0 <= start <= stop <= plan.num_rows``.

    Returns
    -------
    documents
        Shape (stop - start,), int32 or int64, document ids.

    Notes
    -----
    Law: every epoch's rows are a permutation of the split's documents. Any row can be computed
    independently.
    """
    documents: IntegerArray = np.empty(stop - start, plan.document_layout.dtype)
    length = plan.num_documents

    def find_epoch(row: int) -> tuple[int, int, int]:
        epoch = row // length
        return epoch, epoch * length, (epoch + 1) * length

    permute_epochs(plan, Stage.DOCUMENT, start, documents, find_epoch, plan.start)
    return documents


def shuffle_documents(plan: IndexPlan) -> tuple[IntegerArray, UInt32Array]:
    """Return Megatron's document index and the state of its generator afterwards.

    Returns
    -------
    documents
        Shape (plan.num_rows,), document ids.
    state
        Shape (625,), uint32: MT19937, from which the shuffle of the samples continues.

    Notes
    -----
    Source: Megatron Core ``_build_document_index``.
    """
    documents, state = start_documents(plan)
    for _ in shuffle_shards(plan, documents, state):
        pass
    return documents, state


def start_documents(plan: IndexPlan) -> tuple[IntegerArray, UInt32Array]:
    """Return the documents of all epochs in order, and the initial state of the generator."""
    documents = np.arange(plan.start, plan.stop, dtype=plan.document_layout.dtype)
    if plan.epochs.num_epochs != 1:
        documents = np.tile(documents, plan.epochs.num_epochs)
    return documents, seed_state(plan.seed)


def shuffle_shards(plan: IndexPlan, documents: IntegerArray, state: UInt32Array) -> Iterator[int]:
    """Shuffle Megatron's document index in place; yield each shard once its rows are final."""
    layout, num_rows = plan.document_layout, plan.num_rows
    num_mixed = num_rows - plan.epochs.separate_final_epoch * plan.num_documents
    for low, high in ((0, num_mixed), (num_mixed, num_rows)):
        if low == high:
            continue
        for shard in reversed(range(low // layout.shard_length, layout.num_shards)):
            start, stop = layout.shard_bounds(shard)
            if start < high:
                legacy_shuffle(documents[low : min(stop, high)], state, max(start - low, 0))
                if stop <= high:
                    yield shard


def save_generator(root: Place, state: UInt32Array) -> None:
    """Save the state of Megatron's generator after the documents, unless a valid one exists."""
    buffers = [seal({"mt19937": state.tolist()}, "sha256")]
    path = root / GENERATOR_KEY
    if not (files.write_once(path, buffers) or _has_generator(root)):
        files.write_once(path, buffers, replace=True)


def read_generator(root: Place) -> UInt32Array:
    """Return the generator state written by `save_generator`."""
    path = root / GENERATOR_KEY
    words = read_sealed(path, "sha256", "build again").get("mt19937")
    if not isinstance(words, list) or len(words) != 625:
        raise VerificationError(f"{path} must hold 625 words; build again")
    return np.array(words, np.uint32)


def _has_generator(root: Place) -> bool:
    """Return whether a valid generator state is saved."""
    try:
        read_generator(root)
    except (StoreError, VerificationError):
        return False
    return True


def compute_shuffle(plan: IndexPlan, start: int, stop: int) -> IntegerArray:
    """Return positions ``[start, stop)`` of the scalable order's shuffle index.

    Returns
    -------
    samples
        Shape (stop - start,), uint32 or int64, sample ids.

    Notes
    -----
    Law: the samples of each epoch fill that epoch's positions. Cost: O(positions), independent of
    the number of epochs.
    """
    samples: IntegerArray = np.empty(stop - start, plan.shuffle_layout.dtype)

    def find_epoch(position: int) -> tuple[int, int, int]:
        epoch = plan.epoch_of_sample(position)
        return epoch, *plan.samples_of_epoch(epoch)

    permute_epochs(plan, Stage.SAMPLE, start, samples, find_epoch)
    return samples


def shuffle_samples(plan: IndexPlan, state: UInt32Array) -> IntegerArray:
    """Return Megatron's shuffle index.

    Parameters
    ----------
    plan
        A plan with ``order="megatron"``.
    state
        Shape (625,), uint32: MT19937 after the shuffle of the documents; advanced in place.

    Notes
    -----
    Source: Megatron Core ``_build_shuffle_index``.
    """
    samples = np.arange(plan.num_samples, dtype=plan.shuffle_layout.dtype)
    legacy_shuffle(samples[: plan.num_mixed_samples], state)
    # For an empty second range nothing is drawn, as in Megatron.
    legacy_shuffle(samples[plan.num_mixed_samples :], state)
    return samples
