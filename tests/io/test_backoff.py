import asyncio
import itertools

import pytest

from tests.clocks import Clock
from zindex.io.backoff import Backoff, poll_until


def _make(first: float, longest: float | None = None, **settings: float) -> tuple[Backoff, Clock]:
    clock = Clock()
    return Backoff(first, longest, clock=clock.monotonic, sleep=clock.sleep, **settings), clock


@pytest.mark.parametrize(
    ("longest", "growth", "intervals"),
    [
        (None, 2.0, [1.0, 1.0, 1.0, 1.0]),
        (4.0, 2.0, [1.0, 2.0, 4.0, 4.0]),
        (1.5, 1.25, [1.0, 1.25, 1.5, 1.5]),
    ],
)
def test_pauses_grow_to_the_longest_with_jitter(longest, growth, intervals):
    backoff, clock = _make(1.0, longest, growth=growth)
    assert all(backoff.wait() for _ in intervals)
    for pause, interval in zip(clock.pauses, intervals, strict=True):
        assert 0.5 * interval <= pause <= interval


def test_the_last_attempt_is_at_the_deadline():
    backoff, clock = _make(1.0, 8.0, timeout=20.0)
    while backoff.wait():
        pass
    assert clock.now == backoff.elapsed == pytest.approx(20.0)
    assert backoff.is_over


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_without_a_timeout_left_nothing_sleeps(timeout):
    backoff, clock = _make(1.0, timeout=timeout)
    assert not backoff.wait()
    assert not asyncio.run(backoff.wait_async())
    assert clock.pauses == []


def test_a_restart_gives_the_whole_timeout_and_the_first_interval():
    backoff, clock = _make(1.0, 64.0, timeout=10.0)
    while backoff.wait():
        pass
    backoff.restart()
    assert backoff.elapsed == 0.0
    assert backoff.wait()
    assert clock.pauses[-1] <= 1.0


def test_an_interrupted_sleep_ends_the_attempts():
    assert not Backoff(1.0, sleep=lambda seconds: True).wait()


def test_the_event_loop_runs_during_a_pause():
    async def main() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_soon(order.append, "other")
        assert await Backoff(1e-3).wait_async()
        return [*order, "after"]

    assert asyncio.run(main()) == ["other", "after"]


def test_polling_ends_with_the_condition_or_with_the_deadline():
    numbers = itertools.count()
    assert poll_until(lambda: next(numbers) >= 3 and "ready", _make(1.0)[0]) == "ready"
    assert next(numbers) == 4
    backoff, clock = _make(1.0, timeout=3.0)
    assert poll_until(lambda: [], backoff) == []
    assert clock.now == pytest.approx(3.0)
