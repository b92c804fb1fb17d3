"""What a run goes on with after an edit: its blend, and the sources that this draws from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.arrays import open_index_arrays
from zindex.building.edits.blend_scan import BLOCK, BlendScan
from zindex.building.edits.edited import blocks_of, shuffle_cut
from zindex.building.edits.journal import RunJournal
from zindex.building.edits.used import (
    UsedSet,
    add_draws,
    count_unused_below,
    empty_set,
    num_words,
    set_of_bits,
    store_sets,
    used_store_plan,
)
from zindex.building.executor import Executor, open_executor, run_builds, run_together
from zindex.building.index_store import BuildResult
from zindex.building.on_demand import Builds, Needed, needed_blend, needed_index
from zindex.building.waiting import Rank
from zindex.errors import PlanError
from zindex.kernels.bitset import WORD_BITS, digest_set, mark_images
from zindex.plan.blend_sizes import count_samples
from zindex.plan.journal import (
    BlendFacts,
    Change,
    NextBlend,
    RunState,
    Segment,
    Source,
    cut_windows,
    plan_next,
)
from zindex.plan.keys import edit_seed
from zindex.store.identity import fingerprint
from zindex.store.open import Store

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LastCounts:
    """Samples of each dataset of the run that its last blend gave, or would still have given."""

    consumed: Int64Array
    skipped: Int64Array
    planned: Int64Array


def build_needed(needed: Sequence[Needed], client: Any = None) -> list[Store]:
    """Return committed stores, building together those that are not there."""
    if client is None:
        stores: list[list[Store]] = [[] for _ in needed]
        with Builds(Rank()) as builds:
            for item, received in zip(needed, stores, strict=True):
                builds.add(item, received.append)
            builds.finish()
        return [store for [store] in stores]
    with open_executor(client) as executor:
        results = run_builds(_build_all(needed, executor))
    return [result.store for result in results]


async def _build_all(needed: Sequence[Needed], executor: Executor) -> list[BuildResult]:
    return await run_together(item.build(executor) for item in needed)


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
        self.journal = journal
        self.change = change
        self.position = position
        self.client = client
        self.folder = journal.config.index
        #: Number of the new blend.
        self.blend = len(journal.state.blends)
        self.seed = edit_seed(journal.config.seed, journal.split, len(journal.entries) + 1)

    def go_on(
        self, state: RunState, scan: BlendScan, counts: LastCounts, rows: list[dict[str, Any]]
    ) -> tuple[RunState, list[dict[str, Any]]]:
        """Return the run with its new blend, and what the certificate says of its sources.

        Parameters
        ----------
        state
            The run before the edit, with what it skips left out.
        scan, counts
            The last blend: everything that is used of it is marked and counted.
        rows
            What the certificate says of each dataset; added to.
        """
        old_length = state.sequence_length
        used = self._fold(scan)
        proof = [_prove(number, state.sources[number], item) for number, item in used.items()]
        tokens = zip(state.consumed_tokens, counts.consumed * old_length, strict=True)
        state = replace(state, consumed_tokens=tuple(int(old + more) for old, more in tokens))
        state, coming = plan_next(state, self.change, self.position, counts.planned.tolist())
        self._check_epochs(state, coming)
        cut: dict[int, UsedSet] = {}
        if state.sequence_length != old_length:
            state, cut, used = self._cut_anew(state, used, old_length)
        facts = BlendFacts(
            datasets=coming.datasets,
            weights=coming.weights,
            sizes=coming.sizes,
            num_samples=coming.num_samples,
            seed=self.seed,
            used=(),
        )
        plan = self.journal.blend_plan(facts, self.blend)
        [store] = build_needed([needed_blend(plan, self.folder)], self.client)
        drawn = np.zeros(len(state.datasets), np.int64)
        drawn[np.array(coming.datasets)] = store[schema.DATASET_COUNT.name][:]
        first = len(state.sources)
        state = self._extend(state, used, drawn, rows)
        used |= {number: empty_set() for number in range(first, len(state.sources))}
        facts = replace(
            facts,
            used=tuple(item.facts(source) for source, item in used.items()),
            cut=tuple(item.facts(source) for source, item in cut.items()),
            store=self._store([*(cut or used).values()]),
        )
        segment = Segment(self.position, self.position + coming.num_samples, self.blend, 0)
        blends, segments = (*state.blends, facts), (*state.segments, segment)
        return replace(state, blends=blends, segments=segments), proof

    def _fold(self, scan: BlendScan) -> dict[int, UsedSet]:
        """Return what is used of every source, the marked draws of the last blend too."""
        last, sources = self.blend - 1, self.journal.state.sources
        facts = self.journal.state.blends[last]
        table = self.journal.used_table(last)
        rows = {dataset: row for row, dataset in enumerate(facts.datasets)}
        bits = {dataset: int(scan.starts[row]) * WORD_BITS for dataset, row in rows.items()}
        left = {dataset: int(scan.counts[row]) for dataset, row in rows.items()}
        used = {}
        for item in facts.used:
            used[item.source] = table.load(item.source)
            dataset = sources[item.source].dataset
            num = min(left.get(dataset, 0), sources[item.source].num_samples - item.num_used)
            if num:
                used[item.source] = add_draws(used[item.source], scan.words, bits[dataset], num)
                bits[dataset] += num
                left[dataset] -= num
        return used

    def _cut_anew(
        self, state: RunState, used: Mapping[int, UsedSet], old_length: int
    ) -> tuple[RunState, dict[int, UsedSet], dict[int, UsedSet]]:
        """Return the run with its unused tokens cut into samples of another length.

        Returns
        -------
        state
            With a source for each one that has enough unused samples.
        cut
            By the source before, the samples of its index that are used.
        used
            By the source after: nothing.
        """
        cut, fresh = {}, []
        for number, item in used.items():
            ids, bounds = used_ids(self.journal, number, item, self.client)
            windows = cut_windows(
                [count_unused_below(ids, bound) for bound in bounds],
                old_length,
                state.sequence_length,
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
        return state, cut, {first + n: empty_set() for n in range(len(fresh))}

    def _extend(
        self,
        state: RunState,
        used: Mapping[int, UsedSet],
        drawn: Int64Array,
        rows: list[dict[str, Any]],
    ) -> RunState:
        """Return the run with an index for what the sources that are left cannot give."""
        left = np.zeros(len(state.datasets), np.int64)
        for number, item in used.items():
            source = state.sources[number]
            left[source.dataset] += source.num_samples - item.num_used
        added = state.datasets[len(rows) :]
        rows += [{"dataset": path, "consumed": 0, "skipped": 0} for path in added]
        known = {source.dataset for source in state.sources}
        fresh, needed = [], []
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
                # Another pass over a dataset is another order of it.
                seed=self.seed if dataset in known else self.journal.config.seed,
                blend=self.blend,
            )
            planned = self.journal.plan_index(state.datasets[dataset], source)
            plan = planned.plan
            index = fingerprint(plan.spec)
            fresh.append(replace(source, num_samples=plan.num_samples, index=index))
            needed.append(needed_index(plan, planned.source, self.folder))
            row["added"] = plan.num_samples
        build_needed(needed, self.client)
        return replace(state, sources=(*state.sources, *fresh))

    def _store(self, sets: Sequence[UsedSet]) -> str | None:
        """Store the bits of sets, if there are any, and return the name of their store."""
        if not any(item.num_bits for item in sets):
            return None
        spec = {
            "before": self.journal.fingerprint,
            "position": self.position,
            "change": self.change.to_json(),
        }
        grid = self.journal.config.grid
        plan = used_store_plan(spec, sets, grid, self.folder, self.journal.split)
        store_sets(plan, sets)
        return plan.root.name

    def _check_epochs(self, state: RunState, coming: NextBlend) -> None:
        """Check that no dataset is seen more often than the run allows."""
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
            tokens = self.journal.open_lengths(path).count_tokens(*self.journal.span_of(path))
            most = count_samples(limit, tokens, request)
            most = max(0, most - -(-state.consumed_tokens[dataset] // length))
            # A weighted count is only known to within one sample, and that one is let pass.
            count = int(weight / total * coming.num_samples)
            if count > most:
                raise PlanError(
                    f"the edit needs {count:,} samples of train from '{path}' but of its "
                    f"{limit:g} epochs {most:,} are left; raise max_epochs or lower its weight"
                )


def used_ids(
    journal: RunJournal, number: int, used: UsedSet, client: Any = None
) -> tuple[UsedSet, Sequence[int]]:
    """Return the samples, by their place in the token stream, that are used of a source.

    Parameters
    ----------
    journal, number
        The run, and the source in it.
    used
        The positions that are used.
    client
        Where to build an index that is gone.

    Returns
    -------
    ids
        The set.
    bounds
        Ends of the ranges of samples that are shuffled among themselves.

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
                f"samples must be full to be cut anew, the last one of {journal.split} of "
                f"{item.dataset} is not; set drop_last_partial_validation_sequence"
            )
        needed = needed_index(plan, item.source, journal.config.index)
        shuffle = open_index_arrays(build_needed([needed], client)[0]).shuffle_index
        bounds = [plan.num_samples]
        if plan.order == "scalable":
            bounds = [plan.samples_of_epoch(e)[1] for e in range(plan.epochs.num_epochs)]
    for start, stop in blocks_of([(0, used.stop)], BLOCK):
        if shuffle is None:
            images: Any = shuffle_cut(source, number, journal.split, np.arange(start, stop))
        else:
            images = shuffle[start:stop]
        mark_images(images, start, used.first, used.words, used.num_bits, words)
    return set_of_bits(words, source.num_samples), bounds


def _prove(number: int, source: Source, used: UsedSet) -> dict[str, Any]:
    """Return what the certificate says of one source when an edit takes over."""
    digests = digest_set(used.first, used.words, used.num_bits, number)
    return {
        "source": number,
        "num_samples": source.num_samples,
        "num_used": used.num_used,
        "stop": used.stop,
        "used_digest": format_digest(digests[0]),
        "unused_digest": format_digest(digests[1]),
    }


def format_digest(value: int) -> str:
    """Return 64 bits in hex."""
    return f"{value % 2**64:016x}"
