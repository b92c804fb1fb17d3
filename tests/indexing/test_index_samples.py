"""The sample index: single tasks, with cached lengths and without."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex, naive_boundaries
from zindex.errors import VerificationError
from zindex.indexing import index_tasks as building_samples
from zindex.indexing.index_tasks import IndexTasks, compute_documents

LENGTHS = [3, 0, 5, 2, 7, 0, 4, 9, 1, 6, 0, 0]  # 37 tokens


@pytest.fixture
def prefix(write_corpus: WriteCorpus) -> str:
    return write_corpus(LENGTHS)


def token_starts(plan: Any) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Lengths in document order, and the tokens before each shard of documents."""
    ordered = np.array(LENGTHS)[compute_documents(plan, 0, plan.num_rows)]
    starts = range(0, plan.num_rows, plan.document_layout.shard_length)
    return ordered, [int(ordered[:start].sum()) for start in starts]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("extra_token", [0, 1])
@pytest.mark.parametrize("sequence_length", [1, 3, 4, 37, 100])
def test_any_span_of_boundaries_can_be_computed_alone(
    prefix: str,
    plan_index: PlanIndex,
    tmp_path: Path,
    sequence_length: int,
    extra_token: int,
    drop_last: bool,
) -> None:
    plan, source = plan_index(
        prefix,
        num_samples=60 // sequence_length + 1,
        sequence_length=sequence_length,
        extra_token=extra_token,
        drop_last=drop_last,
        split="valid",
        order="scalable",
        stored="minimal",
        chunk=1,
    )
    ordered, starts = token_starts(plan)
    expected = naive_boundaries(plan, ordered)
    size = plan.num_samples + 1
    assert len(expected) == size
    for start in range(0, size, 5):
        for stop in {start, start + 1, size} - {size + 1}:
            found = IndexTasks(plan, tmp_path, source).compute_boundaries(0, starts, start, stop)
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, expected[start:stop])


@pytest.mark.parametrize("extra_token", [0, 1])
@pytest.mark.parametrize("sequence_length", [1, 3, 4, 37])
def test_a_shard_of_samples_gets_the_documents_that_it_needs(
    prefix: str, plan_index: PlanIndex, tmp_path: Path, sequence_length: int, extra_token: int
) -> None:
    """However many shards of documents there are, a task takes the numbers of a few."""
    plan, source = plan_index(
        prefix,
        num_samples=60 // sequence_length + 1,
        sequence_length=sequence_length,
        extra_token=extra_token,
        order="scalable",
        stored="minimal",
        chunk=1,
    )
    ordered, starts = token_starts(plan)
    expected = naive_boundaries(plan, ordered)
    rows = plan.document_layout.shard_length
    for shard in range(plan.sample_layout.num_shards):
        tasks = IndexTasks(plan, tmp_path, source)
        first, near = tasks.find_partitions(starts, *plan.sample_layout.shard_bounds(shard))
        start, stop = plan.sample_layout.shard_bounds(shard)
        found = tasks.compute_boundaries(first, near, start, stop)
        np.testing.assert_array_equal(found, expected[start:stop])
        used = {row // rows for row, _ in expected[start:stop]}
        assert used <= {*range(first, first + len(near))}
        assert near == starts[first : first + len(near)]
        assert len(near) <= max(used) - min(used) + 3


def test_lengths_that_are_not_cached_are_read_again(
    prefix: str, plan_index: PlanIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, source = plan_index(prefix, num_samples=30, order="scalable", stored="minimal", chunk=1)
    ordered, starts = token_starts(plan)
    asked = []

    def find_first_only(root: Path, rows: tuple[int, int]) -> Any:
        asked.append(rows)
        first = ordered[: plan.document_layout.shard_length].astype(np.int32)
        return first if rows == (0, len(first)) else None

    monkeypatch.setattr(building_samples, "find_shard", find_first_only)
    size = plan.num_samples + 1
    found = IndexTasks(plan, tmp_path, source).compute_boundaries(0, starts, 0, size)
    np.testing.assert_array_equal(found, naive_boundaries(plan, ordered))
    assert asked == sorted(set(asked))
    assert asked[0][0] == 0


def test_tokens_that_are_not_there_are_refused(
    prefix: str, plan_index: PlanIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of the source that name more tokens than its lengths hold."""
    plan, source = plan_index(prefix, sequence_length=4, order="scalable", stored="minimal")
    monkeypatch.setattr(building_samples, "find_shard", lambda root, rows: np.full(12, 1, np.int32))
    message = r"corpus must hold the tokens that its offsets name, boundary 3 is beyond its last"
    with pytest.raises(VerificationError, match=message):
        IndexTasks(plan, tmp_path, source).compute_boundaries(0, [0], 0, plan.num_samples + 1)
