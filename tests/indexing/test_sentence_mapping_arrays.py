"""A mapping is the same from a pair, its Zarr store and memory; it is built when needed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.runs import ensure_store
from tests.indexing.test_sentence_mapping import EXPECTED_SPANS, PLANS, make_plan, source
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.ensure import BuildRequest
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import (
    MappingArrays,
    compute_mapping,
    memory_facts,
    plan_mapping,
    stored_facts,
)
from zindex.indexing.store_build import find_index
from zindex.ingest.convert import convert
from zindex.ingest.length_source import open_source
from zindex.kernels.sentence_mapping import sentence_rule
from zindex.plan.sentence_mapping import SentenceFacts

__all__ = ["source"]  # a fixture


def test_a_pair_and_its_store_have_the_same_mappings(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    prefix = write_corpus([5, 6, 7, 9, 3, 3, 3, 3], sequences_per_document=3)
    (store,) = convert(prefix, tmp_path / "store", client=SerialExecutor())
    pair, zarr = (SentenceSource(open_source(path)) for path in (prefix, str(store.root)))
    assert stored_facts(pair) == stored_facts(zarr)
    in_memory = memory_facts(pair.sentences.facts, np.array([0, 3, 6, 8]))
    assert in_memory == stored_facts(pair)
    # A store without the digest, as other writers may leave it, gives it from its array.
    reader: Any = zarr.sentences.reader
    spec = {name: value for name, value in reader.spec.items() if name != "document_digest"}
    bare = replace(zarr.sentences, reader=replace(reader, spec=spec))
    assert stored_facts(SentenceSource(bare)) == stored_facts(pair)
    assert zarr.bounds(0, 3).tolist() == pair.bounds(0, 3).tolist() == [0, 3, 6, 8]


@pytest.mark.parametrize("name", ["one epoch", "minimal"])
def test_a_needed_mapping_is_built_and_found(
    tmp_path: Path, source: SentenceSource, name: str
) -> None:
    plan = make_plan(source, **PLANS[name])
    needed = BuildRequest(plan, str(tmp_path / "index"), SentenceSource(source.sentences))
    assert find_index(needed.store_plan) is None
    store = ensure_store(needed)
    assert find_index(needed.store_plan) == store
    arrays = MappingArrays.open(store)
    bounds = source.bounds(plan.start, plan.stop)
    lengths = source.sentences.lengths(plan.first_sentence, plan.stop_sentence)
    assert np.array_equal(np.asarray(arrays.sample_index), compute_mapping(plan, bounds, lengths))
    assert (arrays.stored_shuffle is None) == (name == "minimal")
    with pytest.raises(IndexError, match=rf"rows \[{len(arrays.shuffle_index)}, .* are outside"):
        arrays.find_samples(np.array([0, len(arrays.shuffle_index)]))


def test_a_split_knows_its_sentences(source: SentenceSource) -> None:
    plan = make_plan(source, "valid")
    assert (plan.first_sentence, plan.stop_sentence) == (62, 82)
    assert plan.rule == sentence_rule(50, 1, 0)
    facts = SentenceFacts(source.sentences.facts, "00" * 32, len(source.bounds(0, 15)) - 1)
    span = EXPECTED_SPANS["train"]
    named = plan_mapping(source, span, facts=facts, split="train", max_sequence_length=9, seed=1)
    assert named.source is facts
    with pytest.raises(PlanError, match=r"documents of \[0, 15\), got \[11, 16\)"):
        plan_mapping(source, range(11, 16), split="valid", max_sequence_length=9, seed=1)


@pytest.mark.parametrize("name", ["keyed", "minimal", "minimal, repeated", "drawn once"])
def test_each_epoch_has_each_sentence_once(
    tmp_path: Path, source: SentenceSource, name: str
) -> None:
    """All but those of documents with a sentence that is too long."""
    plan = make_plan(source, **PLANS[name])
    needed = BuildRequest(plan, str(tmp_path), SentenceSource(source.sentences))
    arrays = MappingArrays.open(ensure_store(needed))
    bounds = source.bounds(plan.start, plan.stop)
    lengths = source.sentences.lengths(0, int(bounds[-1]))
    expected = [
        sentence
        for start, stop in pairwise(bounds.tolist())
        for sentence in range(start, stop)
        if stop - start == 1 or lengths[start:stop].max() <= 512
    ]
    samples = arrays.find_samples(np.arange(len(arrays.shuffle_index))).tolist()
    epochs = arrays.epochs_of(arrays.shuffle_index.take(np.arange(len(samples))))
    for epoch in range(epochs[-1] + 1):
        rows = [row for row, of in zip(samples, epochs, strict=True) if of == epoch]
        assert sorted(k for start, stop, _ in rows for k in range(start, stop)) == expected
