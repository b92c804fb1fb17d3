"""Arrays that are whole objects: right values, few requests."""

import pickle
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zindex.errors import VerificationError
from zindex.io import object_client
from zindex.io.objects import ObjectPath
from zindex.store import chunk_fetch, tokens
from zindex.store.chunk_cache import reader_statistics
from zindex.store.rows import Spans, read_many
from zindex.store.tokens import FlatObject

_numbers = count()


def put(root: ObjectPath, values: Any, block_nbytes: int | None = None) -> FlatObject:
    place = root / f"{next(_numbers)}.bin"
    object_client.put(place, [np.asarray(values).tobytes()])
    reader_statistics(reset=True)
    return FlatObject(str(place), values.nbytes, values.dtype, block_nbytes)


@settings(max_examples=40)
@given(data=st.data())
def test_spans_are_those_of_the_object(
    objects: ObjectPath, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "REQUEST_NBYTES", data.draw(st.sampled_from([8, 40, 1 << 20])))
    monkeypatch.setattr(tokens, "_ROUND_NBYTES", data.draw(st.sampled_from([10, 1 << 20])))
    wanted, expected = [], []
    for _ in range(data.draw(st.integers(1, 3), "objects")):
        dtype = data.draw(st.sampled_from(["uint16", "int32"]))
        values = np.arange(data.draw(st.integers(1, 60), "length"), dtype=dtype)
        block = data.draw(st.sampled_from([None, None, 1, 7, 16, 1 << 20]))
        reader = put(objects, values, block)
        bounds = st.tuples(*[st.integers(0, len(values))] * 2).map(sorted)
        spans = np.array(data.draw(st.lists(bounds, max_size=6)), np.int64)
        starts, stops = spans.reshape(-1, 2).T
        parts = [values[i:j] for i, j in spans.tolist()]
        right = np.concatenate([values[:0], *parts])
        if data.draw(st.booleans(), "placed"):
            out = np.full(len(right) + 1, -1, np.int64)
            places = 1 + np.cumsum(stops - starts) - (stops - starts)
            wanted.append(Spans(reader, starts, stops, out, places))
            right = np.concatenate([[-1], right]).astype(np.int64)
        else:
            wanted.append(Spans(reader, starts, stops))
        expected.append(right)
    for got, right in zip(read_many(wanted), expected, strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right)


def test_near_spans_share_a_request(objects: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_fetch, "GAP_NBYTES", 10)
    reader = put(objects, np.arange(1000, dtype=np.uint16))
    starts = np.array([500, 100, 103, 120])
    got = reader.read_spans(starts, starts + 2)
    assert got.tolist() == [500, 501, 100, 101, 103, 104, 120, 121]
    statistics = reader_statistics(reset=True)
    assert (statistics.num_requests, statistics.nbytes) == (3, 4 + 10 + 4)


def test_blocks_are_kept(objects: ObjectPath) -> None:
    reader = put(objects, np.arange(1000, dtype=np.uint16), 200)
    assert [int(reader[i]) for i in (150, 100, 199, 120)] == [150, 100, 199, 120]
    assert reader_statistics(reset=True).num_requests == 1
    assert reader.read(190, 410).tolist() == [*range(190, 410)]
    statistics = reader_statistics(reset=True)
    assert (statistics.num_requests, statistics.nbytes) == (1, 3 * 200)
    assert int(reader[999]) == 999
    assert reader_statistics(reset=True).nbytes == 200


def test_a_reader_is_pickled_as_its_arguments(objects: ObjectPath) -> None:
    reader = put(objects, np.arange(10, dtype=np.int32), 8)
    assert int(reader[3]) == 3
    again = pickle.loads(pickle.dumps(reader))
    assert (again.url, again.file_nbytes, again.dtype, again.block_nbytes) == (
        reader.url,
        40,
        np.dtype(np.int32),
        8,
    )
    np.testing.assert_array_equal(again, np.arange(10))


def test_objects_that_are_gone_or_cut_are_damage(objects: ObjectPath) -> None:
    reader = put(objects, np.arange(10, dtype=np.int32))
    longer = FlatObject(reader.url, 48, np.int32)
    with pytest.raises(VerificationError, match=r"\.bin must hold 48 bytes from byte 0, as when "):
        longer.read(0, 12)
    with pytest.raises(VerificationError, match=r"must hold 16 bytes from byte 32, .* it has 8;"):
        longer.read(8, 12)
    with pytest.raises(IndexError, match=r"rows \[9, 11\) are outside"):
        reader.read_spans(np.array([9]), np.array([11]))
    object_client.delete(ObjectPath.parse(reader.url))
    with pytest.raises(VerificationError, match=r"\.bin must be there, .* it is gone; restore it"):
        reader.read(0, 1)
