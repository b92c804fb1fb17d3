"""Forgotten documents: runs of every kind against brute force, certificates, and bad input."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.ingest.corpora.test_document_fields import ROWS, make_corpus
from tests.inspection.answers.brute_force import FIRST_TOKEN, KINDS, Run, draw_run, read_samples
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, PlanError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.run import build
from zindex.ingest.corpora.document_fields import find_documents
from zindex.inspection.answers.diff import diff
from zindex.inspection.answers.find import find
from zindex.inspection.answers.forget import ForgottenDocuments, forget
from zindex.inspection.answers.trace import trace
from zindex.maintenance.edits.journal import open_journal
from zindex.maintenance.edits.verify_journal import check_forgotten, verify_journal


def forget_here(config: RunConfig, documents: Any, at: int, **settings: Any) -> ForgottenDocuments:
    """Forget documents without a cluster."""
    return forget(config, documents, at, client=SerialExecutor(), **settings)


def draw_documents(run: Run, rng: np.random.Generator) -> set[tuple[int, int]]:
    """Return a few documents of a run, some of them long."""
    used = sorted({run.locate(token)[:2] for sample in run.samples for token in sample.held})
    longest = max(used, key=lambda each: run.lengths[each[0]][each[1]])
    count = int(rng.integers(1, 6))
    drawn = {used[i] for i in rng.choice(len(used), min(count, len(used)), replace=False)}
    return drawn | {longest}


def as_ids(run: Run, documents: set[tuple[int, int]]) -> list[str]:
    return [f"corpus-{corpus}:{document}" for corpus, document in sorted(documents)]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "single"])
def test_runs_of_every_kind_are_as_before_without_the_documents(
    tmp_path: Path, write_corpus: WriteCorpus, kind: str, seed: int
) -> None:
    run = draw_run(kind, seed, tmp_path, write_corpus)
    rng = np.random.default_rng(seed)
    documents = draw_documents(run, rng)
    journal = open_journal(run.config)
    at = int(rng.integers(journal.last_position, len(run.samples) // 2 + 1))
    at = max(at, journal.last_position)
    found = forget_here(run.config, as_ids(run, documents), at)
    after = read_samples(run.config, run.split)

    def is_gone(token: int) -> bool:
        return run.locate(token)[:2] in documents

    assert after[:at] == run.samples[:at]
    assert len(after) == len(run.samples) - len(found.emptied)
    for position in range(at, len(after)):
        old = run.samples[found.moved.get(position, position)]
        new = after[position]
        assert new.tokens == [token for token in old.tokens if not is_gone(token)]
        # The label of a token that is left out goes with it.
        assert set(new.tokens) <= new.held <= {t for t in old.held if not is_gone(t)}
        assert new[:3] == old[:3]
        if new.held == old.held:
            assert new == old
    # No token is lost or comes twice, but for the documents.
    before, now = (
        Counter(token for sample in samples[at:] for token in sample.tokens)
        for samples in (run.samples, after)
    )
    assert now == {token: count for token, count in before.items() if not is_gone(token)}
    held = [p for p, sample in enumerate(run.samples) if any(map(is_gone, sample.held))]
    assert [sample.position for sample in found.seen] == [p for p in held if p < at]
    assert sorted([*found.changed, *found.emptied]) == [p for p in held if p >= at]
    for emptied in found.emptied:
        assert all(map(is_gone, run.samples[emptied].tokens))
    check_answers(run, found, after, documents, at)


def check_answers(
    run: Run, found: ForgottenDocuments, after: Any, documents: set[tuple[int, int]], at: int
) -> None:
    """Check that the other answers agree with the torch dataset."""
    assert verify_journal(run.config, client=SerialExecutor()).num_samples == len(after)
    traced = trace(run.config, position=(0, len(after))).samples
    for sample, expected in zip(traced, after, strict=True):
        held = [
            run.token(sample.dataset_id, part.document, place)
            for part in sample.parts
            for place in range(part.start, part.stop)
        ]
        assert set(expected.held) <= set(held)
        assert not {run.locate(token)[:2] for token in held if sample.position >= at} & documents
    for corpus, document in documents:
        [answer] = find(run.config, corpus, document).documents
        assert all(sample.position < at for sample in answer.samples)
    if found.changed or found.emptied:
        difference = diff(run.config)
        assert difference.first_difference == min([*found.changed, *found.emptied])


def test_all_documents_of_a_packed_or_streamed_sample_may_go(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    """A sample of one document is replaced by the last ones of the run."""
    paths = write_corpora(write_corpus, [[64, *[3] * 40], [5] * 60])
    config = weighted_run(tmp_path, paths)
    before = read_samples(config, "train")
    found = forget_here(config, ["corpus-0:0"], 0)
    assert len(found.emptied) > 5
    after = read_samples(config, "train")
    assert len(after) == len(before) - len(found.emptied)
    assert all(sample.tokens for sample in after)


@pytest.mark.parametrize(
    "order", ["megatron", *(pytest.param(o, marks=pytest.mark.slow) for o in [*ORDERS][1:])]
)
def test_later_edits_leave_the_documents_out(
    tmp_path: Path, write_corpus: WriteCorpus, order: str
) -> None:
    rng = np.random.default_rng(3)
    lengths = [rng.integers(1, 30, 25).tolist() for _ in range(3)]
    paths = write_corpora(write_corpus, lengths)
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    gone = range(5, 12)
    forget_here(config, [(0, document) for document in gone], 20)
    changes: list[dict[str, Any]] = [
        {"reweight": {paths[0]: 9.0}, "add": {paths[2]: 1.0}, "num_samples": 250},
        {"skip": (60, 70)},
        {"sequence_length": 6},
        {"reweight": {paths[0]: 9.0}, "num_samples": 250},
    ]
    starts = np.cumsum([0, *lengths[0]]) + FIRST_TOKEN
    tokens = {t for d in gone for t in range(starts[d], starts[d + 1])}
    for number, change in enumerate(changes):
        edit_here(config, 30 + 7 * number, **change)
        samples = read_samples(config, "train")
        assert not any(sample.held & tokens for sample in samples[20:])
        assert all(sample.tokens for sample in samples[20:])
        verify_journal(config, client=SerialExecutor())
    forget_here(config, ["corpus-2:3", "corpus-0:5"], 100)
    starts = np.cumsum([0, *lengths[2]]) + 3 * FIRST_TOKEN
    more = set(range(starts[3], starts[4]))
    samples = read_samples(config, "train")
    assert not any(sample.held & more for sample in samples[100:])
    verify_journal(config, client=SerialExecutor())


@pytest.fixture
def config(tmp_path: Path, write_corpus: WriteCorpus) -> RunConfig:
    """A run of 100 samples of two corpora with 40 documents each."""
    return weighted_run(tmp_path, write_corpora(write_corpus, [[5] * 40, [7] * 40]))


def test_the_edit_is_certified_and_a_dry_run_writes_nothing(config: RunConfig) -> None:
    planned = forget_here(config, ["corpus-1:3"], 10, dry_run=True, global_batch_size=4)
    assert planned.entry is None
    assert not open_journal(config).entries
    assert "train, from position 10: 1 document to forget, nothing is written" in planned.to_lines()
    found = forget_here(config, ["corpus-1:3"], 10, global_batch_size=4)
    assert found.entry is not None
    certificate = found.entry.certificate
    assert certificate["documents_digest"] == found.digest == planned.digest
    assert certificate["changed"] == list(found.changed) == list(planned.changed)
    assert certificate["num_seen"] == len(found.seen)
    assert found.entry.change["forget"] == {"1": 1}
    assert all(sample.step == sample.position // 4 for sample in found.seen)
    assert {part.document for sample in found.seen for part in sample.parts} <= {3}
    assert all(len(line) <= 80 for line in found.to_lines())
    assert found.to_json()["edit"] == 1
    with pytest.raises(PlanError, match="all of these are"):
        forget_here(config, ["corpus-1:3"], 10)
    again = forget_here(config, ["corpus-1:3", "corpus-1:4"], 12)
    assert list(again.documents.values()) == [(4,)]
    assert verify_journal(config, client=SerialExecutor()).num_edits == 2


BAD_IDS = {
    "": "ids.txt names none; write one DATASET:DOCUMENT",
    "# nothing\n\n": "ids.txt names none",
    "corpus-0:1\nother:2\n": "line 2 of .*ids.txt: an id must be DATASET:DOCUMENT.*got 'other:2'",
    "corpus-0:1\n\ncorpus-1:40\n": r"line 3 of .*: a document must be in \[0, 40\).*got 40",
    "corpus-0:-1": "line 1 of .*: an id must be DATASET:DOCUMENT.*got 'corpus-0:-1'",
    "corpus-0 1": "got 'corpus-0 1'; datasets are corpus-0, corpus-1",
    ":7": "got ':7'",
}


@pytest.mark.parametrize("text", BAD_IDS)
def test_bad_ids_are_named_with_their_line(config: RunConfig, tmp_path: Path, text: str) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=BAD_IDS[text]):
        forget_here(config, path, 10)
    assert not open_journal(config).entries


def test_source_ids_name_documents(tmp_path: Path) -> None:
    make_corpus(tmp_path, "web")
    make_corpus(tmp_path, "more", ROWS[5:15])
    run: dict[str, Any] = {
        "datasets": [
            {"path": str(tmp_path / f"{name}.zarr"), "weight": 1.0} for name in ("web", "more")
        ],
        "index": str(tmp_path / "index"),
        "sequence_length": 16,
        "samples": {"train": 40},
        "seed": 1,
        "split": "1,0,0",
    }
    config = as_config(run)
    build(config, client=SerialExecutor())
    found = forget_here(config, ["d8", "web:3"], 5)
    expected = {
        str(tmp_path / f"{name}.zarr"): find_documents(tmp_path / f"{name}.zarr", ["d8"])["d8"]
        for name in ("web", "more")
    }
    expected[str(tmp_path / "web.zarr")] = sorted({*expected[str(tmp_path / "web.zarr")], 3})
    assert {path: [*own] for path, own in found.documents.items()} == expected
    with pytest.raises(ConfigError, match=r"id 1: an id must be DATASET.*got 'd999'"):
        forget_here(config, ["web:4", "d999"], 6)


def test_positions_must_be_those_to_come(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="from a position on, got none"):
        forget(config, ["corpus-0:1"])
    with pytest.raises(ConfigError, match="at must be"):
        forget_here(config, ["corpus-0:1"], -1)
    with pytest.raises(PlanError, match="within the run of 100 samples, got position 101"):
        forget_here(config, ["corpus-0:1"], 101)
    assert not open_journal(config).entries
    edit_here(config, 50, num_samples=90)
    with pytest.raises(PlanError, match="at position 50, got 40"):
        forget_here(config, ["corpus-0:1"], 40)
    every = [(dataset, document) for dataset in (0, 1) for document in range(40)]
    with pytest.raises(ConfigError, match="id 0: a document must be"):
        forget_here(config, [(0, 99)], 50)
    assert len(open_journal(config).entries) == 1
    found = forget_here(config, every, 50)
    assert found.num_samples == (90, 50)
    assert len(found.emptied) == 40


def test_a_run_must_have_other_tokens(config: RunConfig) -> None:
    every = [(dataset, document) for dataset in (0, 1) for document in range(40)]
    with pytest.raises(PlanError, match="it has no other; begin another run"):
        forget_here(config, every, 0)
    assert not open_journal(config).entries


def test_files_that_are_no_text_are_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "ids.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"ids.bin must be text in UTF-8"):
        forget_here(config, tmp_path / "ids.bin", 10)


def test_damaged_lists_of_samples_are_found(config: RunConfig) -> None:
    forget_here(config, ["corpus-1:3"], 10)
    journal = open_journal(config)
    [entry] = journal.entries
    touched = entry.state.touched[0]
    wrong = replace(entry.state, touched=(replace(touched, samples=touched.samples[1:]),))
    with pytest.raises(VerificationError, match="must name all samples that hold forgotten"):
        check_forgotten(replace(journal, entries=(replace(entry, state=wrong),)), SerialExecutor())
