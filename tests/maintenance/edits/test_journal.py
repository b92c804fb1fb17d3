"""The journal of a run: a chain of small files, each for one run and one place."""

import json
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from tests.maintenance.edits.walks import edit_here, walk_run, weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.errors import (
    FingerprintMismatchError,
    PlanError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.indexing.run_plan import plan_run
from zindex.maintenance.edits.journal import append_entry, find_journals, open_journal
from zindex.plan.journal import Change
from zindex.plan.packing import PackingRules
from zindex.store.commit import canonical_json, fingerprint


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    return write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11, [8] * 20])


@pytest.fixture
def config(tmp_path: Path, paths: list[str]) -> RunConfig:
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 30, reweight={paths[1]: 3.0})
    edit_here(config, 45, skip=(50, 60))
    return config


def entry_file(config: RunConfig, number: int) -> Path:
    return Path(str(open_journal(config).folder)) / f"{number:06d}.json"


def test_entries_are_a_chain(config: RunConfig) -> None:
    journal = open_journal(config)
    first, second = journal.entries
    assert first.before == journal.base_fingerprint != first.fingerprint == second.before
    assert journal.fingerprint == second.fingerprint
    assert (first.position, second.position, journal.last_position) == (30, 45, 45)
    assert journal.state.num_samples == 90
    assert second.certificate["num_skipped"] == 10
    # Every process that opens the run sees the same.
    assert open_journal(config).entries == journal.entries
    assert list(find_journals(config, plan_run(config))) == ["train"]


def test_paths_of_the_run_are_in_no_identity(
    config: RunConfig, paths: list[str], tmp_path: Path
) -> None:
    content = json.loads(entry_file(config, 1).read_text())
    assert content["state"]["datasets"] == []
    other = weighted_run(tmp_path, paths[:2], index=str(tmp_path / "elsewhere"))
    assert open_journal(other).base_fingerprint == open_journal(config).base_fingerprint


def test_a_changed_file_is_another_run(config: RunConfig, paths: list[str], tmp_path: Path) -> None:
    other = weighted_run(tmp_path, paths[:2], seed=7, index=config.index)
    # Its indices differ, so that no edit of the first run is one of its own.
    assert open_journal(other).entries == ()


@pytest.mark.parametrize("number", [1, 2])
def test_a_tampered_entry_is_found(config: RunConfig, number: int) -> None:
    file = entry_file(config, number)
    content = json.loads(file.read_text())
    content["position"] += 1
    file.write_text(canonical_json(content))
    with pytest.raises(VerificationError, match=f"{number:06d}.json fails its digest"):
        open_journal(config)
    file.write_text("{")
    with pytest.raises(VerificationError, match="must hold an edit"):
        open_journal(config)


def test_a_missing_entry_is_found(config: RunConfig) -> None:
    entry_file(config, 1).unlink()
    with pytest.raises(VerificationError, match=r"the edits 1 to 1, it holds \[2\]"):
        open_journal(config)


def test_an_entry_is_good_for_one_place(config: RunConfig) -> None:
    first, second = entry_file(config, 1), entry_file(config, 2)
    (second.parent / "000003.json").write_bytes(second.read_bytes())
    with pytest.raises(FingerprintMismatchError, match="it is edit 2 of"):
        open_journal(config)
    (second.parent / "000003.json").unlink()
    second.write_bytes(first.read_bytes())
    with pytest.raises(FingerprintMismatchError, match="it is edit 1 of"):
        open_journal(config)


def test_an_entry_is_good_for_one_run(config: RunConfig, paths: list[str], tmp_path: Path) -> None:
    other = weighted_run(tmp_path, paths[:2], samples={"train": 90}, index=config.index)
    folder = Path(str(open_journal(other).folder))
    folder.mkdir()
    (folder / "000001.json").write_bytes(entry_file(config, 1).read_bytes())
    with pytest.raises(FingerprintMismatchError, match="must be an edit of the run"):
        open_journal(other)


def test_an_entry_of_a_later_version_is_not_read(config: RunConfig) -> None:
    file = entry_file(config, 2)
    content = json.loads(file.read_text()) | {"algorithm_version": 99}
    del content["fingerprint"]
    file.write_text(canonical_json(content | {"fingerprint": fingerprint(content)}))
    with pytest.raises(StoreError, match="another version of zindex; update zindex"):
        open_journal(config)


def test_the_slower_of_two_edits_loses(config: RunConfig, paths: list[str]) -> None:
    stale = open_journal(config)
    edit_here(config, 60, reweight={paths[1]: 1.0})
    with pytest.raises(FingerprintMismatchError, match="edit 3 of the run must be made by one"):
        append_entry(stale, 61, Change({}, {}, skip=(61, 62)), stale.state, {})
    assert len(open_journal(config).entries) == 3


def test_an_added_dataset_must_stay_what_it_is(
    config: RunConfig, paths: list[str], write_corpus: WriteCorpus
) -> None:
    edit_here(config, 60, add={paths[2]: 1.0})
    journal = open_journal(config)
    added = len(journal.state.sources) - 1
    assert journal.index_of(added).dataset == paths[2]
    for suffix in ("bin", "idx"):
        Path(f"{paths[2]}.{suffix}").unlink()
    write_corpus([9] * 20, name=Path(paths[2]).name)
    with pytest.raises(FingerprintMismatchError, match="corpus-2 must have the index"):
        open_journal(config).index_of(added)


def test_packed_runs_are_not_edited(tmp_path: Path, paths: list[str]) -> None:
    packed = weighted_run(tmp_path, paths[:2], packing=PackingRules())
    with pytest.raises(PlanError, match="must not pack documents to be edited, got packing"):
        edit_here(packed, 20, num_samples=50)
    with pytest.raises(StoreNotFoundError, match="a packed run must be built to be edited"):
        open_journal(packed).state  # noqa: B018
    assert find_journals(packed, plan_run(packed)) == {}


def test_a_run_is_walked_as_its_entries_say(config: RunConfig) -> None:
    assert len(set(walk_run(config))) == 90
