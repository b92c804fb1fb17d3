"""The journal of a run's edits: a chain of small files in the index folder.

::

    INDEX/journal-train-<fingerprint of the run>/000001.json

A file is written once, atomically. It contains the edit, its position, the fingerprint of the run
before it, the state of the run after it, and the certificate. Its own fingerprint is the hash of
all this, and becomes the fingerprint of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from zindex.config import RunConfig
from zindex.errors import (
    FingerprintMismatchError,
    PlanError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.indexing import run_plan
from zindex.indexing.open_sources import read_notes
from zindex.indexing.store_build import find_index
from zindex.ingest.length_source import LengthSource, open_source
from zindex.io import files
from zindex.io.objects import Place, place_of
from zindex.maintenance.edits.consumed import ConsumedTable, open_table
from zindex.maintenance.edits.draws import PoolTable
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.journal import (
    EDIT_VERSION,
    BlendFacts,
    Change,
    ConsumedFacts,
    RunState,
    Source,
)
from zindex.plan.packing import PackingPlan
from zindex.plan.segments import Segment
from zindex.plan.split import SPLIT_NAMES, split_range
from zindex.store.checked_json import parse_as
from zindex.store.commit import fingerprint, read_sealed, seal
from zindex.text.kept_tokenizer import check_blend

#: Name prefix of the folders of journals in the index folder.
JOURNAL_PREFIX = "journal-"

_SUFFIX = ".json"
_FORMAT_VERSION = 1
# Facts of an entry and their types.
_ENTRY_KINDS = {"number": int, "position": int, "before": str, "change": dict, "certificate": dict}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One committed edit of a run."""

    number: int
    position: int
    change: dict[str, Any]
    #: Fingerprint of the run before the edit.
    before: str
    #: Fingerprint of the run with the edit.
    fingerprint: str
    #: Samples consumed, skipped, remaining and drawn for each dataset; see `zindex.edit`.
    certificate: dict[str, Any]
    #: The run with the edit.
    state: RunState


@dataclass(frozen=True)
class RunJournal:
    """One split of a run, with its edits."""

    config: RunConfig
    split: str
    plan: run_plan.RunPlan
    #: The blend as the run's file describes it.
    blend: run_plan.PlannedBlend
    entries: tuple[JournalEntry, ...] = ()

    @cached_property
    def members(self) -> tuple[run_plan.PlannedIndex[Any], ...]:
        """The indices that the run's own blend draws from."""
        by_path = {
            item.dataset: item for item in self.plan.members if item.plan.split == self.split
        }
        return tuple(by_path[path] for path in self.blend.datasets)

    @cached_property
    def base_fingerprint(self) -> str:
        """Fingerprint of the run without edits: of its blend and indices, without paths."""
        return fingerprint(
            {
                "kind": "run",
                "blend": self.blend.plan.spec,
                "indices": [fingerprint(item.plan.spec) for item in self.members],
            }
        )

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the run with its edits."""
        return self.entries[-1].fingerprint if self.entries else self.base_fingerprint

    @property
    def last_position(self) -> int:
        """Position of the last edit; 0 without any."""
        return self.entries[-1].position if self.entries else 0

    @cached_property
    def base_state(self) -> RunState:
        """The run without edits."""
        sizes = self.blend.sizes
        weights = self.blend.plan.weights.tolist()
        if self.config.share_kind == "weight":
            given = {item.path: item.share for item in self.config.members}
            weights = [given[path] for path in self.blend.datasets]
        members = range(len(self.members))
        blend = BlendFacts(
            datasets=tuple(members),
            weights=sizes.weights,
            sizes=sizes.sizes,
            num_samples=self.blend.plan.num_samples,
            seed=self.config.seed,
            consumed=tuple(ConsumedFacts(d, 0, 0, 0) for d in members),
        )
        return RunState(
            datasets=self.blend.datasets,
            weights=tuple(weights),
            consumed_tokens=(0,) * len(members),
            sequence_length=self.config.sequence_length,
            sources=tuple(
                Source(
                    dataset=d,
                    num_requested=item.num_requested,
                    num_samples=self._count_samples(item.plan),
                    sequence_length=self.config.sequence_length,
                    seed=self.config.seed,
                    index=fingerprint(item.plan.spec),
                )
                for d, item in enumerate(self.members)
            ),
            blends=(blend,),
            segments=(Segment(0, blend.num_samples, 0, 0),),
        )

    def _count_samples(self, plan: Any) -> int:
        """Return the samples of an index; those of a packed one are known once it is built."""
        if not isinstance(plan, PackingPlan):
            return int(plan.num_samples)
        store = find_index(plan.store_plan(self.config.index))
        if store is None:
            raise StoreNotFoundError(
                f"a packed run must be built to be edited, an index of {self.split} is not in "
                f"{self.config.index}; run `zindex build` first"
            )
        return int(store.attributes["num_samples"])

    @property
    def state(self) -> RunState:
        """The run with its edits."""
        return self.entries[-1].state if self.entries else self.base_state

    def proposing(self, state: RunState) -> "RunJournal":
        """Return the journal as if its next edit, not committed yet, led to a state."""
        number, before = len(self.entries) + 1, self.fingerprint
        entry = JournalEntry(number, self.last_position, {}, before, "", {}, state)
        return replace(self, entries=(*self.entries, entry))

    @property
    def folder(self) -> Place:
        """Directory of the journal."""
        name = f"{JOURNAL_PREFIX}{self.split}-{self.base_fingerprint[:32]}"
        return place_of(self.config.index) / name

    def consumed_table(self, blend: int) -> ConsumedTable:
        """Return the samples that were consumed before a blend."""
        facts = self.state.blends[blend]
        return open_table(facts.consumed, self.config.index, None if facts.cut else facts.store)

    def cut_table(self, blend: int) -> ConsumedTable:
        """Return the consumed samples, among those whose tokens were split again for a blend."""
        facts = self.state.blends[blend]
        return open_table(facts.cut, self.config.index, facts.store if facts.cut else None)

    def pools(self, blend: int) -> PoolTable:
        """Return the mapping from the draws of a blend to samples."""
        return PoolTable(self.state, blend, self.consumed_table(blend))

    def blend_plan(self, facts: BlendFacts, number: int) -> BlendPlan:
        """Return the plan of a blend of the run by its number."""
        if number == 0:
            return self.blend.plan
        return run_plan.plan_blend(self.config, self.split, facts, facts.seed)

    @cached_property
    def _opened(self) -> dict[str, LengthSource]:
        return {item.dataset: item.source for item in self.members}

    def open_split(self, path: str) -> tuple[LengthSource, tuple[int, int]]:
        """Return the lengths of a dataset, opened once, and the documents of the split in it."""
        if path not in self._opened:
            opened = open_source(path)
            check_blend(read_notes([*self._opened.values(), opened]))
            self._opened[path] = opened
        lengths = self._opened[path]
        bookends = self.config.split_matrix[SPLIT_NAMES.index(self.split)]
        return lengths, split_range(lengths.facts.num_sequences, bookends)

    def plan_index(self, path: str, source: Source) -> run_plan.PlannedIndex[Any]:
        """Return the plan of a source's index, from the dataset in its current state.

        Raises
        ------
        PlanError
            If the dataset has no tokens in the split.
        """
        if source.blend == 0 and path in self.blend.datasets:
            return self.members[self.blend.datasets.index(path)]
        config = replace(self.config, seed=source.seed, sequence_length=source.sequence_length)
        lengths, span = self.open_split(path)
        item = run_plan.plan_split(config, path, lengths, self.split, span, source.num_requested)
        assert item is not None
        return item

    def index_of(self, number: int) -> run_plan.PlannedIndex[Any]:
        """Return the plan of the index of a source of the run.

        Raises
        ------
        FingerprintMismatchError
            If the dataset differs from the one that the edit added.
        """
        source = self.state.sources[number]
        path = self.state.datasets[source.dataset]
        item = self.plan_index(path, source)
        found = fingerprint(item.plan.spec)
        if found != source.index:
            raise FingerprintMismatchError(
                f"{path} must have the index {str(source.index)[:16]} with which an edit added it "
                f"to the run, it has {found[:16]}: its documents differ; bring the old ones back"
            )
        return item


def open_journal(
    config: RunConfig, split: str = "train", *, plan: run_plan.RunPlan | None = None
) -> RunJournal:
    """Return one split of a run with its edits.

    Parameters
    ----------
    config, split
        The run.
    plan
        The plan of the run, if it is known.

    Raises
    ------
    PlanError
        If the split has no blend.
    VerificationError
        If the journal is damaged.
    FingerprintMismatchError
        If it belongs to another run.
    """
    plan = plan or run_plan.plan_run(config)
    blend = next((item for item in plan.blends if item.split == split), None)
    if blend is None:
        raise PlanError(
            f"a run must have a blend of {split} to be edited, got none; give its datasets weights "
            "(a single one too), tokens or epochs"
        )
    journal = RunJournal(config, split, plan, blend)
    names = files.list_names(journal.folder)
    numbers = sorted(int(name.removesuffix(_SUFFIX)) for name in names if _is_entry(name))
    if numbers != list(range(1, len(numbers) + 1)):
        raise VerificationError(
            f"{journal.folder} must hold the edits 1 to {len(numbers)}, it holds {numbers}; bring "
            "back what is missing"
        )
    for number in numbers:
        entry = _read_entry(journal, number)
        journal = replace(journal, entries=(*journal.entries, entry))
    return journal


def find_journals(config: RunConfig, plan: run_plan.RunPlan) -> dict[str, RunJournal]:
    """Return the journals of a run's edited splits."""
    journals = {item.split: open_journal(config, item.split, plan=plan) for item in plan.blends}
    return {split: journal for split, journal in journals.items() if journal.entries}


def _is_entry(name: str) -> bool:
    return name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()


def _entry_path(journal: RunJournal, number: int) -> Place:
    return journal.folder / f"{number:06d}{_SUFFIX}"


def _read_entry(journal: RunJournal, number: int) -> JournalEntry:
    """Return one entry after checking its digest and its link to the previous entry."""
    path = _entry_path(journal, number)
    try:
        content = read_sealed(
            path,
            "fingerprint",
            "bring the file back as it was written, for the run after this edit is not known "
            "without it",
        )
    except (StoreNotFoundError, StoreError) as error:
        raise VerificationError(f"{path} must hold an edit: {error}") from error
    versions = content.get("format_version"), content.get("algorithm_version")
    if versions != (_FORMAT_VERSION, EDIT_VERSION):
        raise StoreError(f"{path} was written by another version of zindex; update zindex")
    fields = {
        name: parse_as(kind, content.get(name), f"{path} as {name}")
        for name, kind in _ENTRY_KINDS.items()
    }
    if content["before"] != journal.fingerprint or content["number"] != number:
        raise FingerprintMismatchError(
            f"{path} must be an edit of the run {journal.fingerprint[:16]}, it is edit "
            f"{content['number']} of {content['before'][:16]}; put it back where it was made"
        )
    state = RunState.from_json(content.get("state"), journal.blend.datasets)
    return JournalEntry(**fields, fingerprint=fingerprint(content), state=state)


def append_entry(
    journal: RunJournal,
    position: int,
    change: Change,
    state: RunState,
    certificate: Mapping[str, Any],
) -> JournalEntry:
    """Commit an edit: every process that opens the run from now on sees it.

    Raises
    ------
    FingerprintMismatchError
        If another process edited the run meanwhile.
    """
    number = len(journal.entries) + 1
    content = {
        "format_version": _FORMAT_VERSION,
        "algorithm_version": EDIT_VERSION,
        "number": number,
        "position": position,
        "change": change.to_json(),
        "before": journal.fingerprint,
        "state": state.to_json(len(journal.blend.datasets)),
        "certificate": certificate,
    }
    path = _entry_path(journal, number)
    files.make_folder(journal.folder)
    if not files.write_once(path, [seal(content, "fingerprint")]):
        raise FingerprintMismatchError(
            f"edit {number} of the run must be made by one process, {path} was written meanwhile; "
            "look at that edit, and make yours after it if it is still wanted"
        )
    files.sync_directory(journal.folder)
    return _read_entry(journal, number)
