"""Record the time and place of each step of a build, as a trace for Perfetto or chrome://tracing."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Span:
    """One step: a task on a worker, or work of the client."""

    key: str
    #: Seconds since the epoch.
    start: float
    stop: float
    process: str
    thread: int

    @property
    def stage(self) -> str:
        """The first word of the key, which is the kind of step."""
        return self.key.partition("-")[0]


@contextmanager
def measure(key: str, spans: list[Span]) -> Iterator[None]:
    """Append the span of the block."""
    start = time.time()
    try:
        yield
    finally:
        process = f"{os.uname().nodename}:{os.getpid()}"
        spans.append(Span(key, start, time.time(), process, threading.get_native_id()))


class Timeline:
    """The spans of one build, one per task."""

    def __init__(self) -> None:
        self._spans: dict[str, Span] = {}

    @property
    def spans(self) -> list[Span]:
        """All spans, ordered by start."""
        return sorted(self._spans.values(), key=lambda span: span.start)

    def add(self, spans: list[Span]) -> None:
        """Add spans; the first of each key stays."""
        for span in spans:
            self._spans.setdefault(span.key, span)

    @contextmanager
    def span(self, key: str) -> Iterator[None]:
        """Add the span of the block."""
        spans: list[Span] = []
        with measure(key, spans):
            yield
        self.add(spans)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the spans as a Chrome trace: open the file in Perfetto or chrome://tracing."""
        spans = self.spans
        origin = spans[0].start if spans else 0.0
        processes = sorted({span.process for span in spans})
        names = [
            {"name": "process_name", "ph": "M", "pid": number, "args": {"name": process}}
            for number, process in enumerate(processes)
        ]
        events = [
            {
                "name": span.key,
                "cat": span.stage,
                "ph": "X",
                "ts": round(1e6 * (span.start - origin)),
                "dur": round(1e6 * (span.stop - span.start)),
                "pid": processes.index(span.process),
                "tid": span.thread,
            }
            for span in spans
        ]
        Path(path).write_text(json.dumps({"traceEvents": [*names, *events]}))
