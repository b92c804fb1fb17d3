"""Splits: the table of Megatron Core's rules, and its own functions as the judge."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError
from zindex.plan.split import (
    convert_split_vector_to_split_matrix,
    normalize,
    parse_and_normalize_split,
    split_range,
)

THIRD = 1 / 3

# Megatron Core 0.16 ignores other characters, and continues with unintended shares.
STRAY = (".", "1..2", "-5,5", "1e-1,1", "90,abc5,5", "1,,1", "1,1,", ",1", "nan,1", "-inf,1")


@pytest.mark.parametrize(
    ("split", "vector"),
    [
        ("99,1,0", [0.99, 0.01, 0.0]),  # the usual form
        ("969, 30, 1", [0.969, 0.03, 0.001]),  # spaces do not count
        ("1", [1.0, 0.0, 0.0]),  # missing numbers are 0
        ("1,1", [0.5, 0.5, 0.0]),
        ("0,0,1", [0.0, 0.0, 1.0]),
        ("1/1/1", [THIRD, THIRD, THIRD]),  # slashes, as of old
        (" 1 1\t1 ", [THIRD, THIRD, THIRD]),  # spaces alone
        (".5,.25,.25", [0.5, 0.25, 0.25]),  # a leading point
        ("5.,5.", [0.5, 0.5, 0.0]),  # a trailing point
    ],
)
def test_parse(split: str, vector: list[float]) -> None:
    assert parse_and_normalize_split(split) == vector


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("0,0,0", "one to three numbers with a sum above 0, got '0,0,0'; for example '99,1,0'"),
        ("1,1,1,1", "one to three numbers with a sum above 0, got '1,1,1,1'"),
        ("", "plain numbers with commas between them, such as '99,1,0', got ''; write each share"),
        ("train", "plain numbers with commas between them, such as '99,1,0', got 'train'"),
        ("1.2.3,1", "plain numbers with commas between them, such as '99,1,0', got '1.2.3,1'"),
        ("9" * 400, "with a sum above 0, got '999"),  # no float holds them
        ("9" * 308 + "," + "9" * 308, "with a sum above 0, got '999"),
        *((split, f"got {split!r}; write each share without sign or exponent") for split in STRAY),
    ],
)
def test_splits_without_meaning_are_refused(split: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_and_normalize_split(split)


@pytest.mark.parametrize(
    ("split", "matrix"),
    [
        ("99,1,0", [(0, 0.99), (0.99, 1.0), None]),  # no share, no bookends
        ("0,100,0", [None, (0.0, 1.0), None]),
        ("100,0,0", [(0, 1.0), None, None]),
        # Sums from left to right fall short of 0.9 and 1.
        (
            "70,20,10",
            [(0, 0.7), (0.7, 0.8999999999999999), (0.8999999999999999, 0.9999999999999999)],
        ),
    ],
)
def test_matrix(split: str, matrix: list[tuple[float, float] | None]) -> None:
    result = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
    assert result == matrix
    assert repr(result) == repr(matrix)  # the first bound is the integer 0, others are floats


def test_matrix_of_two_vectors_is_their_overlap() -> None:
    assert convert_split_vector_to_split_matrix([0.99, 0.01, 0.0], [0.98, 0.02, 0.0]) == [
        (0, 0.98),  # the smaller of both trains
        (0.99, 1.0),  # 0.98 to 0.99 is train of one and valid of the other: of no split
        None,
    ]
    assert convert_split_vector_to_split_matrix([1.0, 0.0], [0.0, 1.0]) == [None, None]


@pytest.mark.parametrize(
    ("num_elements", "bookends", "expected"),
    [
        (10, (0, 0.99), (0, 10)),  # 9.9 is ten
        (10, (0.99, 1.0), (10, 10)),  # so that valid is empty
        (10, (0, 0.25), (0, 2)),  # 2.5 rounds to the even 2
        (10, (0.25, 0.35), (2, 4)),  # 3.5 rounds to the even 4
        (5, (0, 0.5), (0, 2)),  # 2.5 again
        (7, (0, 0.5), (0, 4)),  # 3.5 again
        (1, (0, 0.5), (0, 0)),  # 0.5 rounds to the even 0
        (3, (0, 0.5), (0, 2)),  # 1.5 rounds to the even 2
        (10, None, (0, 0)),  # a split without a share
        (0, (0, 1.0), (0, 0)),
        (2**53 + 2, (0, 1.0), (0, 2**53 + 2)),  # floats still hold it
    ],
)
def test_range(num_elements: int, bookends: tuple[float, float] | None, expected: object) -> None:
    assert split_range(num_elements, bookends) == expected


weights = st.lists(
    st.integers(0, 1000) | st.floats(0, 1000, allow_subnormal=False), min_size=1, max_size=3
).filter(lambda values: sum(values) > 1e-3)


@given(weights, st.integers(0, 10**12))
def test_splits_tile_the_elements(values: list[float], num_elements: int) -> None:
    vector = normalize(values)
    ranges = [
        split_range(num_elements, bookends)
        for bookends in convert_split_vector_to_split_matrix(vector)
        if bookends is not None
    ]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_elements
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


texts = st.lists(
    st.sampled_from(["0", "1", "99", "969.", "30", ".5", "1e-1", "-3", "0.0001"]),
    min_size=1,
    max_size=4,
).map(",".join)


@given(texts)
def test_parse_is_that_of_megatron_core(split: str) -> None:
    theirs = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_config")
    try:
        expected = None if {"e", "-"} & set(split) else theirs.parse_and_normalize_split(split)
    except AssertionError:
        expected = None
    except RuntimeWarning:  # a sum of 0: Megatron Core continues with NaN
        expected = None
    if expected is None:
        with pytest.raises(ConfigError, match="split must hold"):
            parse_and_normalize_split(split)
        return
    vector = parse_and_normalize_split(split)
    assert vector == expected
    assert repr(convert_split_vector_to_split_matrix(vector)) == repr(
        theirs.convert_split_vector_to_split_matrix(expected)
    )


@given(weights, weights)
def test_overlap_is_that_of_megatron_core(a: list[float], b: list[float]) -> None:
    theirs = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_config")
    vector_a = normalize([*a, 0.0, 0.0][:3])
    vector_b = normalize([*b, 0.0, 0.0][:3])
    assert convert_split_vector_to_split_matrix(
        vector_a, vector_b
    ) == theirs.convert_split_vector_to_split_matrix(vector_a, vector_b)
