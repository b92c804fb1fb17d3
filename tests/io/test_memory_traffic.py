"""Calls of several threads, and the traffic that they cause."""

import threading
from collections.abc import Callable

import pytest

from zindex.io.memory_traffic import measure_calls, measure_copies, measure_gathers


def test_threads_share_the_calls() -> None:
    numbers: list[int] = []
    both = threading.Barrier(2)

    def call(number: int) -> None:
        if numbers:  # after the warm-up, two threads call at the same time
            both.wait(60)
        numbers.append(number)

    assert measure_calls(call, 2, 0.0) > 0
    assert sorted(numbers) == [0, 0, 1]


@pytest.mark.parametrize("measure", [measure_copies, measure_gathers])
def test_measurements(measure: Callable[[int, float], float]) -> None:
    assert 1e5 < measure(2, 0.01) < 1e13
