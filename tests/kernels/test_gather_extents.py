"""Spans of arrays in memory and in files, against numpy on the joined array."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from zindex.kernels.gather_extents import COPY, LARGEST, STATE_LENGTH, TRUTH, WIDEN, gather_extents

Array = npt.NDArray[Any]

#: Bytes of a buffer that most spans exceed.
SCRATCH_NBYTES = 16


class Groups:
    """Groups as arguments of the kernel, and the memory at their addresses."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.spans: list[tuple[int, int, int]] = []
        self.held: list[Array] = [np.empty(SCRATCH_NBYTES, np.uint8)]
        self.cells = np.zeros((8, 3), np.int64)
        self.descriptors = np.zeros(8, np.int32)
        self.used = np.zeros(8, np.uint8)
        self.maps = np.zeros(8, np.int64)
        for number, row in enumerate(self.cells):
            row[:] = (
                self.descriptors[number:].ctypes.data,
                self.used[number:].ctypes.data,
                self.maps[number:].ctypes.data,
            )
        #: The next group, the first one that shares its spans, and the next span.
        self.state = np.array([-1] + [0] * (STATE_LENGTH - 1))

    def add(
        self,
        parts: list[Array],
        target: Array,
        form: int,
        spans: list[tuple[int, int, int]] | None = None,
        *,
        shift: int = 0,
        files: dict[int, int] | None = None,
    ) -> None:
        """Add the spans (start, stop, place) of extents, or for None the former spans.

        ``files`` gives extents that are in a file, number of the extent -> number of the file.
        """
        bounds = self.rows[-1][:2] if spans is None else ()
        if spans is not None:
            self.spans += spans
            bounds = len(self.spans) - len(spans), len(self.spans)
        ends = np.cumsum([len(part) for part in parts])
        places = np.array([part.ctypes.data for part in parts], np.int64)
        file_of = np.full(len(parts), -1, np.int32)
        for extent, number in (files or {}).items():
            places[extent], file_of[extent] = 3, number
        self.held += [ends, places, file_of, *parts, target]
        dtype = parts[0].dtype if parts else np.dtype(np.int32)
        addresses = (array.ctypes.data for array in (ends, places, file_of, self.cells))
        width = -dtype.itemsize if dtype.kind == "i" else dtype.itemsize
        written = len(parts), width, target.ctypes.data, target.size, form
        self.rows.append((*bounds, shift, *addresses, *written, 0))

    def gather(self) -> bool:
        """Run the kernel from its state on."""
        flat = np.array(self.spans, np.int64).reshape(-1, 3).T
        groups, scratch = np.array(self.rows, np.int64), self.held[0].ctypes.data
        spans = (np.ascontiguousarray(column) for column in flat)
        is_done = gather_extents(groups, *spans, scratch, SCRATCH_NBYTES, 0, self.state)
        #: The largest values of the groups.
        self.largest = groups[:, LARGEST].tolist()
        return is_done


def gather(
    arrays: list[list[Array]],
    spans: list[list[tuple[int, int, int]]],
    targets: list[Array],
    form: int,
) -> int:
    """Return the group at which the kernel stops, or -1."""
    groups = Groups()
    for parts, own, target in zip(arrays, spans, targets, strict=True):
        groups.add(parts, target, form, own)
    return -1 if groups.gather() else int(groups.state[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("form", [COPY, WIDEN, TRUTH])
@pytest.mark.parametrize("in_files", [{}, {0: 0, 3: 1}])
def test_any_span_equals_numpy(
    dtype: str, form: int, in_files: dict[int, int], tmp_path: Path
) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, 1, limits.min, limits.max, 5, 0, 7, 0, 9, 2], dtype)
    parts = [values[:3].copy(), values[3:3].copy(), values[3:4].copy(), values[4:].copy()]
    kind = {COPY: np.dtype(dtype), WIDEN: np.dtype(np.int64)}.get(form, np.dtype(bool))
    opened = {}
    for extent, number in in_files.items():
        path = tmp_path / str(number)
        path.write_bytes(b"xyz" + parts[extent].tobytes())
        opened[number] = os.open(path, os.O_RDONLY)
    for start in range(11):
        for stop in range(start, 11):
            target = np.full(14, 1, kind)
            groups = Groups()
            groups.add(parts, target, form, [(start, stop, 2)], files=in_files)
            for number, descriptor in opened.items():
                groups.descriptors[number] = descriptor + 1
            assert groups.gather()
            wanted = np.full(14, 1, kind)
            part = values[start:stop]
            wanted[2 : 2 + stop - start] = part != 0 if form == TRUTH else part
            assert (target == wanted).all()
    for descriptor in opened.values():
        os.close(descriptor)


def test_it_stops_at_a_closed_file_and_goes_on(tmp_path: Path) -> None:
    tokens = np.arange(40, dtype=np.int32)
    path = tmp_path / "tokens"
    path.write_bytes(b"xyz" + tokens.tobytes())
    groups = Groups()
    targets = np.full((3, 6), -1)
    groups.add([tokens[:20], tokens[20:]], targets[0], WIDEN, [(3, 6, 0), (17, 20, 3)])
    groups.add([tokens], targets[1], WIDEN, shift=1, files={0: 5})
    groups.add([tokens], targets[2], WIDEN, shift=2)
    assert not groups.gather()
    assert groups.state[:3].tolist() == [1, 0, 0]
    with path.open("rb") as file:
        groups.descriptors[5] = file.fileno() + 1
        assert groups.gather()
        assert groups.used.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
        wanted = np.array([3, 4, 5, 17, 18, 19])
        assert (targets == [wanted, wanted + 1, wanted + 2]).all()
        assert groups.largest == [19, 20, 21]
        os.truncate(path, 3 + 4 * 19)
        groups.state[:3] = -1, 0, 0
        assert not groups.gather()
        assert groups.state[:3].tolist() == [1, 0, 1]
        groups.state[0] = 2  # its caller has read that one
        assert groups.gather()


def test_several_arrays_and_spans_in_one_call() -> None:
    first, second = np.arange(10, dtype=np.int32), np.arange(100, 110, dtype=np.uint16)
    targets = [np.zeros(6, np.int64), np.zeros((2, 3), np.int64)]
    spans = [[(8, 10, 0), (0, 3, 3)], [(1, 4, 3), (0, 0, 6), (9, 10, 0)]]
    assert gather([[first[:5], first[5:]], [second]], spans, targets, WIDEN) == -1
    assert targets[0].tolist() == [8, 9, 0, 0, 1, 2]
    assert targets[1].tolist() == [[109, 0, 0], [101, 102, 103]]


@pytest.mark.parametrize(
    "span", [(-1, 2, 0), (0, 11, 0), (9, 12, 0), (3, 2, 0), (0, 5, 4), (0, 1, -1), (0, 1, 8)]
)
def test_a_span_outside_is_refused_and_writes_nothing(span: tuple[int, int, int]) -> None:
    targets = [np.zeros(8, np.int64), np.zeros(8, np.int64)]
    values = [[np.arange(1, 11)], [np.arange(1, 11)]]
    assert gather(values, [[(0, 1, 0)], [(1, 2, 0), span]], targets, WIDEN) == 1
    assert targets[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert targets[1].tolist() == [2, 0, 0, 0, 0, 0, 0, 0]


def test_groups_share_spans_that_lie_further_on_in_one_of_them() -> None:
    values = np.arange(10, 20, dtype=np.int32)
    targets = np.zeros((2, 4), np.int64)
    groups = Groups()
    groups.add([values], targets[0], WIDEN, [(0, 2, 0), (7, 9, 2)])
    groups.add([values], targets[1], WIDEN, shift=1)
    assert groups.gather()
    assert targets.tolist() == [[10, 11, 17, 18], [11, 12, 18, 19]]


def test_an_array_without_extents_has_only_empty_spans() -> None:
    target = np.zeros(2, np.int64)
    assert gather([[]], [[(0, 0, 1)]], [target], WIDEN) == -1
    assert gather([[]], [[(0, 1, 1)]], [target], WIDEN) == 0


@pytest.mark.parametrize("form", [COPY, WIDEN, TRUTH])
def test_maps_are_read_instead_of_files_as_far_as_they_reach(form: int, tmp_path: Path) -> None:
    tokens = np.arange(40, dtype=np.int32)
    content = np.frombuffer(b"xyz" + tokens[:30].tobytes(), np.uint8)
    record = np.array([content.ctypes.data, content.nbytes])
    path = tmp_path / "tokens"
    path.write_bytes(b"xyz")
    kind = {COPY: np.int32, WIDEN: np.int64, TRUTH: np.bool_}[form]
    groups, target = Groups(), np.zeros(30, kind)
    groups.add([tokens], target, form, [(0, 20, 0), (20, 30, 20), (29, 31, 0)], files={0: 2})
    groups.maps[2] = record.ctypes.data
    assert not groups.gather()
    assert groups.state[:3].tolist() == [0, 0, 0]  # a closed file has no map
    with path.open("rb") as file:
        groups.descriptors[2] = file.fileno() + 1
        assert not groups.gather()
    assert groups.state[:3].tolist() == [0, 0, 2]
    assert target.tolist() == tokens[:30].astype(kind).tolist()
    assert groups.used[2] == 1


def test_groups_that_share_spans_need_not_be_neighbours(tmp_path: Path) -> None:
    tokens = np.arange(40, dtype=np.int32)
    (tmp_path / "tokens").write_bytes(b"xyz" + tokens.tobytes())
    groups, targets = Groups(), np.full((3, 4), -1)
    groups.add([tokens], targets[0], WIDEN, [(3, 5, 0), (7, 9, 2)])
    groups.add([tokens], targets[1], WIDEN, [(0, 2, 0), (20, 22, 2)], files={0: 5})
    groups.add([tokens], targets[2], WIDEN, None)
    groups.rows[2] = (*groups.rows[0][:2], *groups.rows[2][2:])
    assert not groups.gather()
    with (tmp_path / "tokens").open("rb") as file:
        groups.descriptors[5] = file.fileno() + 1
        assert groups.gather()
    assert targets.tolist() == [[3, 4, 7, 8], [0, 1, 20, 21], [3, 4, 7, 8]]
