"""``zindex.edit``: change a run from a position on, and prove what became of its samples.

Nothing that is built is changed. An edit finds out which samples are used, builds the blend and
the indices with which the run goes on, and commits all of it with one small file, the last.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from zindex.building.blend_arrays import open_blend_arrays
from zindex.building.edits.blend_scan import BlendScan, Ranges
from zindex.building.edits.journal import JournalEntry, RunJournal, append_entry, open_journal
from zindex.building.edits.replan import LastCounts, Replan, build_needed
from zindex.building.on_demand import needed_blend
from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError
from zindex.plan.journal import Change, check_change, leave_out, used_ranges
from zindex.store.objects import is_remote


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
    """Change a run from a position on; its file stays as it is, its journal grows by one edit.

    Whoever opens the run afterwards gets it with the edit: positions before it are what they were,
    from it on the new plan holds. No sample that was consumed comes again, and what the kept
    datasets have left is drawn before any further pass over them.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    at
        Position of the edit: the samples consumed by then. A skip by itself needs none.
    reweight
        Weights by path, in the scale of those that stay: of the run's file in a run by weights,
        of shares that sum to 1 otherwise.
    add
        Weights of datasets that the run does not draw from, by path.
    drop
        Paths of datasets that are drawn from no more.
    skip
        Half-open range of positions to come that are left out: nobody is trained on them, and the
        run gets shorter.
    sequence_length
        Tokens per sample from here on: what is left of every dataset is cut anew.
    num_samples
        Samples of the whole run, the consumed ones too; the run keeps its length, or with another
        sequence length its tokens, if left out.
    split
        The split of the run.
    client
        Where to build, as of ``zindex.build``.

    Returns
    -------
    entry
        The edit with its certificate: for each dataset the samples consumed and skipped since the
        last plan, those left, and those that the new plan draws; for each source of samples the
        digests of what is used and what is not.

    Raises
    ------
    ConfigError
        If the edit changes nothing, or names what the run has not.
    PlanError
        If positions do not lie ahead, or the datasets cannot give what is asked.
    FingerprintMismatchError
        If somebody else edits the run at the same time.

    Notes
    -----
    Law: used and unused samples of every source are complements by construction, and as many bits
    are set as positions were used, so that no sample stands at two of them.
    """
    config = as_config(config)
    journal = open_journal(config, split)
    reweight, add = dict(reweight or {}), dict(add or {})
    change = Change(
        reweight={_find(journal, path): float(w) for path, w in reweight.items()},
        add={_place(journal, path): float(weight) for path, weight in add.items()},
        drop=tuple(sorted({_find(journal, path) for path in drop})),
        skip=None if skip is None else (int(skip[0]), int(skip[1])),
        sequence_length=sequence_length,
        num_samples=num_samples,
    )
    if at is None and skip is not None and not change.is_new_plan:
        at = int(skip[0])
    if at is None:
        raise ConfigError("an edit must have a position, got none; give the consumed samples")
    check_change(journal.state, change, at, last=journal.last_position)
    return _apply(journal, change, at, client)


def _find(journal: RunJournal, path: str) -> int:
    """Return the number of a dataset of the run."""
    datasets = journal.state.datasets
    if path in datasets:
        return datasets.index(path)
    if not is_remote(path):
        same = [d for d, known in enumerate(datasets) if _is_same(known, path)]
        if same:
            return same[0]
    raise ConfigError(
        f"an edit must name datasets of the run, got {path!r}; it has {', '.join(datasets[:8])}"
        + (f" and {len(datasets) - 8} more" if len(datasets) > 8 else "")
    )


def _is_same(known: str, path: str) -> bool:
    return not is_remote(known) and os.path.abspath(known) == os.path.abspath(path)


def _place(journal: RunJournal, path: str) -> str:
    """Return the path under which a dataset is added: that of a dropped one, or an absolute one."""
    state = journal.state
    for known, weight in zip(state.datasets, state.weights, strict=True):
        if known == path or (not is_remote(path) and _is_same(known, path)):
            if weight is None:
                return known
            raise ConfigError(
                f"a dataset to add must not be in the run, '{path}' is; reweight it instead"
            )
    return path if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def _apply(journal: RunJournal, change: Change, position: int, client: Any) -> JournalEntry:
    """Work out an edit, build what it needs and commit it."""
    state = journal.state
    certificate: dict[str, Any] = {}
    last = len(state.blends) - 1
    plan = journal.blend_plan(state.blends[last], last)
    [store] = build_needed([needed_blend(plan, journal.config.index)], client)
    if change.skip is not None:
        segments, skipped = leave_out(state.segments, *change.skip)
        state = replace(state, segments=segments, skipped=(*state.skipped, *skipped))
        certificate["num_skipped"] = change.skip[1] - change.skip[0]
    scan = BlendScan(open_blend_arrays(store))
    counts = _count(journal, scan, *used_ranges(state, last, position))
    rows = [
        {"dataset": path, "consumed": int(consumed), "skipped": int(skipped)}
        for path, consumed, skipped in zip(
            state.datasets, counts.consumed, counts.skipped, strict=True
        )
    ]
    if change.is_new_plan:
        replan = Replan(journal, change, position, client)
        state, certificate["sources"] = replan.go_on(state, scan, counts, rows)
    certificate |= {"datasets": rows, "num_samples": state.num_samples}
    return append_entry(journal, position, change, state, certificate)


def _count(journal: RunJournal, scan: BlendScan, consumed: Ranges, skipped: Ranges) -> LastCounts:
    """Mark what is used of the last blend, and count it by dataset of the run."""
    chosen = np.array(journal.state.blends[-1].datasets, np.int64)
    parts = [scan.mark_all(consumed), scan.mark_all(skipped), scan.counts]
    by_dataset = np.zeros((3, len(journal.state.datasets)), np.int64)
    for row, part in zip(by_dataset, parts, strict=True):
        row[chosen] = part
    by_dataset[2] -= by_dataset[0] + by_dataset[1]
    return LastCounts(*by_dataset)
