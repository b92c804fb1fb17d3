"""A clock that only sleeping moves on."""

from typing import Any


class Clock:
    """Tells what was slept, and lets others work meanwhile, one after each pause."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.work: list[Any] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses.append(seconds)
        self.now += seconds
        if self.work:
            self.work.pop(0)()
