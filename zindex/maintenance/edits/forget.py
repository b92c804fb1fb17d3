"""Forget documents from a position of a run on: an edit, planned and then committed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import PlanError
from zindex.maintenance.edits.forgotten import HeldSamples, Settled, settle
from zindex.maintenance.edits.journal import JournalEntry, RunJournal, append_entry
from zindex.plan.journal import Change, Forgotten, check_position
from zindex.store.commit import fingerprint


@dataclass(frozen=True, slots=True)
class PlannedForget:
    """Documents to forget, and the run without them; nothing is committed yet."""

    journal: RunJournal
    position: int
    #: The documents that were not forgotten before, by dataset.
    forgotten: tuple[Forgotten, ...]
    settled: Settled

    @property
    def digest(self) -> str:
        """The SHA-256, in hex, of the datasets' numbers and the documents."""
        return digest_documents(self.forgotten)

    @property
    def seen(self) -> HeldSamples:
        """Samples before the position that hold the documents."""
        return self._select(self.settled.held.positions < self.position)

    @property
    def later(self) -> HeldSamples:
        """Samples from the position on that held the documents before the edit."""
        return self._select(self.settled.held.positions >= self.position)

    def _select(self, rows: Any) -> HeldSamples:
        return HeldSamples(*(column[rows] for column in self.settled.held))

    @property
    def changed(self) -> Int64Array:
        """Positions, before the edit, of samples that remain without the documents."""
        return np.setdiff1d(self.later.positions, self.settled.emptied)

    def certify(self) -> dict[str, Any]:
        """Return the certificate of the edit."""
        state = self.journal.state
        counts = {item.dataset: len(item.documents) for item in self.forgotten}
        sources = np.array([source.dataset for source in state.sources])
        rows: list[dict[str, Any]] = []
        for dataset, path in enumerate(state.datasets):
            row = {"dataset": path, "forgotten": counts.get(dataset, 0)}
            for name, held in (("seen", self.seen), ("changed", self.later)):
                row[name] = int(np.count_nonzero(sources[held.sources] == dataset))
            rows.append(row)
        return {
            "datasets": rows,
            "documents_digest": self.digest,
            "num_seen": len(self.seen.positions),
            "num_changed": len(self.later.positions),
            "changed": self.changed.tolist(),
            "emptied": list(self.settled.emptied),
            "moved": [[new, old] for new, old in self.settled.moved.items()],
            "num_samples": self.settled.state.num_samples,
        }

    def commit(self) -> JournalEntry:
        """Append the edit to the journal."""
        counts = {item.dataset: len(item.documents) for item in self.forgotten}
        change = Change(reweight={}, add={}, forget=counts)
        return append_entry(self.journal, self.position, change, self.settled.state, self.certify())


def digest_documents(forgotten: tuple[Forgotten, ...]) -> str:
    """Return the SHA-256, in hex, of the datasets' numbers and the documents."""
    return fingerprint({"forget": [[item.dataset, list(item.documents)] for item in forgotten]})


def plan_forget(
    journal: RunJournal, documents: Mapping[int, Int64Array], position: int, client: Any = None
) -> PlannedForget | None:
    """Return the edit that forgets documents from a position on; None if all are already forgotten.

    Parameters
    ----------
    journal
        The run.
    documents
        Documents by the number of their dataset in the run; those already forgotten are omitted.
    position
        Number of samples consumed so far.
    client
        Where to build missing indices of a large run.

    Raises
    ------
    PlanError
        If the position is outside the run or before its last edit, or no sample would be left.
    """
    state = journal.state
    check_position(state, position, last=journal.last_position)
    known = {(item.dataset, each) for item in state.forgotten for each in item.documents}
    forgotten = []
    for dataset in sorted(documents):
        fresh = [n for n in np.unique(documents[dataset]).tolist() if (dataset, n) not in known]
        if fresh:
            forgotten.append(Forgotten(dataset, position, tuple(fresh)))
    if not forgotten:
        return None
    settled = settle(journal, state, forgotten, position, client)
    if not settled.state.num_samples:
        raise PlanError(
            "a run must have samples without the documents to forget, it has no other; begin "
            "another run"
        )
    return PlannedForget(journal, position, tuple(forgotten), settled)
