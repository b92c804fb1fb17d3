"""Where windows lie: AstrAI's rule, every target once, documents whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.keyed.windows import PackedWindows, StreamWindows, WindowSpans, divide_spans
from zindex.plan.tail import Tail, count_windows

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def bounds_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def stream(bounds: np.ndarray, *sizes: int, tail: Tail = Tail.DROP_LAST) -> StreamWindows:
    return StreamWindows(bounds[:-1], bounds[1:], *sizes, tail)


def runs(spans: WindowSpans) -> list[tuple[int, int, int, int]]:
    return list(zip(*(column.tolist() for column in spans), strict=True))


# T, w, s, windows: the table of AstrAI's rule.
@pytest.mark.parametrize(
    ("length", "window_size", "stride", "count"),
    [
        (64, 64, 64, 0),
        (65, 64, 64, 1),
        (128, 64, 64, 1),
        (129, 64, 64, 2),
        (200, 64, 32, 5),
        (200, 64, 64, 3),
        (0, 1, 1, 0),
        (2, 1, 1, 1),
    ],
)
def test_d5_window_table(length: int, window_size: int, stride: int, count: int) -> None:
    assert count_windows(np.array([length]), window_size, stride).tolist() == [count]
    assert stream(np.array([0, length]), window_size, stride).num_windows == count


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 12))
def test_d5_windows_are_those_that_fit(length: int, window_size: int, stride: int) -> None:
    windows = stream(np.array([0, length]), window_size, stride)
    fitting = [begin for begin in range(0, length, stride) if begin + window_size + 1 <= length]
    assert windows.num_windows == len(fitting)
    found = windows.find_spans(np.arange(len(fitting)))
    assert found.starts.tolist() == fitting
    assert (found.lengths == window_size + 1).all()


@given(LENGTHS, st.integers(1, 6))
def test_d5_with_the_tail_every_target_comes_once(lengths: list[int], window_size: int) -> None:
    bounds = bounds_of(lengths)
    windows = stream(bounds, window_size, window_size, tail=Tail.PAD)
    found = windows.find_spans(np.arange(windows.num_windows))
    targets = [
        value for _, _, start, length in runs(found) for value in range(start + 1, start + length)
    ]
    firsts = set(bounds[:-1].tolist())
    assert targets == [value for value in range(int(bounds[-1])) if value not in firsts]


@given(LENGTHS, st.integers(1, 6), st.integers(1, 8), st.sampled_from([Tail.DROP_LAST, Tail.PAD]))
def test_windows_of_documents_stay_within_them(
    lengths: list[int], window_size: int, stride: int, tail: Tail
) -> None:
    bounds = bounds_of(lengths)
    windows = stream(bounds, window_size, stride, tail=tail)
    counts = [
        stream(np.array([0, length]), window_size, stride, tail=tail).num_windows
        for length in lengths
    ]
    assert windows.num_windows == sum(counts)
    found = windows.find_spans(np.arange(windows.num_windows))
    documents = np.repeat(np.arange(len(lengths)), counts)
    assert (found.starts >= bounds[documents]).all()
    assert (found.starts + found.lengths <= bounds[documents + 1]).all()
    assert ((found.lengths >= 2) & (found.lengths <= window_size + 1)).all()


@given(LENGTHS, st.integers(1, 6), st.integers(1, 8))
def test_marked_windows_are_the_same_ones_cut_at_documents(
    lengths: list[int], window_size: int, stride: int
) -> None:
    bounds = bounds_of(lengths)
    whole = stream(bounds[[0, -1]], window_size, stride, tail=Tail.PAD)
    numbers = np.arange(whole.num_windows)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    wanted = []
    for row, _, start, length in runs(whole.find_spans(numbers)):
        for document in dict.fromkeys(owners[start : start + length].tolist()):
            values = np.flatnonzero(owners[start : start + length] == document)
            wanted.append((row, int(values[0]), start + int(values[0]), len(values)))
    assert runs(divide_spans(whole.find_spans(numbers), bounds)) == wanted


@given(LENGTHS, st.integers(1, 6))
def test_packed_samples_hold_every_document_once(lengths: list[int], window_size: int) -> None:
    bounds = bounds_of(lengths)
    packed = PackedWindows(bounds[:-1], bounds[1:], window_size)
    found = packed.find_spans(np.arange(packed.num_windows))
    targets = []
    filled = np.zeros(packed.num_windows, np.int64)
    for row, offset, start, length in runs(found):
        assert filled[row] == offset
        filled[row] += length
        targets += list(range(start + 1, start + length))
    assert (filled <= window_size + 1).all()
    firsts = set(bounds[:-1].tolist())
    assert sorted(targets) == [value for value in range(int(bounds[-1])) if value not in firsts]


def test_packed_samples_are_found_in_any_order() -> None:
    bounds = bounds_of([3, 3, 4, 1])
    packed = PackedWindows(bounds[:-1], bounds[1:], 4)
    every = runs(packed.find_spans(np.arange(packed.num_windows)))
    backwards = packed.find_spans(np.arange(packed.num_windows)[::-1])
    again = [(packed.num_windows - 1 - row, *rest) for row, *rest in runs(backwards)]
    assert sorted(again) == sorted(every)
