"""Workers connect to their scheduler, also on busy nodes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from zindex.cluster import member


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "_CONNECT_TICKS", 5)
    monkeypatch.setattr(member, "_TICK_SECONDS", 0.02)


def connect(start: Callable[[], Awaitable[object]]) -> None:
    worker = SimpleNamespace(name="node-1", start=start)
    asyncio.run(member.connect(worker, "tls://10.0.0.1:8786"))


def test_seconds_in_which_a_worker_does_not_run_do_not_count() -> None:
    async def start() -> None:
        for _ in range(3):
            time.sleep(0.2)
            await asyncio.sleep(0)

    connect(start)


def test_a_scheduler_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(TimeoutError, match=r"answers worker node-1 at tls://10\.0\.0\.1:8786"):
        connect(lambda: asyncio.Event().wait())


def test_the_error_of_a_start_is_raised() -> None:
    async def start() -> None:
        raise RuntimeError("Worker failed to start.")

    with pytest.raises(RuntimeError, match="failed to start"):
        connect(start)
