"""Lengths of a dataset: the same facts from a store, a link and a .idx file."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zindex
from tests.conftest import WriteCorpus
from zindex.errors import NotReadyError, SourceError, StoreError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.formats.idx_writer import write_index
from zindex.ingest import length_source as module
from zindex.ingest.length_source import (
    LengthSource,
    is_store,
    join_digests,
    num_blocks,
    open_source,
)
from zindex.plan.build_plan import SourceFacts
from zindex.store.layout import ChunkGrid

SERIAL = SerialExecutor()
LENGTHS = [3, 0, 5, 2, 7, 0, 0, 4, 6, 40, 1, 9]
# Part of the identity of every index: these never change.
DIGEST = "cec12129043f490abf1180b7e9da5133c4fa25bb2ee9d6ae0fec0c3a55fb2351"
EMPTY_DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LengthSource]:
    folder = tmp_path_factory.mktemp("sources")
    write_index(folder / "corpus.idx", np.uint16, LENGTHS, range(len(LENGTHS) + 1))
    np.zeros(sum(LENGTHS), np.uint16).tofile(folder / "corpus.bin")
    prefix = str(folder / "corpus")
    grid = ChunkGrid(2, 4)
    zindex.convert(prefix, folder / "whole.zarr", client=SERIAL, grid=grid)
    zindex.convert(prefix, folder / "linked.zarr", client=SERIAL, grid=grid, link=True)
    return {
        "prefix": open_source(prefix),
        "store": open_source(folder / "whole.zarr"),
        "link": open_source(f"{folder}/linked.zarr"),
        "pickled": pickle.loads(pickle.dumps(open_source(prefix))),
    }


def test_facts_do_not_depend_on_the_form(sources: dict[str, LengthSource]) -> None:
    expected = SourceFacts(DIGEST, num_sequences=12, num_tokens=77)
    assert {form: source.facts for form, source in sources.items()} == dict.fromkeys(
        sources, expected
    )


@given(span=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_spans_do_not_depend_on_the_form(
    sources: dict[str, LengthSource], span: tuple[int, int]
) -> None:
    start, stop = span
    for source in sources.values():
        assert source.count_tokens(start, stop) == sum(LENGTHS[start:stop])
        if start <= stop:
            lengths = source.lengths(start, stop)
            assert (lengths.dtype, lengths.tolist()) == (np.int32, LENGTHS[start:stop])


def test_spans_outside_are_refused(sources: dict[str, LengthSource]) -> None:
    for source in sources.values():
        with pytest.raises(IndexError, match=r"\[10, 13\)"):
            source.lengths(10, 13)


def test_digest_is_taken_in_blocks(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of digests, whichever task computes a block."""
    import hashlib

    prefix = write_corpus(LENGTHS)
    monkeypatch.setattr(module, "DIGEST_BLOCK", 5)
    assert [num_blocks(count) for count in (0, 1, 5, 6)] == [0, 1, 1, 2]
    blocks = [np.array(LENGTHS[i : i + 5], "<i4").tobytes() for i in (0, 5, 10)]
    expected = join_digests(hashlib.sha256(block).digest() for block in blocks)
    (store,) = zindex.convert(prefix, tmp_path / "store", client=SERIAL)
    assert open_source(prefix).facts.length_digest == expected
    assert store.spec["length_digest"] == expected
    assert expected != DIGEST


def test_frozen_digests(write_corpus: WriteCorpus) -> None:
    assert open_source(write_corpus([])).facts == SourceFacts(EMPTY_DIGEST, 0, 0)
    assert open_source(write_corpus([1], name="one")).facts.length_digest == (
        "41f758f2e5cc078d3795b4fc0cb60c2d735fa92cc020572bdc982dd2d564d11b"
    )


def test_same_lengths_are_the_same_source(write_corpus: WriteCorpus) -> None:
    """An index depends on lengths alone: not on tokens, their dtype, or documents."""
    first = write_corpus(LENGTHS)
    other = write_corpus(
        LENGTHS, name="other", dtype=np.int64, tokens=[7] * 77, sequences_per_document=5
    )
    assert open_source(first).facts == open_source(other).facts


def test_missing_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StoreNotFoundError, match=r"no dataset at .*/web: neither .*web\.idx exists"
    ):
        open_source(tmp_path / "web")


def test_index_can_be_planned_without_the_bin(write_corpus: WriteCorpus) -> None:
    prefix = write_corpus(LENGTHS)
    os.unlink(f"{prefix}.bin")
    assert open_source(prefix, require_bin=False).facts.length_digest == DIGEST
    with pytest.raises(SourceError, match=r"corpus\.bin is not \(No such file"):
        open_source(prefix)


def test_store_goes_before_a_pair_of_the_same_name(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    other = write_corpus(LENGTHS, name="other")
    prefix = write_corpus([1, 2])
    assert not is_store(prefix)
    zindex.convert(other, prefix, client=SERIAL)
    assert is_store(prefix)
    assert open_source(prefix).facts.num_tokens == 77


def test_store_that_is_not_finished_is_not_ready(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    (store,) = zindex.convert(write_corpus(LENGTHS), tmp_path / "store", client=SERIAL)
    os.unlink(store.root / "zarr.json")
    assert is_store(store.root)
    with pytest.raises(NotReadyError, match="is not built yet: 4 of 4 shards"):
        open_source(store.root)


def test_an_index_is_not_a_dataset(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "datasets": [write_corpus(LENGTHS)],
        "sequence_length": 4,
        "split": "1",
        "index": str(tmp_path),
    }
    ((_, result),) = zindex.build(config, client=SERIAL).items()
    with pytest.raises(StoreError, match="must hold tokens, it holds index"):
        open_source(result.store.root)
