"""Samples that a report reads: every one of short runs, blocks of long ones."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.inspection.answers.brute_force import KINDS, draw_run
from zindex.arrays import Int64Array
from zindex.inspection.answers.run_order import RunOrder, Samples
from zindex.kernels.bijection import permute
from zindex.maintenance.edits.order_sources import SampleParts
from zindex.plan.keys import Stage, split_key
from zindex.reporting.observations import choose_positions, join_observations, observe
from zindex.reporting.shuffle_quality import measure_shuffle


@pytest.mark.parametrize("kind", KINDS)
def test_all_samples(kind: str, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, 300, tmp_path, write_corpus)
    seen = observe(RunOrder(run.config, run.split))
    assert seen.is_exact
    assert seen.datasets.tolist() == [sample.dataset for sample in run.samples]
    assert seen.epochs.tolist() == [sample.epoch for sample in run.samples]
    assert seen.num_inputs.tolist() == [len(sample.tokens) for sample in run.samples]
    firsts = [run.locate(sample.text[0])[1] for sample in run.samples]
    assert seen.documents.tolist() == firsts
    blocks = observe(RunOrder(run.config, run.split), max_observed=20)
    assert 0 < len(blocks.positions) < seen.num_positions
    assert blocks.documents.tolist() == seen.documents[blocks.positions].tolist()


def test_blocks_cover_a_long_run() -> None:
    positions, blocks = choose_positions(10**12 + 7, 1 << 16)
    assert len(positions) == len(blocks) == 1 << 15
    assert (positions[0], positions[-1]) == (0, 10**12 + 6)
    assert (np.diff(positions) > 0).all()
    assert ((np.diff(positions) == 1) == (np.diff(blocks) == 0)).all()
    assert choose_positions(100, 100)[0].tolist() == list(range(100))


def test_several_orders_are_joined() -> None:
    from tests.reporting.orders import make_order

    parts = [make_order(np.zeros(size, np.int64), np.arange(size)) for size in (3, 2)]
    seen = join_observations(parts)
    assert seen.num_positions == 5
    assert seen.positions.tolist() == [0, 1, 2, 3, 4]
    assert seen.datasets.tolist() == seen.blocks.tolist() == [0, 0, 0, 1, 1]
    assert seen.documents.tolist() == [0, 1, 2, 0, 1]


class _Keyed:
    """A run of a billion samples in a keyed or a sorted order, one document each."""

    sources = (SimpleNamespace(sequence_length=8),)

    def __init__(self, is_sorted: bool) -> None:
        self.is_sorted = is_sorted

    def __len__(self) -> int:
        return 10**9

    def read(self, positions: Int64Array) -> Samples:
        keys = split_key(1, Stage.BLEND, "train")
        documents = positions if self.is_sorted else permute(positions, len(self), keys)
        zeros = np.zeros_like(positions)
        parts = SampleParts(np.arange(len(positions)), documents, zeros, zeros + 9)
        return Samples(positions, zeros, zeros, documents, zeros, parts)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_billion_samples_are_tested_in_seconds(is_sorted: bool) -> None:
    order: Any = _Keyed(is_sorted)
    start = time.process_time()
    tests = measure_shuffle(observe(order))
    assert time.process_time() - start < 20
    assert ("bad" in {test.verdict for test in tests}) == is_sorted
