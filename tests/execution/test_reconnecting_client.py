"""Clients that find a restarted scheduler: short attempts, for as long as they may."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from distributed.client import FutureState

from tests.cluster.dask_processes import DaskProcesses
from tests.cluster.processes import wait_for
from zindex.errors import ConfigError
from zindex.execution.reconnecting_client import connect_client


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DaskProcesses]:
    with DaskProcesses(tmp_path, num_workers=0) as running:
        yield running


def test_lost_scheduler_is_looked_for_often_until_patience_ends(
    processes: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[Any] = []
    connect = Client._ensure_connected

    async def note_and_connect(self: Client, timeout: float | None = None) -> None:
        timeouts.append(timeout)
        await connect(self, timeout=timeout)

    monkeypatch.setattr(Client, "_ensure_connected", note_and_connect)
    # The first connection waits for a scheduler that is being started.
    with connect_client(processes.address, timeout=50, patience=100) as client:
        assert (timeouts, client._timeout) == ([50], 100)
        processes.signal("scheduler")
        wait_for(lambda: client.status != "running", "the scheduler is lost")
        wait_for(lambda: client.status == "running", "it is found again")
        assert len(timeouts) > 1
        assert max(timeouts[1:]) <= 3
        # Where no scheduler comes, it gives up.
        client._timeout = 0.3
        processes.take_down("scheduler")
        wait_for(lambda: client.status == "closed", "the client gives up")


def test_tasks_may_be_submitted_while_others_are_said_to_be_lost(
    processes: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a build, in a thread of its own: the search for a scheduler must not end by it."""
    submitted: list[Any] = []
    cancel = FutureState.cancel

    def cancel_and_submit(self: FutureState, **reason: Any) -> None:
        cancel(self, **reason)
        if reason.get("reason") == "scheduler-connection-lost":
            submitted.append(client.submit(int, 2, pure=False))

    with connect_client(processes.address, timeout=50) as client:
        lost = [client.submit(int, 1, pure=False) for _ in range(3)]
        monkeypatch.setattr(FutureState, "cancel", cancel_and_submit)
        processes.signal("scheduler")
        wait_for(lambda: len(submitted) == 3, "all are lost")
        wait_for(lambda: client.status == "running", "the scheduler is found again")
        assert [future.status for future in lost] == ["cancelled"] * 3


def test_a_wrong_address_fails_immediately() -> None:
    with pytest.raises(ConfigError, match=r"must answer at tcp://127\.0\.0\.1:9, none does: Timed"):
        connect_client("tcp://127.0.0.1:9", timeout=0.3)


def test_encryption_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="needs a certificate, Dask's configuration names none"):
        connect_client("tls://127.0.0.1:9")
