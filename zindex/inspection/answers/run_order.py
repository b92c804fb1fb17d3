"""Sample order of one split of a run: map positions to samples and back, without torch.

Built indices are read from their stores; small ones are computed in memory. Nothing is written.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import Float64Array, Int64Array
from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, PlanError, StoreNotFoundError, VerificationError
from zindex.indexing.blend_arrays import BlendArrays, compute_blend_arrays, open_blend_arrays
from zindex.indexing.inverse import Inverse, find_inverse
from zindex.indexing.run_plan import PlannedIndex, find_dataset, label_paths, plan_run
from zindex.indexing.store_build import find_index
from zindex.inspection.answers.blend_search import compute_draws, invert_blend
from zindex.inspection.answers.documents import Documents, check_document
from zindex.maintenance.edits.draws import Draws, PoolTable, SegmentTable, find_draws
from zindex.maintenance.edits.forgotten import Forgetting
from zindex.maintenance.edits.index_search import take
from zindex.maintenance.edits.journal import JournalEntry, RunJournal, open_journal
from zindex.maintenance.edits.order_sources import (
    OrderSource,
    SampleParts,
)
from zindex.maintenance.edits.packed_source import open_order_source, open_sources
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import BuildPlan
from zindex.plan.journal import RunState
from zindex.plan.packing import PackingPlan
from zindex.plan.segments import Segment
from zindex.plan.split import SPLIT_NAMES
from zindex.store.chunk_reader import Verify
from zindex.store.commit import fingerprint
from zindex.store.open import Store

#: Maximum rows of an index that is computed in memory if it is not built.
MAX_COMPUTED_ROWS = 1 << 22

RunLike = RunConfig | Mapping[str, Any] | str | os.PathLike[str]


class Samples(NamedTuple):
    """Samples at some positions of a run."""

    #: Shape (positions,): the positions.
    positions: Int64Array
    #: Shape (positions,): index of each sample's source in `RunOrder.sources`.
    sources: Int64Array
    #: Shape (positions,): index of each sample's dataset in `RunOrder.paths`.
    datasets: Int64Array
    #: Shape (positions,): sample number in the source, before shuffling.
    samples: Int64Array
    #: Shape (positions,): epoch of the dataset at the start of the sample.
    epochs: Int64Array
    #: Document spans of the samples; owners are indices into the arrays above.
    parts: SampleParts


class RunOrder:
    """Sample order of one split of a run, with its edits applied.

    Parameters
    ----------
    config
        A ``RunConfig``, its mapping, or the path of a YAML file.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    num_edits
        Number of edits to apply, starting with the first; None applies all of them.
    verify
        When to verify the chunks of an index; see ``zindex.open_store``. Off by default, because
        verifying a whole chunk to read a few of its rows would dominate the cost. Samples that do
        not match the lengths of their documents raise an error in any case.

    Raises
    ------
    PlanError
        If the split has no samples, or several datasets that are not blended.
    StoreNotFoundError
        If an index is large and not built.
    """

    def __init__(
        self,
        config: RunLike,
        split: str = "train",
        *,
        num_edits: int | None = None,
        verify: Verify = "never",
    ) -> None:
        if split not in SPLIT_NAMES:
            raise ConfigError(f"split must be one of {', '.join(SPLIT_NAMES)}, got {split!r}")
        self.config = config = as_config(config)
        self.split, self.verify = split, verify
        #: Corpora of the datasets, opened on first use.
        self.documents = Documents()
        plan = plan_run(config)
        members = {item.dataset: item for item in plan.members if item.plan.split == split}
        blend = next((item for item in plan.blends if item.split == split), None)
        self.plans: list[BlendPlan] = [] if blend is None else [blend.plan]
        self._edits: list[JournalEntry] = []
        self.sources: list[OrderSource] = []
        self._state: RunState | None = None
        self._forgetting: Forgetting | None = None
        self._arrays: dict[int, BlendArrays] = {}
        self._inverses: dict[int, Inverse | None] = {}
        if blend is None:
            if len(members) != 1:
                raise PlanError(
                    f"{split} of a run must be a blend or one dataset to have an order, got "
                    f"{len(members)} datasets; give the datasets weights"
                )
            self.paths = tuple(members)
            self._base = fingerprint(members[self.paths[0]].plan.spec)
        else:
            self.paths = blend.datasets
            identities = [fingerprint(members[path].plan.spec) for path in self.paths]
            self._base = fingerprint({"blend": blend.plan.spec, "members": identities})
            journal = open_journal(config, split, plan=plan)
            self._edits = list(journal.entries[:num_edits])
            self._open_edits(replace(journal, entries=journal.entries[:num_edits]))
        if not self.sources:
            self.sources = [self._open_source(members[path]) for path in self.paths]
            self.dataset_of = np.arange(len(self.paths))

    def _open_edits(self, journal: RunJournal) -> None:
        """Load the sources and blends of an edited run."""
        if not journal.entries:
            return
        self._state = state = journal.state
        self._forgetting = Forgetting(state)
        self._segments = SegmentTable(state.segments)
        self.paths = state.datasets
        for number, facts in enumerate(state.blends[1:], start=1):
            self.plans.append(journal.blend_plan(facts, number))
        self._pools: list[PoolTable] = [*map(journal.pools, range(len(state.blends)))]
        self.sources = open_sources(journal, self._find_index)
        self.dataset_of = np.array([source.dataset for source in state.sources])

    def _open_source(self, item: PlannedIndex[Any]) -> OrderSource:
        """Return the source of an index, opened or computed."""
        return open_order_source(item, self._find_index(item), self.config.index)

    def _find_index(self, item: PlannedIndex[Any]) -> Store | None:
        return self._find_store(item.plan, item.name(self.labels))

    def _find_store(self, plan: BuildPlan, name: str) -> Store | None:
        """Return the built store of a plan, or None if the index is computed (small or keyed)."""
        store = find_index(plan.store_plan(self.config.index))
        is_small = plan.num_build_rows <= MAX_COMPUTED_ROWS and not isinstance(plan, PackingPlan)
        is_computed = isinstance(plan, BlendPlan) and plan.stored == "minimal"
        if store is None and not (is_small or is_computed):
            raise StoreNotFoundError(
                f"the index of {name} must be built to be asked, it is not in {self.config.index}; "
                "run `zindex build` first"
            )
        return None if store is None else replace(store, verify=self.verify)

    def open_blend(self, number: int) -> BlendArrays:
        """Return the arrays of a blend, opened once."""
        if number not in self._arrays:
            plan = self.plans[number]
            store = self._find_store(plan, f"blend {self.split}")
            arrays = compute_blend_arrays(plan) if store is None else open_blend_arrays(store)
            self._arrays[number] = arrays
            self._inverses[number] = find_inverse(plan, self.config.index)
        return self._arrays[number]

    @property
    def num_edits(self) -> int:
        """Number of edits that are applied."""
        return len(self._edits)

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the dataset of the run before its first edit, and after each."""
        edits = (
            fingerprint({"blend": self._base, "edit": item.fingerprint}) for item in self._edits
        )
        return [self._base, *edits]

    @property
    def edit_positions(self) -> list[int]:
        """Position of each edit."""
        return [item.position for item in self._edits]

    @property
    def is_searchable(self) -> bool:
        """Whether `find` reads few rows: otherwise it reads whole orders."""
        for number, plan in enumerate(self.plans):
            self.open_blend(number)
            is_uniform = plan.order == "scalable" and plan.shuffle == "uniform"
            if is_uniform and self._inverses[number] is None:
                return False
        return all(source.is_searchable for source in self.sources)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Segments of the run, each drawn from one blend or from the only dataset."""
        if self._state is not None:
            return self._state.segments
        return (Segment(0, len(self), 0, 0),)

    def __len__(self) -> int:
        if self._state is not None:
            return self._state.num_samples
        if self.plans:
            return self.plans[0].num_samples
        [source] = self.sources
        arrays: Any = getattr(source, "arrays", None)
        return len(arrays.shuffle_index)

    def target_shares(self, segment: Segment) -> Float64Array:
        """Return the share of each dataset that the blend of a segment intends: (datasets,)."""
        shares = np.zeros(len(self.paths))
        if not self.plans:
            shares[:] = 1
        elif self._state is None:
            shares[:] = self.plans[0].weights
        else:
            datasets = self._state.blends[segment.blend].datasets
            shares[list(datasets)] = self.plans[segment.blend].weights
        return shares

    @cached_property
    def labels(self) -> dict[str, str]:
        """Short names of the datasets, by path."""
        return label_paths(self.paths)

    def find_dataset(self, name: str | int) -> int:
        """Return the number of a dataset, given its path, short name or number.

        Raises
        ------
        ConfigError
            If the run has no such dataset.
        """
        return find_dataset(self.paths, name)

    def has_dataset(self, name: str | int) -> bool:
        """Return whether the run has a dataset of this path, short name or number."""
        try:
            self.find_dataset(name)
        except ConfigError:
            return False
        return True

    def count_tokens(self, dataset: int, document: int) -> int:
        """Return the length of a document, in tokens.

        Raises
        ------
        ConfigError
            If the document does not exist.
        """
        number = int(np.flatnonzero(self.dataset_of == dataset)[0])
        source = self.sources[number]
        check_document(document, source.source.facts.num_sequences, self.paths[dataset])
        return int(source.read_lengths(np.array([document]))[0])

    def check(self, start: int, stop: int) -> None:
        """Raise PlanError if positions are outside the run."""
        if not 0 <= start < stop <= len(self):
            raise PlanError(
                f"positions must lie in [0, {len(self):,}), the samples of {self.split}, got "
                f"[{start:,}, {stop:,}); name some of these"
            )

    def find_draws(self, positions: Int64Array) -> Draws:
        """Return sources and places in them, by position; shape (positions,) each."""
        if self._state is not None:
            return find_draws(self._segments, self._pools, self._read_blend, positions)
        if not self.plans:
            return Draws(np.zeros_like(positions), positions)
        return Draws(*self._read_blend(0, positions))

    def find_epochs(self, draws: Draws) -> Int64Array:
        """Return the epoch of the first token of each sample."""
        sources, places = draws
        epochs = np.empty_like(places)
        for number in np.unique(sources).tolist():
            own, source = np.flatnonzero(sources == number), self.sources[number]
            epochs[own] = source.epochs_of(source.samples_at(places[own]))
        return epochs

    def find_touched(self, positions: Int64Array) -> Int64Array:
        """Return the indices of positions whose samples lack documents that were forgotten."""
        if self._forgetting is None:
            return np.empty(0, np.int64)
        return self._forgetting.find_touched(self.find_draws(positions), positions)

    def _read_blend(self, number: int, positions: Int64Array) -> list[Int64Array]:
        """Return datasets and sample numbers at positions of a blend."""
        plan, arrays = self.plans[number], self.open_blend(number)
        if plan.order == "scalable" and plan.shuffle == "keyed" and plan.stored == "minimal":
            return compute_draws(plan, positions)
        return [take(arrays.dataset_index, positions), take(arrays.dataset_sample_index, positions)]

    def read(self, positions: Int64Array) -> Samples:
        """Return the samples at positions, with the document spans that they consist of.

        Parameters
        ----------
        positions
            Shape (positions,), int64, each in ``[0, len(self))``.

        Raises
        ------
        VerificationError
            If an index does not match its dataset.
        """
        try:
            return self._read(positions)
        except IndexError as error:
            raise VerificationError(
                f"the indices of {self.split} in {self.config.index} must refer to samples and "
                f"documents that there are, got {error}; look for damage with `zindex verify`"
            ) from error

    def _read(self, positions: Int64Array) -> Samples:
        """Return the samples at positions; raise IndexError if an index is damaged."""
        sources, places = self.find_draws(positions)
        samples, epochs = np.empty_like(positions), np.empty_like(positions)
        parts = [SampleParts(*np.empty((4, 0), np.int64))]
        for number in np.unique(sources).tolist():
            own = np.flatnonzero(sources == number)
            source = self.sources[number]
            samples[own] = source.samples_at(places[own])
            epochs[own] = source.epochs_of(samples[own])
            found = source.parts_of(samples[own])
            parts.append(found._replace(owners=own[found.owners]))
        joined = SampleParts(*map(np.concatenate, zip(*parts, strict=True)))
        order = np.argsort(joined.owners, kind="stable")
        sorted_parts = SampleParts(*(column[order] for column in joined))
        datasets = self.dataset_of[sources].astype(np.int64)
        if self._forgetting is not None:
            owners, documents = sorted_parts[:2]
            is_out = self._forgetting.find_covered(datasets[owners], documents, positions[owners])
            sorted_parts = SampleParts(*(column[~is_out] for column in sorted_parts))
        return Samples(positions, sources, datasets, samples, epochs, sorted_parts)

    def find(self, dataset: int, document: int, start: int, stop: int) -> Samples:
        """Return the samples that contain the given tokens of a document, sorted by position.

        Parameters
        ----------
        dataset, document
            Index of the dataset in `paths`, and number of the document in it.
        start, stop
            Token range in the document, half-open, not empty.

        Returns
        -------
        samples
            Samples that list only their spans within the given tokens.
        """
        found = [np.empty(0, np.int64)]
        for number, source in enumerate(self.sources):
            if self.dataset_of[number] == dataset:
                places = source.find(np.array([document], np.int64), start, stop)
                found.append(self._find_positions(number, places))
        samples = self.read(np.unique(np.concatenate(found)))
        parts = samples.parts
        starts, stops = np.maximum(parts.starts, start), np.minimum(parts.stops, stop)
        kept = (parts.documents == document) & (starts < stops)
        rows, owners = np.unique(parts.owners[kept], return_inverse=True)
        inside = SampleParts(owners, parts.documents[kept], starts[kept], stops[kept])
        return Samples._make((*(column[rows] for column in samples[:5]), inside))

    def _find_positions(self, source: int, places: Int64Array) -> Int64Array:
        """Return the run positions of places in a source; inverse of `find_draws`."""
        if not self.plans:
            return places
        found = [np.empty(0, np.int64)]
        for number, plan in enumerate(self.plans):
            dataset, draws = source, places
            if self._state is not None:
                dataset, draws = self._pools[number].find_draws(source, places)
            if not draws.size:
                continue
            arrays, inverse = self.open_blend(number), self._inverses[number]
            own = invert_blend(plan, arrays, dataset, np.unique(draws), inverse)
            found.append(own if self._state is None else self._segments.invert(number, own))
        return np.concatenate(found)
