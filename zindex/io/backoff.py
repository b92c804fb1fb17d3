"""Wait between attempts: jittered exponential backoff with a deadline, and polling."""

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Backoff:
    """Pauses that grow from attempt to attempt until a deadline.

    Each pause is drawn from the upper half of its interval: jitter keeps thousands of processes
    from accessing a file system or a server at the same instant.

    Parameters
    ----------
    first
        Seconds of the first interval, > 0.
    longest
        Maximum interval in seconds; None keeps the first one.
    timeout
        Timeout in seconds, from now or from the last call of `restart`.
    growth
        Factor from one interval to the next.
    clock, sleep
        Injected clock and sleep. A sleep that returns True was interrupted, and ends the attempts.

    Examples
    --------
    >>> pauses = []
    >>> backoff = Backoff(1.0, 4.0, timeout=20.0, clock=lambda: sum(pauses), sleep=pauses.append)
    >>> while backoff.wait():
    ...     pass
    >>> round(sum(pauses), 6)
    20.0
    """

    def __init__(
        self,
        first: float,
        longest: float | None = None,
        *,
        timeout: float = math.inf,
        growth: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._first = self._interval = first
        self._longest = first if longest is None else longest
        self._timeout, self._growth, self._clock, self._sleep = timeout, growth, clock, sleep
        self._start = clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the start or the last restart."""
        return self._clock() - self._start

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.elapsed >= self._timeout

    def restart(self) -> None:
        """Restart, after progress, with the first interval and the full timeout."""
        self._interval = self._first
        self._start = self._clock()

    def next_pause(self) -> float:
        """Return the seconds of the next pause, which never exceeds the deadline."""
        pause = self._interval * random.uniform(0.5, 1.0)
        self._interval = min(self._growth * self._interval, self._longest)
        return max(0.0, min(pause, self._timeout - self.elapsed))

    def wait(self) -> bool:
        """Sleep until the next attempt; return False immediately if the deadline has passed."""
        return not self.is_over and not self._sleep(self.next_pause())

    async def wait_async(self) -> bool:
        """Sleep in the running event loop; return as `wait` does."""
        if self.is_over:
            return False
        await asyncio.sleep(self.next_pause())
        return True


def poll_until(condition: Callable[[], T], backoff: Backoff) -> T:
    """Call a condition until it is true or the backoff ends, and return its last result."""
    while not (result := condition()) and backoff.wait():
        pass
    return result
