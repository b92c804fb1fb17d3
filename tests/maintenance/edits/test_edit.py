"""``zindex.edit``: what is consumed stays, nothing comes twice, what is left is drawn first."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.runs import make_config
from tests.maintenance.edits.walks import ORDERS, edit_here, walk_run, weighted_run, write_corpora
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import ConfigError, FingerprintMismatchError, PlanError
from zindex.execution.executor import SerialExecutor
from zindex.maintenance.edits.journal import RunJournal, open_journal
from zindex.maintenance.edits.verify_journal import verify_journal


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    rng = np.random.default_rng(5)
    return write_corpora(write_corpus, [rng.integers(1, 30, 20 * n).tolist() for n in (2, 1, 1, 3)])


def counts_of(samples: list[tuple[int, int]], config: RunConfig) -> list[int]:
    """Count the samples of each dataset of a run."""
    sources = open_journal(config).state.sources
    datasets = [sources[source].dataset for source, _ in samples]
    return np.bincount(datasets, minlength=max(source.dataset for source in sources) + 1).tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_new_weights_hold_from_the_edit_on(tmp_path: Path, paths: list[str], order: str) -> None:
    config = weighted_run(tmp_path, paths[:3], **ORDERS[order])
    before = walk_run(config)
    entry = edit_here(config, 40, reweight={paths[1]: 6.0})
    after = walk_run(config)
    assert after[:40] == before[:40]
    assert len(after) == len(before) == len(set(after))
    # 2 : 6 : 1 of 60 samples.
    assert np.abs(np.array(counts_of(after[40:], config)) - [13.3, 40, 6.7]).max() <= 1
    rows = entry.certificate["datasets"]
    assert [row["drawn"] for row in rows] == counts_of(after[40:], config)
    assert [row["consumed"] for row in rows] == counts_of(after[:40], config)


@pytest.mark.parametrize("order", ORDERS)
def test_remaining_samples_precede_another_pass(
    tmp_path: Path, paths: list[str], order: str
) -> None:
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    edit_here(config, 30, reweight={paths[1]: 8.0}, num_samples=400)
    samples = walk_run(config)
    state = open_journal(config).state
    passes = [n for n, source in enumerate(state.sources) if source.dataset == 1]
    assert len(passes) == 2
    first = {sample for source, sample in samples if source == passes[0]}
    # Not one sample of the passes that were planned before is lost.
    assert first == set(range(state.sources[passes[0]].num_samples))
    assert state.sources[passes[1]].seed != config.seed
    assert len(set(samples)) == len(samples) == 400


@pytest.mark.parametrize("order", ORDERS)
def test_datasets_come_and_go_and_come_back(tmp_path: Path, paths: list[str], order: str) -> None:
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    before = walk_run(config)
    edit_here(config, 20, add={paths[2]: 0.5}, drop=[paths[0]])
    dropped = walk_run(config)
    assert counts_of(dropped[20:], config)[0] == 0
    assert counts_of(dropped[20:], config)[2] in (26, 27)
    edit_here(config, 50, add={paths[0]: 1.0})
    samples = walk_run(config)
    assert samples[:20] == before[:20]
    assert samples[20:50] == dropped[20:50]
    assert counts_of(samples[50:], config)[0] == 20
    assert len(set(samples)) == len(samples)
    # It goes on with what it had left, under its old number.
    assert len(open_journal(config).state.datasets) == 3


@pytest.mark.parametrize("order", ORDERS)
def test_skipped_positions_are_left_out(tmp_path: Path, paths: list[str], order: str) -> None:
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    before = walk_run(config)
    entry = edit_here(config, skip=(30, 41))
    assert entry.position == 30
    assert walk_run(config) == before[:30] + before[41:]
    with pytest.raises(PlanError, match="at position 30, got 25"):
        edit_here(config, 25, reweight={paths[0]: 3.0})
    edit_here(config, 35, reweight={paths[0]: 3.0})
    samples = walk_run(config)
    assert not set(samples) & set(before[30:41])
    assert samples[:35] == before[:30] + before[41:46]
    assert len(samples) == len(before) - 11


def test_a_later_skip_outlives_an_earlier_edit(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    before = walk_run(config)
    edit_here(config, 10, skip=(60, 70))
    edit_here(config, 20, num_samples=150)
    assert not set(walk_run(config)) & set(before[60:70])
    assert len(walk_run(config)) == 150


def random_change(rng: np.random.Generator, state: Any, position: int, paths: list[str]) -> Any:
    """Return a random edit; perhaps an empty one."""
    drawn = zip(state.datasets, state.weights, strict=True)
    live = [path for path, weight in drawn if weight is not None]
    others = [path for path in paths if path not in live]
    change: dict[str, Any] = {}
    if rng.random() < 0.4:
        change["reweight"] = {live[0]: float(rng.integers(1, 9))}
    if rng.random() < 0.3 and others:
        change["add"] = {others[0]: float(rng.random() + 0.1)}
    if rng.random() < 0.2 and len(live) > 1:
        change["drop"] = [live[-1]]
    if rng.random() < 0.3 and position < state.num_samples:
        start = int(rng.integers(position, state.num_samples))
        change["skip"] = (start, int(rng.integers(start + 1, state.num_samples + 1)))
    length = int(rng.integers(1, 12))
    if rng.random() < 0.25 and length != state.sequence_length:
        change["sequence_length"] = length
    if rng.random() < 0.2:
        change["num_samples"] = position + int(rng.integers(1, 200))
    return change


KINDS = {
    "weight": ({"weight": 2.0}, {"samples": {"train": 120}}),
    "tokens": ({"tokens": 400}, {}),
    "epochs": ({"epochs": 1.5}, {}),
    "sizes": ({}, {"blend": "sizes"}),
}


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ("megatron", "weight"),
        ("megatron", "epochs"),
        ("scalable", "sizes"),
        ("scalable", "weight"),
        ("minimal", "tokens"),
        ("minimal", "weight"),
        ("uniform", "epochs"),
    ],
)
def test_random_edits_repeat_nothing_and_lose_nothing(
    tmp_path: Path, paths: list[str], order: str, kind: str
) -> None:
    rng = np.random.default_rng([len(order), len(kind)])
    share, settings = KINDS[kind]
    members = [DatasetConfig(path, **share) for path in paths[: int(rng.integers(2, 4))]]
    config = make_config(tmp_path, *members, split="100,0,0", **settings, **ORDERS[order])
    samples, position = walk_run(config), 0
    skipped: set[tuple[int, int]] = set()
    for _ in range(4):
        state = open_journal(config).state
        position = int(rng.integers(position, min(position + 60, state.num_samples - 1) + 1))
        change = random_change(rng, state, position, paths)
        if not change or change.get("skip") == (position, state.num_samples):
            continue
        entry = edit_here(config, position, **change)
        before, samples = samples, walk_run(config)
        assert samples[:position] == before[:position]
        assert len(set(samples)) == len(samples) == entry.state.num_samples
        skipped |= set(before[slice(*change.get("skip", (0, 0)))])
        assert not skipped & set(samples)
        if len(entry.state.blends) > len(state.blends):
            check_what_is_left(open_journal(config), {*before[:position], *skipped})
    report = verify_journal(config, client=SerialExecutor())
    assert report.num_samples == len(samples)
    assert report.num_edits == len(open_journal(config).entries)


def check_what_is_left(journal: RunJournal, gone: set[tuple[int, int]]) -> None:
    """Check that the last blend may draw exactly what was neither consumed nor skipped."""
    number = len(journal.state.blends) - 1
    table, pools = journal.consumed_table(number), journal.pools(number)
    for row, facts in enumerate(journal.state.blends[number].consumed):
        num_left = int(pools.num_left[row])
        found = table.find(np.full(num_left, row), np.arange(num_left)).tolist()
        used = {sample for source, sample in gone if source == facts.source}
        num_samples = journal.state.sources[facts.source].num_samples
        assert found == [sample for sample in range(num_samples) if sample not in used]


def test_without_positions_or_changes_nothing_is_edited(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    with pytest.raises(ConfigError, match="must have a position, got none"):
        edit_here(config, reweight={paths[0]: 2.0})
    with pytest.raises(ConfigError, match="must change something"):
        edit_here(config, 5)
    with pytest.raises(ConfigError, match="a dataset must be one of the run, got 'other'; it has"):
        edit_here(config, 5, drop=["other"])
    with pytest.raises(ConfigError, match="to add must not be in the run"):
        edit_here(config, 5, add={paths[0]: 1.0})
    with pytest.raises(PlanError, match="the run of 100 samples, got position 101"):
        edit_here(config, 101, drop=[paths[0]])
    assert open_journal(config).entries == ()


def test_an_edit_lies_behind_the_last_one(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 50, reweight={paths[0]: 2.0})
    with pytest.raises(PlanError, match="not be before the last one, at position 50, got 49"):
        edit_here(config, 49, reweight={paths[0]: 3.0})
    edit_here(config, 50, reweight={paths[0]: 3.0})
    assert len(open_journal(config).entries) == 2


@pytest.mark.parametrize("limit", ["run", "dataset"])
def test_max_epochs_hold_for_edits_too(tmp_path: Path, paths: list[str], limit: str) -> None:
    limits = [1.0 if limit == "dataset" else None, None]
    members = [
        DatasetConfig(path, weight=1.0, max_epochs=most)
        for path, most in zip(paths[1:3], limits, strict=True)
    ]
    settings = {"max_epochs": 1.0} if limit == "run" else {}
    config = make_config(tmp_path, *members, split="100,0,0", samples={"train": 100}, **settings)
    with pytest.raises(PlanError, match=r"of its 1 epochs [0-9]+ are left; raise max_epochs"):
        edit_here(config, 40, reweight={paths[1]: 30.0})
    edit_here(config, 40, reweight={paths[1]: 1.5})


def test_a_run_without_a_blend_is_not_edited(tmp_path: Path, paths: list[str]) -> None:
    config = make_config(tmp_path, *paths, split="100,0,0")
    with pytest.raises(PlanError, match="must have a blend of train to be edited"):
        edit_here(config, 1, drop=[paths[0]])


def test_one_of_two_concurrent_edits_wins(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    walk_run(config)
    barrier, errors, made = threading.Barrier(2), [], []

    def change(weight: float) -> None:
        barrier.wait()
        try:
            made.append(edit_here(config, 30, reweight={paths[1]: weight}))
        except (FingerprintMismatchError, PlanError) as error:
            errors.append(str(error))

    threads = [threading.Thread(target=change, args=(weight,)) for weight in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal = open_journal(config)
    # The second one either lost, or began after the first and stands behind it.
    assert len(journal.entries) == len(made) == 2 - len(errors)
    assert all("was written meanwhile" in error for error in errors)
    assert len(set(walk_run(config))) == 100


def test_the_cluster_builds_what_an_edit_needs(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 30, add={paths[2]: 1.0})
    samples = walk_run(config)
    other = weighted_run(tmp_path, paths[:2], index=str(tmp_path / "other"))
    from zindex.maintenance.edits.edit import edit

    edit(other, 30, add={paths[2]: 1.0})
    assert walk_run(other) == samples
    assert open_journal(other).fingerprint == open_journal(config).fingerprint


def test_partial_samples_cannot_be_split_again(tmp_path: Path, paths: list[str]) -> None:
    config = make_config(
        tmp_path,
        *[DatasetConfig(path, epochs=1.0) for path in paths[:2]],
        split="0,100,0",
        drop_last_partial_validation_sequence=False,
    )
    with pytest.raises(PlanError, match=r"the last one of valid of .*corpus-. is not; set"):
        edit_here(config, 2, sequence_length=2, split="valid")
    edit_here(config, 2, skip=(2, 4), split="valid")
    assert len(open_journal(config, "valid").entries) == 1
