"""Small runs with edits, walked sample by sample."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import WriteCorpus
from tests.indexing.runs import make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.execution.executor import SerialExecutor
from zindex.indexing.blend_arrays import open_blend_arrays
from zindex.indexing.ensure import BuildRequest
from zindex.maintenance.edits.edit import edit
from zindex.maintenance.edits.journal import JournalEntry, RunJournal, open_journal
from zindex.maintenance.edits.replan import build_stores

#: Settings of runs: both orders, everything that a blend may store.
ORDERS: dict[str, dict[str, Any]] = {
    "megatron": {},
    "scalable": {"order": "scalable"},
    "minimal": {"order": "scalable", "store": "minimal"},
    "uniform": {"order": "scalable", "shuffle": "uniform"},
}


def write_corpora(write_corpus: WriteCorpus, lengths: list[list[int]]) -> list[str]:
    """Write corpora of given document lengths, all of whose tokens differ."""
    paths = []
    for number, sizes in enumerate(lengths):
        tokens = np.arange(sum(sizes)) + 100_000 * (number + 1)
        paths.append(write_corpus(sizes, name=f"corpus-{number}", tokens=tokens))
    return paths


def weighted_run(tmp_path: Path, paths: list[str], **settings: Any) -> RunConfig:
    """Return a run of 100 samples, half of them of the first corpus."""
    weights = [float(max(1, len(paths) - 1)), *[1.0] * (len(paths) - 1)]
    members = [DatasetConfig(path, weight=w) for path, w in zip(paths, weights, strict=True)]
    return make_config(
        tmp_path, *members, **({"split": "100,0,0", "samples": {"train": 100}} | settings)
    )


def edit_here(config: RunConfig, at: int | None = None, **changes: Any) -> JournalEntry:
    """Edit a run without a cluster."""
    return edit(config, at, client=SerialExecutor(), **changes)


def walk(journal: RunJournal) -> list[tuple[int, int]]:
    """Return source and sample of every position of a run."""
    samples: list[tuple[int, int]] = []
    state = journal.state
    for segment in state.segments:
        plan = journal.blend_plan(state.blends[segment.blend], segment.blend)
        [store] = build_stores([BuildRequest(plan, journal.config.index)], SerialExecutor())
        arrays = open_blend_arrays(store)
        span = slice(segment.offset, segment.offset + segment.stop - segment.start)
        pools = journal.pools(segment.blend)
        found = pools.find(arrays.dataset_index[span], arrays.dataset_sample_index[span])
        samples += zip(found.sources.tolist(), found.samples.tolist(), strict=True)
    return samples


def walk_run(config: RunConfig) -> list[tuple[int, int]]:
    """Return source and sample of every position of a run as stored."""
    return walk(open_journal(config))
