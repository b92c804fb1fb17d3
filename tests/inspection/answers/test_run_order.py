"""Positions, samples and documents of runs of every kind, against their torch datasets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus, numbers
from tests.indexing.runs import make_run
from tests.inspection.answers.brute_force import KINDS, draw_run
from zindex.errors import VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers.run_order import RunOrder


@pytest.mark.parametrize("seed", numbers(6, 40))
@pytest.mark.parametrize("kind", KINDS)
def test_every_position_and_every_document(
    kind: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    run = draw_run(kind, seed, tmp_path, write_corpus)
    if seed % 2:  # the others are computed, and searched without an inverse
        zindex.build(run.config, SerialExecutor(), inverse=True)
    order = RunOrder(run.config, run.split)
    assert len(order) == len(run.samples)
    everything = np.arange(len(order))
    found = order.read(np.random.default_rng(seed).permutation(everything))
    for row, position in enumerate(found.positions.tolist()):
        sample, own = run.samples[position], found.parts.owners == row
        assert sample.dataset == found.datasets[row]
        assert sample.epoch == found.epochs[row]
        assert sample.sample == found.samples[row]
        columns = (column[own].tolist() for column in found.parts[1:])
        tokens = [
            run.token(sample.dataset, document, place)
            for document, start, stop in zip(*columns, strict=True)
            for place in range(start, stop)
        ]
        assert set(tokens) == sample.held
        length = order.sources[found.sources[row]].sequence_length
        if len(tokens) <= length + 1:  # an input of cut samples may follow a label
            assert tokens[:length] == sample.tokens
            assert [run.locate(token)[1] for token in tokens[:length]] == [
                document for document in sample.documents if document >= 0
            ]
    holders: dict[int, set[int]] = {}
    for position, sample in enumerate(run.samples):
        for token in sample.held:
            holders.setdefault(token, set()).add(position)
    rng = np.random.default_rng(seed)
    for number, path in enumerate(order.paths):
        corpus = int(path[-1])
        lengths = run.lengths[corpus]
        for document in rng.choice(len(lengths), 8, replace=False).tolist():
            start = int(rng.integers(lengths[document])) if rng.integers(2) else 0
            stop = int(rng.integers(start, lengths[document])) + 1
            wanted = set[int]()
            for place in range(start, stop):
                wanted |= holders.get(run.token(corpus, document, place), set())
            holding = order.find(number, document, start, stop)
            assert holding.positions.tolist() == sorted(wanted)
            for row, position in enumerate(holding.positions.tolist()):
                own = holding.parts.owners == row
                assert own.any()
                inside = {
                    run.token(corpus, document, place)
                    for first, last in zip(
                        holding.parts.starts[own], holding.parts.stops[own], strict=True
                    )
                    for place in range(first, last)
                }
                asked = {run.token(corpus, document, place) for place in range(start, stop)}
                assert inside == asked & run.samples[position].held


@pytest.mark.parametrize("name", ["shuffle_index", "document_index", "sample_index"])
@pytest.mark.parametrize("verify", ["never", "first"])
def test_damage_is_no_answer(
    name: str, verify: Any, tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    config = make_run(tmp_path, write_corpus)
    zindex.build(config, SerialExecutor())
    order = RunOrder(config, verify=verify)
    order.read(np.arange(len(order)))
    for shard in Path(config.index).glob(f"gpt-train-*/{name}/c/0*"):
        content = bytearray((shard / "0" if shard.is_dir() else shard).read_bytes())
        content[:16] = b"\xf0" * 16
        (shard / "0" if shard.is_dir() else shard).write_bytes(content)
    order = RunOrder(config, verify=verify)
    with pytest.raises(VerificationError):
        order.read(np.arange(len(order)))
