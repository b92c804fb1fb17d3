"""Plan the rest of an edited run: its next blend, and the sources that it draws from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import Int64Array
from zindex.errors import PlanError
from zindex.execution.executor import open_executor, run_builds, run_together
from zindex.indexing.blend_arrays import open_blend_arrays
from zindex.indexing.ensure import BuildRequest
from zindex.indexing.index_arrays import open_index_arrays
from zindex.kernels.bitset import WORD_BITS, digest_set, mark_images
from zindex.maintenance.edits.consumed import ConsumedSet, num_words, set_of_bits, store_sets
from zindex.maintenance.edits.draws import BLOCK, BlendScan, blocks_of, shuffle_cut
from zindex.maintenance.edits.journal import RunJournal
from zindex.plan.journal import (
    BlendFacts,
    Change,
    RunState,
    Source,
    cut_windows,
    plan_next,
)
from zindex.plan.keys import edit_seed
from zindex.plan.segments import Segment
from zindex.store.commit import fingerprint
from zindex.store.open import Store


def build_stores(requests: Sequence[BuildRequest], client: Any = None) -> list[Store]:
    """Return committed stores, building together those that are missing."""
    with open_executor(client) as executor:
        results = run_builds(run_together(request.build(executor) for request in requests))
    return [result.store for result in results]


def open_blend_scan(journal: RunJournal, blend: int, client: Any = None) -> BlendScan:
    """Return a scan of a blend of a run, building the blend if it is missing."""
    plan = journal.blend_plan(journal.state.blends[blend], blend)
    [store] = build_stores([BuildRequest(plan, journal.config.index)], client)
    return BlendScan(open_blend_arrays(store))


class Replan:
    """The new plan of one edit.

    Parameters
    ----------
    journal
        The run before the edit.
    change, position
        The edit.
    client
        Where to build, as of ``zindex.build``.
    """

    def __init__(self, journal: RunJournal, change: Change, position: int, client: Any) -> None:
        self.journal, self.change, self.position, self.client = journal, change, position, client
        self.folder = journal.config.index
        #: Number of the new blend.
        self.blend = len(journal.state.blends)
        self.seed = edit_seed(journal.config.seed, journal.split, len(journal.entries) + 1)

    def run(
        self, state: RunState, scan: BlendScan, planned: list[int], rows: list[dict[str, Any]]
    ) -> tuple[RunState, list[dict[str, Any]]]:
        """Return the run with its new blend, and the certificate's rows of its sources.

        Parameters
        ----------
        state
            The run before the edit, without the positions that it skips.
        scan, planned
            The last blend, with all its consumed draws marked, and the samples that it would still
            draw of each dataset.
        rows
            The certificate's rows of datasets, with what the last blend consumed; extended.
        """
        old_length = state.sequence_length
        consumed = self._fold(scan)
        proof = [_prove(number, state.sources[number], item) for number, item in consumed.items()]
        spent = zip(state.consumed_tokens, rows, strict=True)
        tokens = tuple(old + row["consumed"] * old_length for old, row in spent)
        state = replace(state, consumed_tokens=tokens)
        state, coming = plan_next(state, self.change, self.position, planned, seed=self.seed)
        self._check_epochs(state, coming)
        cut: dict[int, ConsumedSet] = {}
        if state.sequence_length != old_length:
            state, cut, consumed = self._split_again(state, consumed, old_length)
        plan = self.journal.blend_plan(coming, self.blend)
        [store] = build_stores([BuildRequest(plan, self.folder)], self.client)
        drawn = np.zeros(len(state.datasets), np.int64)
        drawn[np.array(coming.datasets)] = store[schema.DATASET_COUNT.name][:]
        first = len(state.sources)
        state = self._extend(state, consumed, drawn, rows)
        consumed |= {number: ConsumedSet() for number in range(first, len(state.sources))}
        facts = replace(
            coming,
            consumed=tuple(item.facts(source) for source, item in consumed.items()),
            cut=tuple(item.facts(source) for source, item in cut.items()),
            store=self._store([*(cut or consumed).values()]),
        )
        segment = Segment(self.position, self.position + coming.num_samples, self.blend, 0)
        blends, segments = (*state.blends, facts), (*state.segments, segment)
        return replace(state, blends=blends, segments=segments), proof

    def _fold(self, scan: BlendScan) -> dict[int, ConsumedSet]:
        """Return the consumed samples of every source, with the marked draws of the last blend."""
        last, sources = self.blend - 1, self.journal.state.sources
        facts = self.journal.state.blends[last]
        table = self.journal.consumed_table(last)
        rows = {dataset: row for row, dataset in enumerate(facts.datasets)}
        bits = {dataset: int(scan.starts[row]) * WORD_BITS for dataset, row in rows.items()}
        left = {dataset: int(scan.counts[row]) for dataset, row in rows.items()}
        consumed = {}
        for item in facts.consumed:
            found = table.load(item.source)
            dataset = sources[item.source].dataset
            num = min(left.get(dataset, 0), sources[item.source].num_samples - item.num_consumed)
            if num:
                found = found.add_draws(scan.words, bits[dataset], num)
                bits[dataset] += num
                left[dataset] -= num
            consumed[item.source] = found
        return consumed

    def _split_again(
        self, state: RunState, consumed: Mapping[int, ConsumedSet], old_length: int
    ) -> tuple[RunState, dict[int, ConsumedSet], dict[int, ConsumedSet]]:
        """Return the run with its remaining tokens split into samples of another length.

        Returns
        -------
        state
            With a new source for each one that has enough samples left.
        cut
            By old source, the consumed samples of its index.
        consumed
            By new source: empty sets.
        """
        cut, fresh = {}, []
        for number, item in consumed.items():
            ids, bounds = locate_consumed(self.journal, number, item, self.client)
            windows = cut_windows(
                [ids.count_left_below(bound) for bound in bounds], old_length, state.sequence_length
            )
            if not windows:
                continue
            cut[number] = ids
            source = Source(
                dataset=state.sources[number].dataset,
                num_requested=None,
                num_samples=windows[-1],
                sequence_length=state.sequence_length,
                seed=self.seed,
                parent=number,
                blend=self.blend,
                windows=windows,
            )
            fresh.append(source)
        first = len(state.sources)
        state = replace(state, sources=(*state.sources, *fresh))
        return state, cut, {first + n: ConsumedSet() for n in range(len(fresh))}

    def _extend(
        self,
        state: RunState,
        consumed: Mapping[int, ConsumedSet],
        drawn: Int64Array,
        rows: list[dict[str, Any]],
    ) -> RunState:
        """Return the run with another index for each dataset whose remaining sources fall short."""
        left = np.zeros(len(state.datasets), np.int64)
        for number, item in consumed.items():
            source = state.sources[number]
            left[source.dataset] += source.num_samples - item.num_consumed
        added = state.datasets[len(rows) :]
        rows += [{"dataset": path, "consumed": 0, "skipped": 0} for path in added]
        known = {source.dataset for source in state.sources}
        fresh, requests = [], []
        for dataset, row in enumerate(rows):
            row |= {"left": int(left[dataset]), "drawn": int(drawn[dataset])}
            short = int(drawn[dataset] - left[dataset])
            if short <= 0:
                continue
            source = Source(
                dataset=dataset,
                num_requested=short,
                num_samples=0,
                sequence_length=state.sequence_length,
                # Another pass over a dataset has another order.
                seed=self.seed if dataset in known else self.journal.config.seed,
                blend=self.blend,
            )
            planned = self.journal.plan_index(state.datasets[dataset], source)
            plan = planned.plan
            index = fingerprint(plan.spec)
            fresh.append(replace(source, num_samples=plan.num_samples, index=index))
            requests.append(BuildRequest(plan, self.folder, planned.source))
            row["added"] = plan.num_samples
        build_stores(requests, self.client)
        return replace(state, sources=(*state.sources, *fresh))

    def _store(self, sets: Sequence[ConsumedSet]) -> str | None:
        """Store the bits of sets and return the name of their store; None without bits."""
        if not any(item.num_bits for item in sets):
            return None
        spec = {
            "before": self.journal.fingerprint,
            "position": self.position,
            "change": self.change.to_json(),
        }
        return store_sets(spec, sets, self.journal.config.grid, self.folder, self.journal.split)

    def _check_epochs(self, state: RunState, coming: BlendFacts) -> None:
        """Check that no dataset exceeds its limit of epochs."""
        config = self.journal.config
        if self.journal.split != "train" or coming.weights is None:
            return
        limits = {item.path: item.max_epochs or config.max_epochs for item in config.members}
        assert config.blend_request is not None
        length = state.sequence_length
        request = replace(config.blend_request, sequence_length=length)
        total = sum(coming.weights)
        for dataset, weight in zip(coming.datasets, coming.weights, strict=True):
            path = state.datasets[dataset]
            limit = limits.get(path, config.max_epochs)
            if limit is None:
                continue
            lengths, span = self.journal.open_split(path)
            most = request.count_samples(limit, lengths.count_tokens(*span))
            most = max(0, most - -(-state.consumed_tokens[dataset] // length))
            # A weighted count is known to within one sample, so rounding down allows that one.
            count = int(weight / total * coming.num_samples)
            if count > most:
                raise PlanError(
                    f"the edit needs {count:,} samples of train from '{path}' but of its "
                    f"{limit:g} epochs {most:,} are left; raise max_epochs or lower its weight"
                )


def locate_consumed(
    journal: RunJournal, number: int, consumed: ConsumedSet, client: Any = None
) -> tuple[ConsumedSet, Sequence[int]]:
    """Return the consumed samples of a source by their order in the token stream.

    Parameters
    ----------
    journal, number
        The run, and the source in it.
    consumed
        The consumed positions.
    client
        Where to build a missing index.

    Returns
    -------
    ids
        The set.
    bounds
        Ends of the spans of samples that are shuffled separately.

    Raises
    ------
    PlanError
        If the last sample of the source is not full.
    """
    source = journal.state.sources[number]
    words = np.zeros(num_words(source.num_samples), np.uint64)
    bounds: Sequence[int] = source.windows
    shuffle: Any = None
    if source.parent is None:
        item = journal.index_of(number)
        plan = item.plan
        if plan.num_samples != plan.num_full_samples:
            raise PlanError(
                f"samples must be full to be cut again, the last one of {journal.split} of "
                f"{item.dataset} is not; set drop_last_partial_validation_sequence"
            )
        request = BuildRequest(plan, journal.config.index, item.source)
        shuffle = open_index_arrays(build_stores([request], client)[0]).shuffle_index
        bounds = [plan.num_samples]
        if plan.order == "scalable":
            bounds = [plan.samples_of_epoch(e)[1] for e in range(plan.epochs.num_epochs)]
    for start, stop in blocks_of([(0, consumed.stop)], BLOCK):
        if shuffle is None:
            images: Any = shuffle_cut(source, number, journal.split, np.arange(start, stop))
        else:
            images = shuffle[start:stop]
        mark_images(images, start, consumed.first, consumed.words, consumed.num_bits, words)
    return set_of_bits(words, source.num_samples), bounds


def _prove(number: int, source: Source, consumed: ConsumedSet) -> dict[str, Any]:
    """Return the certificate's row of one source before an edit."""
    digests = digest_set(consumed.first, consumed.words, consumed.num_bits, number)
    return {
        "source": number,
        "num_samples": source.num_samples,
        "num_used": consumed.num_consumed,
        "stop": consumed.stop,
        "used_digest": format_digest(digests[0]),
        "unused_digest": format_digest(digests[1]),
    }


def format_digest(value: int) -> str:
    """Return 64 bits in hex."""
    return f"{value % 2**64:016x}"
