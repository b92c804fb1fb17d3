import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels import numpy_budget
from zindex.kernels.locate import _fill_table, _locate, locate


@pytest.fixture(autouse=True, scope="module", params=[-1, 1 << 62], ids=["kernels", "numpy"])
def _early_values(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_budget, "MAX_VALUES", request.param)
        yield


def naive_locate(numbers: np.ndarray, counts: np.ndarray) -> tuple[list[int], list[int]]:
    """Lay the datasets end to end and look each number up."""
    pairs = [(dataset, k) for dataset, count in enumerate(counts) for k in range(count)]
    return [pairs[n][0] for n in numbers], [pairs[n][1] for n in numbers]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any),
    st.randoms(use_true_random=False),
    st.sampled_from([(np.uint32, np.int16, np.int32), (np.int64, np.int32, np.int64)]),
)
def test_every_number_is_found(counts, random, dtypes):
    numbers = list(range(sum(counts)))
    random.shuffle(numbers)
    datasets, samples = (np.empty(len(numbers), dtype) for dtype in dtypes[1:])
    locate(np.array(numbers, dtypes[0]), np.array(counts), datasets, samples)
    assert (datasets.tolist(), samples.tolist()) == naive_locate(numbers, counts)


def test_far_numbers_and_a_dataset_a_thousandth_of_the_others():
    counts = np.array([10**12, 1, 0, 7, 10**15])
    starts = [0, 10**12, 10**12 + 1, 10**12 + 7, 10**12 + 8, 10**12 + 8 + 10**15 - 1]
    datasets, samples = np.empty(6, np.int16), np.empty(6, np.int64)
    locate(np.array(starts), counts, datasets, samples)
    assert datasets.tolist() == [0, 1, 3, 3, 4, 4]
    assert samples.tolist() == [0, 0, 0, 6, 0, 10**15 - 1]


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_a_few_numbers_are_found_without_a_table(dtype, monkeypatch):
    counts = np.array([0, 3, 0, 0, 5, 1, 0, 0, 0])
    expected = naive_locate(np.arange(9), counts)
    monkeypatch.setattr("zindex.kernels.locate._fill_table", None)
    for number, *pair in zip(range(9), *expected, strict=True):
        dataset, sample = np.empty(1, np.int16), np.empty(1, np.int32)
        locate(np.array([number], dtype), counts, dataset, sample)
        assert [*dataset, *sample] == pair


def test_no_numbers():
    empty = np.empty(0, np.int32)
    locate(empty, np.array([0, 0]), np.empty(0, np.int16), empty)


def test_a_number_beyond_the_last_dataset():
    with pytest.raises(AssertionError):
        locate(np.array([5]), np.array([2, 3]), np.empty(1, np.int16), np.empty(1, np.int32))


def test_python_and_compiled_agree():
    counts = np.array([3, 0, 5, 1])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    numbers = np.arange(9)
    results = []
    for fill, find in ((_fill_table, _locate), (_fill_table.py_func, _locate.py_func)):
        table = np.empty(5, np.int32)
        datasets, samples = np.empty(9, np.int16), np.empty(9, np.int32)
        fill(offsets, 1, table)
        find(numbers, offsets, 1, table, datasets, samples)
        results.append((table.tolist(), datasets.tolist(), samples.tolist()))
    assert results[0] == results[1]
    assert results[0][1:] == naive_locate(numbers, counts)
