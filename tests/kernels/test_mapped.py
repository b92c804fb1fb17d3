"""Spans of arrays that lie anywhere in memory, against numpy on the joined array."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zindex.kernels import mapped

Array = npt.NDArray[Any]


def gather(
    arrays: list[list[Array]],
    spans: list[list[tuple[int, int, int]]],
    targets: list[Array],
    form: int,
) -> int:
    """Run the kernel on groups of extents, spans (start, stop, place) and targets."""
    groups = np.empty((len(arrays), mapped.GROUP_LENGTH), np.int64)
    held: list[Array] = []
    stop = 0
    for row, extents, own, target in zip(groups, arrays, spans, targets, strict=True):
        first, stop = stop, stop + len(own)
        ends = np.cumsum([len(extent) for extent in extents])
        addresses = np.array([extent.ctypes.data for extent in extents])
        held += [ends, addresses]
        dtype = extents[0].dtype if extents else np.dtype(np.int32)
        width = -dtype.itemsize if dtype.kind == "i" else dtype.itemsize
        row[:] = (
            first, stop, 0, ends.ctypes.data, addresses.ctypes.data, len(extents), width,
            target.ctypes.data, target.size, form,
        )  # fmt: skip
    flat = np.array([span for own in spans for span in own], np.int64).reshape(-1, 3)
    starts, stops, places = (np.ascontiguousarray(column) for column in flat.T)
    return mapped.gather_mapped(groups, starts, stops, places)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("form", [mapped.COPY, mapped.WIDEN, mapped.TRUTH])
def test_any_span_is_what_numpy_gives(dtype: str, form: int) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, 1, limits.min, limits.max, 5, 0, 7, 0, 9, 2], dtype)
    extents = [values[:3].copy(), values[3:3].copy(), values[3:4].copy(), values[4:].copy()]
    kind = {mapped.COPY: np.dtype(dtype), mapped.WIDEN: np.dtype(np.int64)}.get(
        form, np.dtype(bool)
    )
    for start in range(11):
        for stop in range(start, 11):
            target = np.full(14, 1, kind)
            assert gather([extents], [[(start, stop, 2)]], [target], form) == -1
            wanted = np.full(14, 1, kind)
            part = values[start:stop]
            wanted[2 : 2 + stop - start] = part != 0 if form == mapped.TRUTH else part
            assert (target == wanted).all()


def test_several_arrays_and_spans_in_one_call() -> None:
    first, second = np.arange(10, dtype=np.int32), np.arange(100, 110, dtype=np.uint16)
    targets = [np.zeros(6, np.int64), np.zeros((2, 3), np.int64)]
    spans = [[(8, 10, 0), (0, 3, 3)], [(1, 4, 3), (0, 0, 6), (9, 10, 0)]]
    assert gather([[first[:5], first[5:]], [second]], spans, targets, mapped.WIDEN) == -1
    assert targets[0].tolist() == [8, 9, 0, 0, 1, 2]
    assert targets[1].tolist() == [[109, 0, 0], [101, 102, 103]]


@pytest.mark.parametrize(
    "span", [(-1, 2, 0), (0, 11, 0), (9, 12, 0), (3, 2, 0), (0, 5, 4), (0, 1, -1), (0, 1, 8)]
)
def test_a_span_outside_is_refused_and_writes_nothing(span: tuple[int, int, int]) -> None:
    targets = [np.zeros(8, np.int64), np.zeros(8, np.int64)]
    values = [[np.arange(1, 11)], [np.arange(1, 11)]]
    assert gather(values, [[(0, 1, 0)], [(1, 2, 0), span]], targets, mapped.WIDEN) == 1
    assert targets[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert targets[1].tolist() == [2, 0, 0, 0, 0, 0, 0, 0]


def test_groups_share_spans_that_lie_further_on_in_one_of_them() -> None:
    values = np.arange(10, 20, dtype=np.int32)
    ends, addresses = np.array([10]), np.array([values.ctypes.data])
    targets = np.zeros((2, 4), np.int64)
    groups = np.array(
        [
            [0, 2, shift, ends.ctypes.data, addresses.ctypes.data, 1, -4, row.ctypes.data, 4, 1]
            for shift, row in enumerate(targets)
        ]
    )
    spans = np.array([0, 7]), np.array([2, 9]), np.array([0, 2])
    assert mapped.gather_mapped(groups, *spans) == -1
    assert targets.tolist() == [[10, 11, 17, 18], [11, 12, 18, 19]]


def test_an_array_without_extents_has_only_empty_spans() -> None:
    target = np.zeros(2, np.int64)
    assert gather([[]], [[(0, 0, 1)]], [target], mapped.WIDEN) == -1
    assert gather([[]], [[(0, 1, 1)]], [target], mapped.WIDEN) == 0
