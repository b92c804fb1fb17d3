"""``zindex.edit``: change a run from a position on, with a certificate for its samples.

An edit changes no existing store. It computes the consumed samples, builds the next blend and its
indices, and commits everything by writing one small file last.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, PlanError
from zindex.indexing.run_plan import find_dataset
from zindex.io.objects import is_remote
from zindex.maintenance.edits.draws import BlendScan, Spans
from zindex.maintenance.edits.forgotten import settle
from zindex.maintenance.edits.journal import JournalEntry, RunJournal, append_entry, open_journal
from zindex.maintenance.edits.replan import Replan, open_blend_scan
from zindex.plan.journal import Change, check_change, consumed_ranges
from zindex.plan.segments import skip_positions


def edit(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    at: int | None = None,
    *,
    reweight: Mapping[str, float] | None = None,
    add: Mapping[str, float] | None = None,
    drop: Collection[str] = (),
    skip: tuple[int, int] | None = None,
    sequence_length: int | None = None,
    num_samples: int | None = None,
    split: str = "train",
    client: Any = None,
) -> JournalEntry:
    """Change a run from a position on: append an edit to its journal, leaving its file unchanged.

    Every process that opens the run afterwards applies the edit. Positions before it keep their
    samples, later ones follow the new plan. No consumed sample is repeated, and the remaining
    samples of the kept datasets are drawn before any further pass over them. Documents that were
    forgotten stay so; see `zindex.forget`.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    at
        Position of the edit: the number of samples consumed. Required unless the edit only skips.
    reweight
        New weights by dataset, in the scale of the unchanged weights: those of the run's file in a
        run by weights, otherwise shares that sum to 1. A dataset is named by its short name, its
        path or the end of it: ``code`` for ``data/code.zarr``.
    add
        Weights of new datasets, by path.
    drop
        Datasets to drop, named likewise.
    skip
        Half-open range of later positions to skip, which makes the run shorter.
    sequence_length
        Tokens per sample from here on: the remaining tokens of every dataset are split again.
    num_samples
        Samples of the whole run, including consumed ones. None keeps the length of the run, or its
        tokens if the sequence length changes.
    split
        The split of the run.
    client
        Where to build, as of ``zindex.build``.

    Returns
    -------
    entry
        The edit with its certificate: for each dataset the samples consumed and skipped since the
        last plan, the remaining ones, and those that the new plan draws; for each source the
        digests of its consumed and its unconsumed samples.

    Raises
    ------
    ConfigError
        If the edit changes nothing, or names an unknown dataset.
    PlanError
        If positions are not after the last edit, or the datasets hold too few samples.
    FingerprintMismatchError
        If another process edits the run concurrently.

    Notes
    -----
    Law: the consumed and unconsumed samples of every source are complements by construction, and
    as many bits are set as positions were consumed, so no sample has two positions.
    """
    config = as_config(config)
    journal = open_journal(config, split)
    reweight, add = dict(reweight or {}), dict(add or {})

    def find(name: str) -> int:
        return find_dataset(journal.state.datasets, name)

    change = Change(
        reweight={find(name): float(w) for name, w in reweight.items()},
        add={_name_added(journal, path): float(weight) for path, weight in add.items()},
        drop=tuple(sorted(set(map(find, drop)))),
        skip=None if skip is None else (int(skip[0]), int(skip[1])),
        sequence_length=sequence_length,
        num_samples=num_samples,
    )
    if at is None and skip is not None and not change.is_new_plan:
        at = int(skip[0])
    if at is None:
        raise ConfigError(
            "an edit must have a position, got none; give the consumed samples as at (--at)"
        )
    if config.packing is not None:
        raise PlanError(
            "a run must not pack documents to be edited, got packing; leave it out, or begin a "
            "run with what is to change"
        )
    check_change(journal.state, change, at, last=journal.last_position)
    return _apply(journal, change, at, client)


def _find_same(journal: RunJournal, path: str) -> int | None:
    """Return the number of the dataset at a path, or None."""
    datasets = journal.state.datasets
    if path in datasets:
        return datasets.index(path)
    for number, known in enumerate(datasets):
        is_local = not (is_remote(known) or is_remote(path))
        if is_local and os.path.abspath(known) == os.path.abspath(path):
            return number
    return None


def _name_added(journal: RunJournal, path: str) -> str:
    """Return the name for a dataset to add: that of the dropped one at its path, or the path."""
    number = _find_same(journal, path)
    if number is None:
        return path if is_remote(path) else os.path.abspath(os.path.expanduser(path))
    if journal.state.weights[number] is not None:
        raise ConfigError(
            f"a dataset to add must not be in the run, '{path}' is; reweight it instead"
        )
    return journal.state.datasets[number]


def _apply(journal: RunJournal, change: Change, position: int, client: Any) -> JournalEntry:
    """Compute an edit, build its stores and commit it."""
    state = journal.state
    certificate: dict[str, Any] = {}
    last = len(state.blends) - 1
    scan = open_blend_scan(journal, last, client)
    if change.skip is not None:
        segments, skipped = skip_positions(state.segments, *change.skip)
        state = replace(state, segments=segments, skipped=(*state.skipped, *skipped))
        certificate["num_skipped"] = change.skip[1] - change.skip[0]
    *counts, planned = _count(journal, scan, *consumed_ranges(state, last, position))
    rows = [
        {"dataset": path, "consumed": consumed, "skipped": skipped}
        for path, consumed, skipped in zip(state.datasets, *counts, strict=True)
    ]
    if change.is_new_plan:
        replan = Replan(journal, change, position, client)
        state, certificate["sources"] = replan.run(state, scan, planned, rows)
    if change.is_new_plan and state.forgotten:
        settled = settle(journal, state, (), position, client)
        state, certificate["num_emptied"] = settled.state, len(settled.emptied)
    certificate |= {"datasets": rows, "num_samples": state.num_samples}
    return append_entry(journal, position, change, state, certificate)


def _count(
    journal: RunJournal, scan: BlendScan, consumed: Spans, skipped: Spans
) -> list[list[int]]:
    """Mark the consumed draws of the last blend, and count its draws by dataset of the run.

    Returns
    -------
    counts
        Consumed, skipped and future draws of each dataset.
    """
    chosen = np.array(journal.state.blends[-1].datasets, np.int64)
    by_dataset = np.zeros((3, len(journal.state.datasets)), np.int64)
    by_dataset[:, chosen] = scan.mark_all(consumed), scan.mark_all(skipped), scan.counts
    by_dataset[2] -= by_dataset[0] + by_dataset[1]
    return by_dataset.tolist()
