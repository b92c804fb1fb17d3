"""Display the progress of builds: bars on a terminal, log lines otherwise."""

import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("zindex")

# A cluster's log should have ten lines per step, not thousands.
_NUM_LINES = 10
# Shorter steps log only their last line.
_MIN_SECONDS = 2.0


class Progress:
    """Displays the progress of a build, step by step; this base class shows nothing."""

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Show one step during the block, which calls the yielded function with finished shards."""
        yield lambda count: None


class LogProgress(Progress):
    """Logs the end of each step, and every tenth of a long one with its rate and remaining time."""

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Run one step."""
        start = last = time.monotonic()
        done = shown = 0

        def advance(count: int) -> None:
            nonlocal done, shown, last
            done += count
            now = time.monotonic()
            tenth = _NUM_LINES * done // max(1, num_shards)
            if tenth > shown and done < num_shards and now - last >= _MIN_SECONDS:
                shown, last = tenth, now
                rate = done / (now - start)
                left = f"{rate:.1f} shards/s, {(num_shards - done) / rate:.0f} s left"
                logger.info("%s: %d of %d shards, %s", name, done, num_shards, left)

        yield advance
        elapsed = time.monotonic() - start
        logger.info("%s: %d shards in %.2f s", name, num_shards, elapsed)


class RichProgress(Progress):
    """Draws one bar per step on a terminal."""

    def __init__(self, display: Any) -> None:
        self.display = display

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Run one step."""
        task = self.display.add_task(name, total=num_shards)
        yield lambda count: self.display.advance(task, count)
        self.display.update(task, completed=num_shards)


@contextmanager
def open_progress(wanted: bool) -> Iterator[Progress]:
    """Return a display: none, bars on a terminal if rich is installed, or a log."""
    if not wanted:
        yield Progress()
        return
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield LogProgress()
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    class RateColumn(bars.ProgressColumn):
        """Shards per second."""

        def render(self, task: bars.Task) -> Text:
            """Return the rate, empty before the first."""
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f} shards/s")

    name, count = bars.TextColumn("{task.description}"), bars.MofNCompleteColumn()
    columns = (name, bars.BarColumn(), count, RateColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True)) as display:
        yield RichProgress(display)
