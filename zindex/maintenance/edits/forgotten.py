"""Forgotten documents of a run: the samples that hold them, and the positions of these samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.indexing.blend_arrays import BlendArrays, compute_blend_arrays, open_blend_arrays
from zindex.indexing.ensure import MAX_COMPUTED_ROWS, BuildRequest
from zindex.indexing.store_build import find_index
from zindex.maintenance.edits.draws import BLOCK, Draws, blocks_of
from zindex.maintenance.edits.journal import RunJournal
from zindex.maintenance.edits.order_sources import SampleDocuments
from zindex.maintenance.edits.packed_source import open_sources
from zindex.maintenance.edits.replan import build_stores
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.journal import Forgotten, RunState, Touched
from zindex.plan.packing import PackingPlan
from zindex.plan.segments import fill_positions
from zindex.store.open import Store

# Tokens whose documents are read at a time.
_BLOCK_TOKENS = 1 << 22


class Forgetting:
    """Which samples hold forgotten documents, and which tokens of them are left out.

    Parameters
    ----------
    state
        The run.
    """

    def __init__(self, state: RunState) -> None:
        self._touched = {item.source: np.array(item.samples, np.int64) for item in state.touched}
        self._first = min((item.position for item in state.forgotten), default=state.num_samples)
        self._documents: dict[int, tuple[Int64Array, Int64Array]] = {}
        for dataset in {item.dataset for item in state.forgotten}:
            own = [item for item in state.forgotten if item.dataset == dataset]
            documents = np.concatenate([np.array(item.documents, np.int64) for item in own])
            sizes = [len(item.documents) for item in own]
            positions = np.repeat([item.position for item in own], sizes)
            order = np.argsort(documents)
            self._documents[dataset] = documents[order], positions[order]

    def find_touched(self, draws: Draws, positions: Int64Array | None = None) -> Int64Array:
        """Return the indices of draws whose samples hold a forgotten document.

        Parameters
        ----------
        draws
            The samples.
        positions
            Their positions, to omit those before the first position from which documents are
            forgotten.
        """
        if positions is not None and (not len(positions) or positions.max() < self._first):
            return np.empty(0, np.int64)
        is_touched = np.zeros(len(draws.sources), np.bool_)
        for source in self._touched.keys() & set(np.unique(draws.sources).tolist()):
            own = np.flatnonzero(draws.sources == source)
            is_touched[own] = is_member(self._touched[source], draws.samples[own])[0]
        if positions is not None:
            is_touched &= positions >= self._first
        return np.flatnonzero(is_touched)

    def covers(self, dataset: int, documents: Int64Array, positions: Int64Array) -> BoolArray:
        """Return which tokens are left out.

        Parameters
        ----------
        dataset
            Number of the dataset.
        documents, positions
            Document of each token, and the position of its sample; broadcast.
        """
        if dataset not in self._documents:
            return np.zeros(np.broadcast(documents, positions).shape, np.bool_)
        known, since = self._documents[dataset]
        found, places = is_member(known, documents)
        return found & (positions >= since[places])

    def find_covered(
        self, datasets: Int64Array, documents: Int64Array, positions: Int64Array
    ) -> BoolArray:
        """Return which spans of documents are left out; arguments as of `covers`, one per span."""
        found = np.zeros(len(datasets), np.bool_)
        for dataset in self._documents:
            own = np.flatnonzero(datasets == dataset)
            found[own] = self.covers(dataset, documents[own], positions[own])
        return found


def is_member(ascending: Int64Array, values: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Return whether values are in an ascending array, and where."""
    if not len(ascending):
        return np.zeros(values.shape, np.bool_), np.zeros(values.shape, np.int64)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[places] == values, places


class HeldSamples(NamedTuple):
    """Samples of a run that hold some documents, by position."""

    #: Shape (samples,), int64, ascending.
    positions: Int64Array
    #: Shape (samples,), int64: number of the source, and position in it.
    sources: Int64Array
    samples: Int64Array


@dataclass(frozen=True, slots=True)
class Settled:
    """A run without the tokens of forgotten documents, and how it differs from the one before."""

    state: RunState
    #: Samples that held the newly forgotten documents.
    held: HeldSamples
    #: Positions whose samples hold forgotten tokens only, so that the run has them no longer.
    emptied: tuple[int, ...]
    #: The former position of samples that moved, by the new one.
    moved: Mapping[int, int]


class OpenedRun:
    """A run of a journal, opened for finding documents.

    Small indices that are not stored are computed, larger ones are built.

    Parameters
    ----------
    journal
        The run.
    client
        Where to build, as of ``zindex.build``.
    """

    def __init__(self, journal: RunJournal, client: Any = None) -> None:
        self.journal, self.state, self.client = journal, journal.state, client
        self.sources = open_sources(journal, lambda item: self._find_store(item.plan, item.source))

    def _find_store(self, plan: Any, source: Any = None) -> Store | None:
        """Return the store of a plan, built if it is missing; None if it is computed."""
        folder = self.journal.config.index
        store = find_index(plan.store_plan(folder))
        is_packed = isinstance(plan, PackingPlan)
        if store is None and (is_packed or plan.num_build_rows > MAX_COMPUTED_ROWS):
            [store] = build_stores([BuildRequest(plan, folder, source)], self.client)
        return store

    def _open_blend(self, plan: BlendPlan) -> BlendArrays:
        store = self._find_store(plan)
        return compute_blend_arrays(plan) if store is None else open_blend_arrays(store)

    def find_held(self, forgetting: Forgetting) -> HeldSamples:
        """Return the samples of the run that hold documents: one scan of its order."""
        state, found = self.state, [np.empty((3, 0), np.int64)]
        pools = [*map(self.journal.pools, range(len(state.blends)))]
        opened: dict[int, BlendArrays] = {}
        for segment in state.segments:
            blend = segment.blend
            if blend not in opened:
                opened[blend] = self._open_blend(
                    self.journal.blend_plan(state.blends[blend], blend)
                )
            arrays, shift = opened[blend], segment.start - segment.offset
            span = segment.offset, segment.stop - shift
            for start, stop in blocks_of([span], BLOCK):
                datasets = arrays.dataset_index[start:stop]
                draws = pools[blend].find(datasets, arrays.dataset_sample_index[start:stop])
                rows = forgetting.find_touched(draws)
                columns = start + shift + rows, draws.sources[rows], draws.samples[rows]
                found.append(np.stack(columns))
        return HeldSamples(*np.concatenate(found, axis=1))

    def find_touched(self, forgotten: Sequence[Forgotten]) -> tuple[Touched, ...]:
        """Return the samples of all sources that hold documents."""
        found = []
        forgetting = Forgetting(replace(self.state, forgotten=tuple(forgotten)))
        for number, source in enumerate(self.sources):
            dataset = self.state.sources[number].dataset
            own = [item.documents for item in forgotten if item.dataset == dataset]
            if not own:
                continue
            places = np.sort(source.find(np.unique(np.concatenate(own))))
            everywhere = np.full((1, 1), self.state.num_samples)
            is_held = np.zeros(len(places), np.bool_)
            for rows, documents in self._read_documents(number, places):
                for tokens in documents:
                    is_held[rows] |= forgetting.covers(dataset, tokens, everywhere).any(axis=1)
            if is_held.any():
                found.append(Touched(number, tuple(places[is_held].tolist())))
        return tuple(found)

    def find_emptied(self, forgetting: Forgetting, held: HeldSamples) -> Int64Array:
        """Return the positions of samples whose inputs are all forgotten, ascending."""
        found = [np.empty(0, np.int64)]
        for number in np.unique(held.sources).tolist():
            own = np.flatnonzero(held.sources == number)
            dataset = self.state.sources[number].dataset
            for rows, documents in self._read_documents(number, held.samples[own]):
                positions = held.positions[own[rows]]
                inputs = documents.inputs
                is_out = forgetting.covers(dataset, inputs, positions[:, None]) | (inputs < 0)
                found.append(positions[is_out.all(axis=1)])
        return np.sort(np.concatenate(found))

    def _read_documents(
        self, number: int, places: Int64Array
    ) -> Iterator[tuple[Int64Array, SampleDocuments]]:
        """Yield the documents of samples of a source, with their indices, block by block."""
        source = self.sources[number]
        step = max(1, _BLOCK_TOKENS // source.sequence_length)
        for start in range(0, len(places), step):
            rows = np.arange(start, min(start + step, len(places)))
            yield rows, source.documents_of(source.samples_at(places[rows]))


def merge_touched(*groups: Sequence[Touched]) -> tuple[Touched, ...]:
    """Return the samples of several groups together."""
    found: dict[int, set[int]] = {}
    for item in chain(*groups):
        found.setdefault(item.source, set()).update(item.samples)
    return tuple(Touched(source, tuple(sorted(found[source]))) for source in sorted(found))


def settle(
    journal: RunJournal,
    state: RunState,
    forgotten: Sequence[Forgotten],
    position: int,
    client: Any = None,
) -> Settled:
    """Return a run from which more documents are forgotten, or that has new sources.

    Parameters
    ----------
    journal, state
        The run before an edit, and with it, or as before.
    forgotten
        Further documents to forget.
    position
        Position of the edit.
    client
        Where to build missing stores.

    Notes
    -----
    Law: a position from `position` on has the sample that it had without the documents; if nothing
    is left of it, it has one of the last samples of the run, which gets shorter. So no other token
    is lost or repeated. Cost: one scan of the order of the run.
    """
    run = OpenedRun(journal.proposing(state), client)
    fresh = tuple(forgotten) or state.forgotten
    touched = run.find_touched(fresh)
    held = run.find_held(Forgetting(replace(state, forgotten=fresh, touched=touched)))
    later = HeldSamples(*(column[held.positions >= position] for column in held))
    state = replace(
        state,
        forgotten=(*state.forgotten, *forgotten),
        touched=merge_touched(state.touched, touched),
    )
    emptied = tuple(run.find_emptied(Forgetting(state), later).tolist())
    segments, skipped, moved = fill_positions(state.segments, emptied)
    state = replace(state, segments=segments, skipped=(*state.skipped, *skipped))
    return Settled(state, held, emptied, moved)
