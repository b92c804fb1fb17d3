"""Percents over samples."""

from typing import Any

import pytest

from zindex.mixing.percent_schedules import mean_percents, parse_percent, percent_at


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (0, ((0, 0),)),
        (0.5, ((0, 0.5),)),
        ({0: 1, 10: 0}, ((0, 1), (10, 0))),
        ({10: 2, 0: 1}, ((0, 1), (10, 2))),
        ({10: 2}, None),
        ({}, None),
        ({0: -1}, None),
        ({0: 1, -3: 1}, None),
        ({0: 1, 2.5: 1}, None),
        ({False: 1}, None),
        ({0: True}, None),
        ({0: float("nan")}, None),
        ("1", None),
        (None, None),
    ],
)
def test_percents_are_numbers_or_begin_at_0(percent: Any, expected: Any) -> None:
    assert parse_percent(percent) == expected


def test_a_piece_begins_at_its_sample() -> None:
    schedule = ((0, 1.0), (10, 2.0), (11, 3.0))
    assert [percent_at(schedule, sample) for sample in (0, 9, 10, 11, 99)] == [1, 1, 2, 3, 3]


def test_means_are_of_shares() -> None:
    # 50 samples at 1 of 2, and 50 at 3 of 4.
    assert mean_percents([{0: 1, 50: 3}, 1], 100) == [0.625, 0.375]
    assert mean_percents([{0: 1, 50: 3}, 1], 20) == [0.5, 0.5]
    assert mean_percents([{0: 1, 50: 3}, 1], float("inf")) == [3, 1]
    assert mean_percents([2, 6], 100) == [2, 6]
