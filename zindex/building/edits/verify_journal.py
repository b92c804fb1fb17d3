"""Proof of a run's edits from its stores alone: the run is walked, and every sample marked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.blend_arrays import open_blend_arrays
from zindex.building.edits.blend_scan import BlendScan
from zindex.building.edits.edited import Draws
from zindex.building.edits.journal import JournalEntry, RunJournal, open_journal
from zindex.building.edits.replan import build_needed, format_digest, used_ids
from zindex.building.edits.used import UsedSet, num_words, set_of_bits
from zindex.building.on_demand import needed_blend
from zindex.config import RunConfig, as_config
from zindex.errors import VerificationError
from zindex.kernels.bitset import digest_numbers, mark
from zindex.plan.journal import UsedFacts, used_ranges

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class JournalReport:
    """What a walk over an edited run has shown."""

    split: str
    num_edits: int
    #: Positions of the run that were walked, and positions that edits left out.
    num_samples: int
    num_skipped: int
    #: Sources that samples come from, and samples of all of them that the run does not draw.
    num_sources: int
    num_undrawn: int


def verify_journal(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    split: str = "train",
    client: Any = None,
) -> JournalReport:
    """Prove that an edited run repeats nothing and loses nothing, from what is stored.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    split
        The split of the run.
    client
        Where to build what is gone, as of ``zindex.build``.

    Returns
    -------
    report
        How much was walked.

    Raises
    ------
    VerificationError
        If a sample stands at two positions, or a certificate or a stored set is not what the walk
        finds.

    Notes
    -----
    What is proven, exactly: every position of the whole run, and every one that was left out, has a
    sample of its own (a bit each, none found set before); before every edit the walked samples are
    the used ones that the edit went by, so what it left is all the rest; each entry is the child of
    the one before. Digests of the certificates, sums modulo 2**64 of mixed sample numbers, are
    computed here sample by sample, and by the edit from its sets. Memory: a bit per sample up to
    the last one drawn of each source. Cost: one pass over the run.
    """
    journal = open_journal(as_config(config), split)
    state = journal.state
    walk = _Walk(journal)
    for number, facts in enumerate(state.blends):
        plan = journal.blend_plan(facts, number)
        [store] = build_needed([needed_blend(plan, journal.config.index)], client)
        scan = BlendScan(open_blend_arrays(store))
        drawn = store[schema.DATASET_COUNT.name][:]
        walk.check_room(number, drawn)
        consumed, skipped = used_ranges(state, number, state.num_samples)
        counts = []
        for ranges in (consumed, skipped):
            total = np.zeros(len(facts.datasets), np.int64)
            for datasets, draws in scan.blocks(ranges):
                total += scan.mark(datasets, draws)
                walk.mark(number, datasets, draws)
            counts.append(total)
        if number + 1 < len(state.blends):
            entry = next(e for e in journal.entries if len(e.state.blends) == number + 2)
            _check_counts(entry, facts.datasets, *counts)
            walk.check_entry(entry, number, client)
    return walk.report()


def _check_counts(
    entry: JournalEntry, datasets: tuple[int, ...], consumed: Any, skipped: Any
) -> None:
    """Check what a certificate says of the datasets of the blend before its edit."""
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
    """Samples of all sources that the walk has met so far, a bit each."""

    def __init__(self, journal: RunJournal) -> None:
        self.journal = journal
        self.state = journal.state
        self.words: dict[int, Words] = {}
        self.digests: dict[int, int] = {}
        self.num_samples = 0
        self._pools = {number: journal.pools(number) for number in range(len(self.state.blends))}

    def check_room(self, blend: int, drawn: npt.NDArray[np.int64]) -> None:
        """Check that the sources of a blend hold what it draws of each dataset."""
        pools = self._pools[blend]
        for row, count in enumerate(drawn.tolist()):
            left = sum(int(pools.num_left[i]) for i in pools.rows_of(row))
            if count > left:
                raise VerificationError(
                    f"blend {blend} of the run must draw at most the {left:,} samples that are "
                    f"left of dataset {row}, it draws {count:,}; the journal or the blend is "
                    "damaged"
                )

    def mark(self, blend: int, datasets: Any, numbers: Any) -> None:
        """Mark samples: each must be new."""
        found: Draws = self._pools[blend].find(datasets, numbers)
        for source in np.unique(found.sources).tolist():
            samples = found.samples[found.sources == source]
            num_samples = self.state.sources[source].num_samples
            words = self._grow(source, min(int(samples.max()) + 1, num_samples))
            zeros = np.zeros(len(samples), np.int64)
            fresh = mark(zeros, samples, np.zeros(1, np.int64), words)
            if fresh != len(samples) or int(samples.max()) >= num_samples:
                raise VerificationError(
                    f"every position of the run must have a sample of its own, of source {source} "
                    f"{len(samples) - fresh} come twice; the journal or a blend is damaged"
                )
            self.digests[source] = (
                self.digests.get(source, 0) + digest_numbers(samples, source)
            ) % 2**64
        self.num_samples += len(found.samples)

    def _grow(self, source: int, num_bits: int) -> Words:
        """Return the bits of a source, at least so many."""
        words = self.words.get(source, np.zeros(0, np.uint64))
        wanted = num_words(num_bits)
        if wanted > len(words):
            # By a quarter more, so that all copies together cost little.
            room = min(
                max(wanted, len(words) * 5 // 4),
                num_words(self.state.sources[source].num_samples),
            )
            words = np.concatenate([words, np.zeros(room - len(words), np.uint64)])
            self.words[source] = words
        return words

    def _walked(self, source: int) -> UsedSet:
        words = self.words.get(source, np.zeros(0, np.uint64))
        return set_of_bits(words, len(words) * 64)

    def check_entry(self, entry: JournalEntry, blend: int, client: Any) -> None:
        """Check that an edit went by the samples that the walk has met."""
        before, after = self.state.blends[blend], self.state.blends[blend + 1]
        proofs = {row["source"]: row for row in entry.certificate["sources"]}
        cut = {item.source: item for item in after.cut}
        used = {item.source: item for item in after.used}
        cut_table, used_table = (
            self.journal.cut_table(blend + 1),
            self.journal.used_table(blend + 1),
        )
        for item in before.used:
            source, walked = item.source, self._walked(item.source)
            said = proofs[source]
            digest = format_digest(self.digests.get(source, 0))
            if (said["num_used"], said["used_digest"]) != (walked.num_used, digest):
                raise VerificationError(
                    f"edit {entry.number} must certify the {walked.num_used:,} used samples of "
                    f"source {source} ({digest}), it certifies {said['num_used']:,} "
                    f"({said['used_digest']}); the journal or a blend is damaged"
                )
            if source in used:
                self._check_same(entry, walked, used_table.load(source), used[source])
            elif source in cut:
                ids, _ = used_ids(self.journal, source, walked, client)
                self._check_same(entry, ids, cut_table.load(source), cut[source])

    def _check_same(
        self, entry: JournalEntry, walked: UsedSet, stored: UsedSet, facts: UsedFacts
    ) -> None:
        """Check that a stored set is the one that was found."""
        same = walked.facts(facts.source) == facts and np.array_equal(
            walked.words[: num_words(walked.num_bits)], stored.words[: num_words(stored.num_bits)]
        )
        if not same:
            raise VerificationError(
                f"edit {entry.number} must go by the samples of source {facts.source} that were "
                "used before it, its stored set is another; the store is damaged"
            )

    def report(self) -> JournalReport:
        """Return what was shown."""
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
