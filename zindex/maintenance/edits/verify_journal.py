"""Verify the edits of a run from its stores: scan the whole run and mark every sample."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.config import RunConfig, as_config
from zindex.errors import VerificationError
from zindex.kernels.bitset import WORD_BITS, digest_numbers, mark
from zindex.maintenance.edits.consumed import ConsumedSet, num_words, set_of_bits
from zindex.maintenance.edits.forget import digest_documents
from zindex.maintenance.edits.forgotten import Forgetting, OpenedRun
from zindex.maintenance.edits.journal import JournalEntry, RunJournal, open_journal
from zindex.maintenance.edits.replan import format_digest, locate_consumed, open_blend_scan
from zindex.plan.journal import ConsumedFacts, consumed_ranges


@dataclass(frozen=True, slots=True)
class JournalReport:
    """The result of a scan of an edited run."""

    split: str
    num_edits: int
    #: Positions of the run, and positions skipped by edits.
    num_samples: int
    num_skipped: int
    #: Sources of samples, and the number of their samples that the run does not draw.
    num_sources: int
    num_undrawn: int


def verify_journal(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    split: str = "train",
    client: Any = None,
) -> JournalReport:
    """Verify from its stores that an edited run neither repeats nor loses a sample.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    split
        The split of the run.
    client
        Where to build missing stores, as of ``zindex.build``.

    Returns
    -------
    report
        The number of positions and sources.

    Raises
    ------
    VerificationError
        If a sample has two positions, or a certificate or a stored set differs from the scan.

    Notes
    -----
    Law: every position of the whole run, and every skipped one, has its own sample (a bit each,
    none set twice); before every edit the scanned samples are the consumed ones in its stored sets,
    so all others remain; each entry is the child of the previous one. Every sample that holds a
    forgotten document is known to the edits, and none holds nothing else. The digests of the
    certificates, sums modulo 2**64 of mixed sample numbers, are computed here sample by sample, and
    by the edit from its sets. Memory: a bit per drawn sample of each source. Cost: one pass over
    the run.
    """
    journal = open_journal(as_config(config), split)
    state = journal.state
    walk = _Walk(journal)
    for number, facts in enumerate(state.blends):
        scan = open_blend_scan(journal, number, client)
        walk.check_room(number, scan.counts)
        ranges = consumed_ranges(state, number, state.num_samples)
        counts = [scan.mark_all(spans, partial(walk.mark, number)) for spans in ranges]
        if number + 1 < len(state.blends):
            entry = next(e for e in journal.entries if len(e.state.blends) == number + 2)
            _check_counts(entry, facts.datasets, *counts)
            walk.check_entry(entry, number, client)
    check_forgotten(journal, client)
    return walk.report()


def check_forgotten(journal: RunJournal, client: Any) -> None:
    """Check that edits name every sample with forgotten documents; VerificationError if not."""
    state = journal.state
    if not state.forgotten:
        return
    run = OpenedRun(journal, client)
    if run.find_touched(state.forgotten) != state.touched:
        raise VerificationError(
            "edits of the run must name all samples that hold forgotten documents, they name "
            "others; the journal or an index is damaged"
        )
    forgetting = Forgetting(state)
    emptied = run.find_emptied(forgetting, run.find_held(forgetting))
    if emptied.size:
        raise VerificationError(
            f"samples of forgotten documents alone must be left out of the run, {emptied.size} are "
            f"not, the first at position {emptied[0]:,}; the journal or an index is damaged"
        )
    num_known = 0
    for entry in journal.entries:
        own = entry.state.forgotten[num_known:]
        num_known = len(entry.state.forgotten)
        if entry.change.get("forget") and entry.certificate["documents_digest"] != (
            digest_documents(own)
        ):
            raise VerificationError(
                f"edit {entry.number} must certify the documents that it forgets, its digest is "
                "of others; the journal is damaged"
            )


def _check_counts(
    entry: JournalEntry, datasets: tuple[int, ...], consumed: Any, skipped: Any
) -> None:
    """Check a certificate's counts of the datasets of the blend before its edit."""
    rows = entry.certificate["datasets"]
    for dataset, *found in zip(datasets, consumed.tolist(), skipped.tolist(), strict=True):
        said = [rows[dataset]["consumed"], rows[dataset]["skipped"]]
        if said != found:
            raise VerificationError(
                f"edit {entry.number} must certify what was consumed and skipped of "
                f"{rows[dataset]['dataset']}, {found}, it certifies {said}; the journal or a blend "
                "is damaged"
            )


class _Walk:
    """The samples of all sources that were drawn so far, a bit each."""

    def __init__(self, journal: RunJournal) -> None:
        self.journal = journal
        self.state = journal.state
        # Zero pages take no memory before a bit in them is set.
        self.words = [
            np.zeros(num_words(source.num_samples), np.uint64) for source in self.state.sources
        ]
        self.digests = [0] * len(self.words)
        self.num_samples = 0
        self._pools = {number: journal.pools(number) for number in range(len(self.state.blends))}

    def check_room(self, blend: int, drawn: Int64Array) -> None:
        """Check that the sources of a blend have the samples that it draws of each dataset."""
        pools = self._pools[blend]
        for row, count in enumerate(drawn.tolist()):
            left = sum(int(pools.num_left[i]) for i in pools.rows_of(row))
            if count > left:
                raise VerificationError(
                    f"blend {blend} of the run must draw at most the {left:,} samples left of "
                    f"dataset {row}, it draws {count:,}; the journal or the blend is damaged"
                )

    def mark(self, blend: int, datasets: Any, numbers: Any) -> None:
        """Mark samples: each must be new."""
        found = self._pools[blend].find(datasets, numbers)
        for source in np.unique(found.sources).tolist():
            samples = found.samples[found.sources == source]
            zeros, fresh = np.zeros(len(samples), np.int64), 0
            if int(samples.max()) < self.state.sources[source].num_samples:
                fresh = mark(zeros, samples, zeros[:1], self.words[source])
            if fresh != len(samples):
                raise VerificationError(
                    f"every position of the run must have a sample of its own, of source {source} "
                    f"{len(samples) - fresh} come twice; the journal or a blend is damaged"
                )
            self.digests[source] += digest_numbers(samples, source)
        self.num_samples += len(found.samples)

    def check_entry(self, entry: JournalEntry, blend: int, client: Any) -> None:
        """Check that an edit is based on the samples that were drawn before it."""
        before, after = self.state.blends[blend], self.state.blends[blend + 1]
        proofs = {row["source"]: row for row in entry.certificate["sources"]}
        cut = {item.source: item for item in after.cut}
        consumed = {item.source: item for item in after.consumed}
        cut_table = self.journal.cut_table(blend + 1)
        consumed_table = self.journal.consumed_table(blend + 1)
        for item in before.consumed:
            source, words = item.source, self.words[item.source]
            walked = set_of_bits(words, len(words) * WORD_BITS)
            said = proofs[source]
            digest = format_digest(self.digests[source])
            if (said["num_used"], said["used_digest"]) != (walked.num_consumed, digest):
                raise VerificationError(
                    f"edit {entry.number} must certify the {walked.num_consumed:,} used samples of "
                    f"source {source} ({digest}), it certifies {said['num_used']:,} "
                    f"({said['used_digest']}); the journal or a blend is damaged"
                )
            if source in consumed:
                self._check_same(entry, walked, consumed_table.load(source), consumed[source])
            elif source in cut:
                ids, _ = locate_consumed(self.journal, source, walked, client)
                self._check_same(entry, ids, cut_table.load(source), cut[source])

    def _check_same(
        self, entry: JournalEntry, walked: ConsumedSet, stored: ConsumedSet, facts: ConsumedFacts
    ) -> None:
        """Check that a stored set equals the scanned one."""
        same = walked.facts(facts.source) == facts and np.array_equal(
            walked.words[: num_words(walked.num_bits)], stored.words[: num_words(stored.num_bits)]
        )
        if not same:
            raise VerificationError(
                f"edit {entry.number} must go by the samples of source {facts.source} that were "
                "used before it, its stored set is another; the store is damaged"
            )

    def report(self) -> JournalReport:
        """Return the result of the scan."""
        state = self.state
        num_skipped = sum(stop - start for _, start, stop in state.skipped)
        total = sum(item.num_samples for item in state.sources)
        return JournalReport(
            split=self.journal.split,
            num_edits=len(self.journal.entries),
            num_samples=self.num_samples - num_skipped,
            num_skipped=num_skipped,
            num_sources=len(state.sources),
            num_undrawn=total - self.num_samples,
        )
