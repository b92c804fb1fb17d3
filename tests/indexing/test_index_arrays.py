"""Arrays of an index: stored, computed on read and in memory, the same to a reader."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing import index_arrays
from zindex.indexing.computed_arrays import ComputedArray
from zindex.indexing.ensure import build_store
from zindex.indexing.index_arrays import (
    IndexArrays,
    compute_index_arrays,
    keyed_documents,
    keyed_samples,
    open_index_arrays,
)
from zindex.plan.index_plan import IndexPlan
from zindex.store.rows import Spans, read_many

LENGTHS = [3, 0, 5, 2, 7, 0, 0, 4, 6, 40, 1, 9, 8]
NAMES = ("document_index", "sample_index", "shuffle_index")
#: 13 documents, 85 tokens: 4 epochs of samples, chunks of 3 and shards of 12 rows.
SETTINGS: dict[str, Any] = {"num_samples": 70, "sequence_length": 4, "chunk": 3}


@pytest.fixture
def opened(
    write_corpus: WriteCorpus, plan_index: PlanIndex, tmp_path: Path
) -> dict[str, IndexArrays]:
    forms = {}
    for stored in ("all", "minimal"):
        plan, source = plan_index(
            write_corpus(LENGTHS), order="scalable", stored=stored, **SETTINGS
        )
        result = run_builds(build_store(plan, source, tmp_path, SerialExecutor()))
        forms[stored] = open_index_arrays(result.store)
    forms["memory"] = compute_index_arrays(plan, source.lengths(0, len(LENGTHS)))
    return forms


def test_forms_are_equal(opened: dict[str, IndexArrays]) -> None:
    for name in NAMES:
        stored = getattr(opened["all"], name)
        for form in ("minimal", "memory"):
            other = getattr(opened[form], name)
            assert (other.dtype, other.shape) == (stored.dtype, stored.shape)
            np.testing.assert_array_equal(np.asarray(other), np.asarray(stored))
    assert isinstance(opened["minimal"].document_index, ComputedArray)
    assert isinstance(opened["minimal"].shuffle_index, ComputedArray)
    assert not isinstance(opened["all"].document_index, ComputedArray)
    assert len(opened["all"].document_index) == 4 * len(LENGTHS)


@settings(max_examples=200)
@given(data=st.data())
def test_any_rows_of_a_computed_array_equal_the_stored_ones(
    opened: dict[str, IndexArrays], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["document_index", "shuffle_index"]))
    computed, stored = getattr(opened["minimal"], name), getattr(opened["all"], name)
    size = len(stored)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    np.testing.assert_array_equal(computed.read(start, stop), stored.read(start, stop))
    out = np.full(stop - start, 99, computed.dtype)
    assert computed.read(start, stop, out) is out
    np.testing.assert_array_equal(out, stored.read(start, stop))
    index = data.draw(
        st.integers(-size, size - 1)
        | st.slices(size)
        | st.lists(st.integers(-size, size - 1)).map(lambda rows: np.array(rows, np.int64))
    )
    np.testing.assert_array_equal(computed[index], stored[index])
    np.testing.assert_array_equal(computed[index], np.asarray(stored)[index])


@pytest.mark.parametrize("form", ["all", "minimal"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_outside_are_refused(opened: dict[str, IndexArrays], form: str, name: str) -> None:
    array = getattr(opened[form], name)
    size = len(array)
    np.testing.assert_array_equal(array[-1], np.asarray(array)[-1])
    np.testing.assert_array_equal(array[-size], array[0])
    for index in (size, -size - 1, np.int64(size + 100)):
        with pytest.raises(IndexError, match=f"index {index} is out of range for {name} of length"):
            array[index]
    for start, stop in ((-1, 2), (3, 2), (0, size + 1)):
        with pytest.raises(IndexError, match=rf"rows \[{start}, {stop}\) are outside {name} of"):
            array.read(start, stop)
    assert len(array[size:]) == len(array[5:2]) == 0


def test_computed_array_pickles(opened: dict[str, IndexArrays]) -> None:
    array = opened["minimal"].shuffle_index
    again = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(np.asarray(again), np.asarray(array))


def test_computed_array_looks_like_a_stored_one(opened: dict[str, IndexArrays]) -> None:
    computed, stored = opened["minimal"].document_index, opened["all"].document_index
    for name in ("ndim", "size", "nbytes", "shape", "dtype"):
        assert getattr(computed, name) == getattr(stored, name)
    assert repr(computed) == "<ComputedArray document_index (52,) int32>"
    with pytest.raises(ValueError, match="always copied; leave copy out"):
        np.array(computed, copy=False)


@pytest.mark.parametrize("extra_token", [0, 1])
@pytest.mark.parametrize("num_samples", [5, 70])
def test_numpy_and_kernels_agree(
    write_corpus: WriteCorpus,
    plan_index: PlanIndex,
    monkeypatch: pytest.MonkeyPatch,
    extra_token: int,
    num_samples: int,
) -> None:
    settings = SETTINGS | {"extra_token": extra_token, "num_samples": num_samples}
    plan, source = plan_index(write_corpus(LENGTHS), order="megatron", **settings)
    monkeypatch.setattr(index_arrays, "_BLOCK", 3)
    both = []
    for is_loaded in (False, True):
        monkeypatch.setattr(index_arrays, "is_loaded", lambda kernel, answer=is_loaded: answer)
        both.append(compute_index_arrays(plan, source.lengths(0, len(LENGTHS))))
    for few, many in zip(*both, strict=True):
        assert few.dtype == many.dtype
        np.testing.assert_array_equal(few, many)


@pytest.mark.parametrize("order", ["megatron", "scalable"])
@pytest.mark.parametrize("extra_token", [0, 1])
def test_partial_last_sample(
    write_corpus: WriteCorpus, plan_index: PlanIndex, order: str, extra_token: int
) -> None:
    """85 tokens in samples of 10: the ninth ends with the last document."""
    plan, source = plan_index(
        write_corpus(LENGTHS),
        order=order,
        sequence_length=10,
        extra_token=extra_token,
        drop_last=False,
        split="valid",
    )
    arrays = compute_index_arrays(plan, source.lengths(0, len(LENGTHS)))
    last = int(arrays.document_index[-1])
    assert len(arrays.sample_index) == 9 + 1
    assert arrays.sample_index[-1].tolist() == [12, LENGTHS[last] - extra_token]


def test_keyed_arrays_and_their_inverses(opened: dict[str, IndexArrays]) -> None:
    computed: Any = opened["minimal"].document_index
    plan: IndexPlan = computed.plan
    for keyed, name in ((keyed_documents(plan), NAMES[0]), (keyed_samples(plan), NAMES[2])):
        stored = np.asarray(getattr(opened["all"], name))
        assert (keyed.dtype, len(keyed)) == (stored.dtype, len(stored))
        np.testing.assert_array_equal(np.asarray(keyed), stored)
        rows = np.array([5, 0, len(stored) - 1, 5])
        np.testing.assert_array_equal(keyed.take(rows), stored[rows])
        starts, stops = np.array([3, 0, 20]), np.array([9, 2, 20])
        [found] = read_many([Spans(keyed, starts, stops)])
        np.testing.assert_array_equal(found, [*stored[3:9], *stored[:2]])
        for value in range(int(stored.max()) + 3):
            own = np.sort(keyed.find_rows(np.array([value])))
            np.testing.assert_array_equal(own, np.flatnonzero(stored == value))
        with pytest.raises(IndexError, match="are outside"):
            keyed.take(np.array([len(stored)]))
