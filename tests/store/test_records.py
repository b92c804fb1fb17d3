"""What fields of records are called, and how values become bytes and come back."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, SourceError
from zindex.store.layout import ChunkGrid
from zindex.store.records import (
    KEY,
    Form,
    RecordField,
    array_name,
    check_dtypes,
    decode_value,
    encode_numbers,
    encode_value,
    plan_array,
    record_layouts,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("jpg", "jpg"),
        ("seg.png", "seg.png"),
        ("a/b", "a=2Fb"),
        ("a=2Fb", "a=3D2Fb"),
        ("", "="),
        ("..", "=2E."),
        ("__key", "=5F_key"),
        ("é", "=C3=A9"),
        ("\ud800", "=ED=A0=80"),
    ],
)
def test_names_of_arrays(field: str, name: str) -> None:
    assert array_name(field) == name


@given(st.lists(ANY_TEXT, unique=True))
def test_every_field_has_separate_arrays(fields: list[str]) -> None:
    described = [RecordField(name, 0, None, has_forms=True) for name in fields if name != KEY]
    layouts = record_layouts([RecordField(KEY, 0, 2), *described], 3, ChunkGrid())
    names = [layout.name for layout in layouts]
    assert len({name.lower() for name in names} | set(names)) >= len(set(names)) == len(names)
    assert all(re.fullmatch(r"(?!__)(?!\.)[A-Za-z0-9_.=\-]{1,120}", name) for name in names)
    dims = {dim for layout in layouts for dim in layout.dims}
    assert not dims & set(names)  # xarray would take such an array for an index


def test_long_names_are_shortened_uniquely() -> None:
    one, other = array_name("x" * 200 + "1"), array_name("x" * 200 + "2")
    assert one != other
    assert len(one) == len(other) == 74


@given(st.binary() | ANY_TEXT | JSON)
def test_values_come_back(value: Any) -> None:
    form, content = encode_value(value)
    found = decode_value(form, content)
    assert type(found) is type(value)
    assert found == value


def test_forms_and_their_bytes() -> None:
    assert encode_value("née") == (Form.TEXT, b"n\xc3\xa9e")
    assert encode_value(bytearray(b"\x00")) == (Form.BYTES, b"\x00")
    assert encode_value({"a": [1, None]}) == (Form.JSON, b'{"a":[1,null]}')
    assert math.isnan(decode_value(Form.JSON, encode_value(math.nan)[1]))


@pytest.mark.parametrize("value", [object(), {1: {2}}, np.float32(1)])
def test_other_values_are_refused(value: Any) -> None:
    problem = f"a value must be bytes, text or JSON, got {type(value).__name__}"
    with pytest.raises(SourceError, match=problem):
        encode_value(value)


def test_json_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(SourceError, match="got list: Circular reference"):
        encode_value(value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_whole_numbers_fit_or_are_refused(dtype: str) -> None:
    limits = np.iinfo(dtype)
    for value in ([], [limits.min, 0, limits.max]):
        found = np.frombuffer(encode_numbers(value, np.dtype(dtype)), dtype)
        assert found.tolist() == value
    for number in (limits.min - 1, limits.max + 1):
        with pytest.raises(SourceError, match=rf"the numbers must fit {dtype}, got \[{number}\]"):
            encode_numbers([number], np.dtype(dtype))


def test_floats_are_rounded_or_refused() -> None:
    value = [0.1, 2, math.inf, -math.inf, -0.0]
    found = np.frombuffer(encode_numbers(value, np.dtype("float32")), "float32")
    np.testing.assert_array_equal(found, np.array(value, "float32"))
    assert np.isnan(np.frombuffer(encode_numbers([math.nan], np.dtype("float64"))))[0]
    for number in (1e39, 10**400):
        with pytest.raises(SourceError, match="the numbers must fit float32"):
            encode_numbers([number], np.dtype("float32"))


@pytest.mark.parametrize("value", [3, "four", [1.5], [True], [[1]], ["1"], {"a": 1}, "x" * 200])
def test_invalid_lists_of_numbers(value: Any) -> None:
    with pytest.raises(SourceError, match="a value must be a list of whole numbers, got"):
        encode_numbers(value, np.dtype("int32"))


def test_booleans_may_be_written_as_numbers() -> None:
    value = [True, False, 1, 0]
    encoded = encode_numbers(value, np.dtype(bool))
    assert np.frombuffer(encoded, bool).tolist() == [True, False, True, False]
    for other in ([2], [-1], [1.0], "yes", 1, [None], np.ones(2)):
        with pytest.raises(SourceError, match="a value must be a list of true and false, got"):
            encode_numbers(other, np.dtype(bool))


def test_an_array_of_the_dtype_is_used_unchanged() -> None:
    values = np.arange(5, dtype=np.int16)
    assert encode_numbers(values, values.dtype) == values.tobytes()
    with pytest.raises(SourceError, match="a value must be a list of numbers, got array"):
        encode_numbers(values, np.dtype("float32"))


@pytest.mark.parametrize("dtype", ["complex64", "nonsense", "U3", "M8[s]", object, "longdouble"])
def test_dtypes_that_zarr_lacks_are_refused(dtype: Any) -> None:
    with pytest.raises(ConfigError, match="the numbers of field 'x' must have a dtype such as"):
        check_dtypes({"x": dtype})


def test_wider_values_have_fewer_in_a_chunk() -> None:
    field = RecordField("x", 1000, Form.NUMBERS, has_forms=True, dtype="int32")
    layouts = field.layouts(500, ChunkGrid(chunk_length=40, shard_length=120))
    cuts = [(item.name, item.dtype, item.chunk_length, item.shard_length) for item in layouts]
    assert cuts == [
        ("x_value", "int32", 10, 30),
        ("x_offset", "int64", 5, 15),
        ("x_form", "uint8", 40, 120),
    ]
    tiny = plan_array(field.offset, 9, "int64", ChunkGrid(1, 3))
    assert (tiny.chunk_length, tiny.shard_length) == (1, 3)


def test_fields_come_back_from_json() -> None:
    field = RecordField("x", 7, None, has_forms=True, dtype="int32")
    assert RecordField(**field.to_json()) == field
