"""Canonical JSON, fingerprints and the border at which JSON comes in."""

import hashlib
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import StoreError
from zindex.store.commit import FORMAT_VERSION, canonical_json, fingerprint, parse_json

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)


@given(json_objects)
def test_canonical_json_is_read_back_equal_and_does_not_depend_on_order(value: dict) -> None:
    text = canonical_json(value)
    assert text.isascii()
    assert parse_json(text.encode(), "here") == value
    reordered = dict(reversed(value.items()))
    assert canonical_json(reordered) == text
    assert fingerprint(reordered) == fingerprint(value)


def test_fingerprint_is_frozen() -> None:
    text = '{"a":1,"b":[0.1,null,true,"\\u00fc"]}'
    value = {"b": [0.1, None, True, "ü"], "a": 1}
    assert canonical_json(value) == text
    assert fingerprint(value) == hashlib.sha256(text.encode()).hexdigest()
    assert fingerprint({"a": 1}) == (
        "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    )
    assert FORMAT_VERSION == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_without_json_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"weight": value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "place must hold JSON, got b''"),
        (b'{"a": 1', "place must hold JSON, got b'{\"a\": 1'"),
        (b'{"a": \xff}', "place must hold JSON, got b'{\"a\": \\xff}'"),
        (b"[" * 100_000, "place must hold JSON, got b'[[["),
        (b"[1]", "place must hold a JSON object, got list"),
        (b"7", "place must hold a JSON object, got int"),
        (b"null", "place must hold a JSON object, got NoneType"),
    ],
)
def test_anything_but_a_json_object_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(StoreError, match=re.escape(message)):
        parse_json(content, "place")
