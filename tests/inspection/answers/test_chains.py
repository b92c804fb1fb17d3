"""Chains of edits, among them forgotten documents: each answer against the torch dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus, numbers
from tests.inspection.answers.brute_force import Run, Sample, read_samples
from tests.inspection.answers.test_diff import assert_difference
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.errors import ConfigError, PlanError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers.diff import diff
from zindex.inspection.answers.find import find
from zindex.inspection.answers.forget import forget
from zindex.inspection.answers.run_order import RunOrder
from zindex.maintenance.edits.verify_journal import verify_journal

SERIAL = SerialExecutor()


def check_samples(run: Run, order: RunOrder) -> None:
    """Compare every sample of a run with its torch dataset."""
    assert len(order) == len(run.samples)
    found = order.read(np.arange(len(order)))
    held: list[set[int]] = [set() for _ in run.samples]
    for owner, *part in zip(*(column.tolist() for column in found.parts), strict=True):
        document, start, stop = part
        first = run.token(int(order.paths[found.datasets[owner]][-1]), document, start)
        held[owner] |= set(range(first, first + stop - start))
    for row, sample in enumerate(run.samples):
        assert (found.datasets[row], found.epochs[row]) == (sample.dataset, sample.epoch)
        # A token whose label was forgotten predicts nothing, and is no input either.
        assert sample.held <= held[row]


def check_documents(run: Run, order: RunOrder, rng: np.random.Generator) -> None:
    """Compare where some documents are with the torch dataset."""
    traced = order.read(np.arange(len(order)))
    for number, path in enumerate(order.paths):
        corpus = int(path[-1])
        for document in rng.choice(len(run.lengths[corpus]), 5, replace=False).tolist():
            tokens = {run.token(corpus, document, p) for p in range(run.lengths[corpus][document])}
            wanted = {p for p, sample in enumerate(run.samples) if sample.held & tokens}
            [found] = find(order, number, document).documents
            positions = {sample.position for sample in found.samples}
            assert wanted <= positions
            own = traced.datasets[traced.parts.owners] == number
            parts = traced.parts.owners[own & (traced.parts.documents == document)]
            assert positions == set(parts.tolist())


def is_forgotten(run: Run, documents: set[tuple[int, int]], token: int) -> bool:
    return run.locate(token)[:2] in documents


def change_randomly(
    run: Run, paths: list[str], at: int, rng: np.random.Generator
) -> set[tuple[int, int]]:
    """Edit a run, and return the documents that were forgotten."""
    kind = str(rng.choice(["forget", "reweight", "add", "drop", "skip", "grow", "length"]))
    order = RunOrder(run.config)
    if kind == "forget":
        number = int(rng.integers(len(order.paths)))
        corpus = int(order.paths[number][-1])
        count = int(rng.integers(1, 4))
        drawn = rng.choice(len(run.lengths[corpus]), count, replace=False).tolist()
        forget(run.config, [(number, document) for document in drawn], at, client=SERIAL)
        return {(corpus, document) for document in drawn}
    changes: dict[str, Any] = {
        "reweight": {"reweight": {str(rng.choice(order.paths)): float(rng.integers(1, 9))}},
        "add": {"add": {str(rng.choice(paths)): 1.0}},
        "drop": {"drop": [str(rng.choice(order.paths))]},
        "skip": {"skip": (at, at + int(rng.integers(1, 9)))},
        "grow": {"num_samples": len(order) + int(rng.integers(-5, 40))},
        "length": {"sequence_length": int(rng.integers(3, 9))},
    }
    edit_here(run.config, at, **changes[kind])
    return set()


# In the first, samples of two epochs hold the same tokens.
@pytest.mark.parametrize("seed", numbers(2, 300))
def test_chains_of_edits(seed: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    rng = np.random.default_rng(36 + seed)
    lengths = [rng.integers(1, 14, rng.integers(12, 40)).tolist() for _ in range(3)]
    paths = write_corpora(write_corpus, lengths)
    config = weighted_run(
        tmp_path, paths[: int(rng.integers(1, 4))], seed=int(rng.integers(1000)),
        add_extra_token_to_sequence=bool(rng.integers(2)), **ORDERS[str(rng.choice(list(ORDERS)))],
    )  # fmt: skip
    run = Run(config, "train", lengths, read_samples(config, "train"))
    at, gone = 0, dict[tuple[int, int], int]()
    for _ in range(int(rng.integers(2, 7))):
        at = min(at + int(rng.integers(0, 25)), len(run.samples) - 1)
        try:
            forgotten = change_randomly(run, paths, at, rng)
        except (ConfigError, PlanError):
            continue  # such as a dataset that was dropped, or a skip past the end
        gone |= {document: at for document in forgotten if document not in gone}
        before: list[Sample] = run.samples
        run = run._replace(samples=read_samples(config, "train"))
        assert run.samples[:at] == before[:at]
        for position, sample in enumerate(run.samples):
            for token in sample.held:
                assert position < gone.get(run.locate(token)[:2], position + 1)
        order = RunOrder(config)
        check_samples(run, order)
        check_documents(run, order, rng)
        if not gone:
            assert_difference(diff(config), before, run.samples)
    if RunOrder(config).num_edits:
        assert verify_journal(config, client=SERIAL).num_samples == len(run.samples)
