"""Progress of builds: bars on a terminal, one log line per step elsewhere."""

import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

logger = logging.getLogger("zindex")

# A log that a cluster keeps should get ten lines of a step, not thousands.
_NUM_LINES = 10
# And a step that is over sooner gets its last line only.
_MIN_SECONDS = 2.0


class Progress(Protocol):
    """Shows how far the steps of a build have come."""

    def step(self, name: str, num_shards: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show one step while the block runs; the block calls what it gets with finished shards."""
        ...


class SilentProgress:
    """Shows nothing."""

    @contextmanager
    def step(self, name: str, num_shards: int) -> Iterator[Callable[[int], None]]:
        """Run one step."""
        yield lambda count: None


class LogProgress:
    """Logs the end of a step, and of a long one every tenth with its rate and the time left."""

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
                left = (num_shards - done) / rate
                logger.info(
                    "%s: %d of %d shards, %.1f shards/s, %.0f s left",
                    name,
                    done,
                    num_shards,
                    rate,
                    left,
                )

        yield advance
        elapsed = time.monotonic() - start
        logger.info("%s: %d shards in %.2f s", name, num_shards, elapsed)


class RichProgress:
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
    """Give the display that fits: none, bars on a terminal where rich is installed, or a log."""
    if not wanted:
        yield SilentProgress()
        return
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield LogProgress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Display
    from rich.progress import Task as Row
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Shards per second."""

        def render(self, task: Row) -> Text:
            """Return the rate, or nothing before there is one."""
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f} shards/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
    )
    with Display(*columns, console=Console(stderr=True)) as display:
        yield RichProgress(display)
