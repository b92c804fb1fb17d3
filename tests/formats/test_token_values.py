"""Tokens as callers hand them over."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import SourceError
from zindex.formats.bin_writer import convert_tokens
from zindex.formats.token_dtypes import TOKEN_DTYPES

INTEGERS = [dtype for dtype in TOKEN_DTYPES.values() if dtype.kind != "f"]


@pytest.mark.parametrize("dtype", TOKEN_DTYPES.values(), ids=str)
@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        ["1", "2", "3"],
        [1.0, 2.0, 3.0],
        np.array([[1, 2, 3]]),
        np.array([1, 2, 3], np.float32),
        np.array([1, 2, 3], np.uint64),
        np.arange(8, dtype=np.int16)[1:4],
        np.arange(4)[:0:-1][::-1],
        np.array([1, 2, 3], object),
        [np.int64(1), 2, np.uint8(3)],
    ],
    ids=repr,
)
def test_accepted_forms(dtype: np.dtype, values: object) -> None:
    tokens = convert_tokens(values, dtype, owner="a.bin")
    assert tokens.dtype == dtype
    assert tokens.shape == (3,)
    assert tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("values", [[], np.empty(0), np.empty((0, 3), np.int8), ()], ids=repr)
def test_nothing(values: object) -> None:
    assert convert_tokens(values, np.uint16, owner="a.bin").dtype == np.uint16
    assert convert_tokens(values, np.uint16, owner="a.bin").shape == (0,)


@pytest.mark.parametrize(
    ("values", "dtype", "shown"),
    [
        ([1, 65536], np.uint16, "value 65536 at position 1"),
        ([-1], np.uint16, "value -1 at position 0"),
        (np.array([70000]), np.uint16, "value 70000"),
        (np.array([[0, 1], [2, 300]]), np.uint8, "value 300 at position 3"),
        (["7", "70000"], np.uint16, "value 70000 at position 1"),
        ([2**31], np.int32, "value 2147483648"),
        ([-(2**31) - 1], np.int32, "value -2147483649"),
        ([2**63], np.int64, "value 9223372036854775808"),
        ([0, 2**64], np.int64, "value 18446744073709551616 at position 1"),
        ([1.5], np.int32, "value 1.5"),
        ([float("nan")], np.int32, "value nan"),
        ([float("inf")], np.int64, "value inf"),
        ([2.0**63], np.int64, "value 9.22"),
        ([2**24 + 1], np.float32, "value 16777217"),
        ([2**53 + 1], np.float64, "value 9007199254740993"),
        ([2**63 - 1], np.float64, "value 9223372036854775807"),
        ([1e300], np.float32, "value 1e\\+300"),
    ],
)
def test_values_outside_the_dtype(values: object, dtype: type, shown: str) -> None:
    message = rf"a\.bin must fit {np.dtype(dtype).name}, but {shown}"
    with pytest.raises(SourceError, match=message):
        convert_tokens(values, dtype, owner="a.bin")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["1", "x"], r"\['1', 'x'\]"),
        ([[1, 2], [3]], r"\[\[1, 2\], \[3\]\]"),
        (["9" * 30], r"\['9999"),
        (np.array(["2024-01-01"], "M8[D]"), "dtype datetime64"),
        (np.array([1j]), "dtype complex128"),
        ([["a" * 80]], r"\.\.\."),
    ],
)
def test_invalid_tokens(values: object, shown: str) -> None:
    with pytest.raises(SourceError, match=rf"tokens for a\.bin must be numbers .*{shown}"):
        convert_tokens(values, np.int32, owner="a.bin")


def test_a_float_is_rounded_only_into_a_float() -> None:
    assert convert_tokens([0.1], np.float32, owner="a.bin")[0] == np.float32(0.1)


@given(values=st.lists(st.integers(-(2**70), 2**70), min_size=1), dtype=st.sampled_from(INTEGERS))
def test_integers_are_kept_or_refused(values: list[int], dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    if all(limits.min <= value <= limits.max for value in values):
        assert convert_tokens(values, dtype, owner="a.bin").tolist() == values
    else:
        with pytest.raises(SourceError, match="does not"):
            convert_tokens(values, dtype, owner="a.bin")
