"""Display the progress of builds: one bar on a terminal, log lines otherwise."""

import importlib.util
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zindex.wording import count_noun

logger = logging.getLogger("zindex")

# A cluster's log should have ten lines per step, not thousands.
_NUM_LINES = 10
# Shorter steps log only their last line.
_MIN_SECONDS = 2.0
# The rate is that of the later half of the time, and unknown before these seconds.
_MIN_RATE_SECONDS = 3.0
_NUM_SAMPLES = 256


class Pace:
    """The rate of finished shards, and the time left.

    Shards that an earlier build finished pass in an instant and differ in cost, so the rate is that
    of the later half of the elapsed time. It is unknown at first.
    """

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)])
        self.done = 0

    def advance(self, count: int, now: float) -> None:
        """Count finished shards."""
        self.done += count
        start = self._samples[0][0]
        if len(self._samples) > 1 and now - self._samples[-1][0] < (now - start) / _NUM_SAMPLES:
            self._samples[-1] = now, self.done
        else:
            self._samples.append((now, self.done))
        if len(self._samples) > 2 * _NUM_SAMPLES:
            self._samples = deque([self._samples[0], *list(self._samples)[1::2]])

    def rate(self, now: float) -> float | None:
        """Return shards per second; None while unknown.

        Examples
        --------
        A build that resumes: 90 shards exist, and one is written per second.

        >>> pace = Pace(0)
        >>> pace.advance(90, 0.1)
        >>> for second in range(1, 11):
        ...     pace.advance(1, second)
        >>> pace.rate(10), pace.seconds_left(120, 10)
        (1.0, 20.0)
        """
        start = self._samples[0][0]
        if now - start < _MIN_RATE_SECONDS:
            return None
        middle = (start + now) / 2
        base = next((each for each in reversed(self._samples) if each[0] <= middle), None)
        if base is None or self.done < base[1] + 2:
            return None
        return (self.done - base[1]) / (now - base[0])

    def seconds_left(self, total: int, now: float) -> float | None:
        """Return the time that is left; None while unknown."""
        rate = self.rate(now)
        return None if rate is None else max(0, total - self.done) / rate


def format_seconds(seconds: float) -> str:
    """Format a time left, in the two largest units at most.

    Examples
    --------
    >>> format_seconds(7.2), format_seconds(200), format_seconds(7500)
    ('8 s', '3 min 20 s', '2 h 5 min')
    """
    whole = -int(-seconds // 1)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


class Progress:
    """Displays the progress of a build, step by step; this base class shows nothing."""

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Show one step during the block, which calls the yielded function with finished shards."""
        yield lambda count: None

    def expect(self, num_shards: int) -> None:
        """Announce the shards of all steps to come, so that the total is known."""


class LogProgress(Progress):
    """Logs the end of each step, and every tenth of a long one with its rate and remaining time."""

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Run one step."""
        start = last = time.monotonic()
        pace, shown = Pace(start), 0

        def advance(count: int) -> None:
            nonlocal shown, last
            now = time.monotonic()
            pace.advance(count, now)
            tenth = _NUM_LINES * pace.done // max(1, num_shards)
            if tenth > shown and pace.done < num_shards and now - last >= _MIN_SECONDS:
                shown, last = tenth, now
                parts = [f"{name}: {pace.done:,} of {num_shards:,} shards"]
                if rate := pace.rate(now):
                    left = format_seconds((num_shards - pace.done) / rate)
                    parts += [f"{rate:.1f} shards/s", f"{left} left"]
                logger.info("%s", ", ".join(parts))

        yield advance
        elapsed = time.monotonic() - start
        logger.info("%s: %s in %.2f s", name, count_noun(num_shards, "shard"), elapsed)


class RichProgress(Progress):
    """Draws one bar for all steps on a terminal."""

    def __init__(self, display: Any) -> None:
        self.display = display
        self._pace = Pace(time.monotonic())
        self._task = display.add_task("", total=None, left="")
        self._running: list[str] = []
        self._name = ""
        # Shards of the steps so far, and those announced, of which the former are a part.
        self._num_started = self._num_expected = 0

    @property
    def _total(self) -> int:
        return max(self._num_started, self._num_expected)

    def expect(self, num_shards: int) -> None:
        """Announce the shards of all steps to come."""
        self._num_expected = self._num_started + num_shards
        self._show()

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Run one step."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._pace.advance(count, time.monotonic())
            self._show()

        self._num_started += num_shards
        self._running.append(name)
        self._show()
        try:
            yield advance
            advance(num_shards - done)
        finally:
            self._running.remove(name)
            self._show()

    def _show(self) -> None:
        if self._running:
            others = len(self._running) - 1
            self._name = self._running[0] + (f" and {others:,} more" if others else "")
        left = self._pace.seconds_left(self._total, time.monotonic())
        self.display.update(
            self._task,
            description=self._name,
            completed=self._pace.done,
            total=self._total or None,
            left="" if left is None else f"{format_seconds(left)} left",
        )


@contextmanager
def open_progress(wanted: bool) -> Iterator[Progress]:
    """Return a display: none, a bar on a terminal if rich is installed, or a log."""
    if not wanted:
        yield Progress()
        return
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield LogProgress()
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.table import Column

    # Narrow terminals shorten the name; the numbers stay.
    name = bars.TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(ratio=2, no_wrap=True, overflow="ellipsis"),
    )
    bar = bars.BarColumn(bar_width=None, table_column=Column(ratio=1))
    count = bars.MofNCompleteColumn(table_column=Column(no_wrap=True))
    left = bars.TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True))
    console = Console(stderr=True)
    with bars.Progress(name, bar, count, left, console=console, expand=True) as display:
        yield RichProgress(display)
