"""A cluster on the nodes of a job starts and ends with the job."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.cluster.processes import find_members, is_gone, wait_for, wait_until_gone
from tests.forked import Forked, run_fresh
from zindex.cluster import alongside
from zindex.cluster.job import JobPlace
from zindex.cluster.rendezvous import Rendezvous
from zindex.errors import ConfigError


def list_listeners(members: dict[str, psutil.Process]) -> list[str]:
    """Return the addresses at which processes listen."""
    return [
        connection.laddr.ip
        for process in members.values()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_a_cluster_lasts_as_long_as_its_block(tmp_path: Path) -> None:
    for _ in range(2):  # twice in one process
        with alongside(tmp_path, threads=1, nice=3) as cluster:
            assert cluster.address is not None
            assert cluster.address.startswith("tls://127.0.0.1:")
            assert cluster.client.submit(os.nice, 0).result() == 3
            assert cluster.folder is not None
            assert cluster.folder.parent == tmp_path
            members = find_members()
            assert sorted(members) == ["node", "scheduler", "worker"]
            assert list_listeners(members) == ["127.0.0.1", "127.0.0.1"]
        assert cluster.client is None
        wait_until_gone(members)
        assert not list(cluster.folder.glob("cluster.*"))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_dashboard_listens_on_loopback() -> None:
    with alongside(threads=1, dashboard=0) as cluster:
        assert cluster.client.dashboard_link.startswith("http://127.0.0.1:")
        assert list_listeners(find_members()) == ["127.0.0.1"] * 3


def test_processes_that_end_are_restarted(tmp_path: Path) -> None:
    with alongside(threads=1) as cluster:
        address = cluster.address
        for role in ("worker", "scheduler"):
            before = find_members()[role]
            before.send_signal(signal.SIGKILL)
            wait_until_gone({role: before})
            wait_for(lambda role=role: role in find_members(), f"a {role} is started")

        def works() -> bool:
            try:
                return bool(cluster.client.submit(len, "abc", pure=False).result(timeout=5) == 3)
            except Exception:  # futures of the lost scheduler
                return False

        wait_for(works, "the client works")
        assert cluster.address == address


LEADER = """
import sys, time
from zindex.cluster import alongside
with alongside(sys.argv[1], threads=1) as cluster:
    print("entered", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["rank", "node"])
def test_nothing_outlives_a_rank_or_a_node_that_is_killed(victim: str, tmp_path: Path) -> None:
    with Forked("-c", LEADER, str(tmp_path)) as rank:
        assert rank.stdout.readline() == "entered\n"
        members = find_members(rank.pid)
        assert len(members) == 3
        (rank if victim == "rank" else members["node"]).send_signal(signal.SIGKILL)
        wait_until_gone(members)


HELPER = """
import sys
from zindex.cluster import JobPlace, alongside
with alongside(sys.argv[1], job=JobPlace("other", "job", 1, 2, 1, 2)) as cluster:
    assert cluster.client is None and cluster.begin_build("none.yaml").wait() is None
    print([name for name in ("dask", "distributed", "torch", "numba") if name in sys.modules])
"""


def test_ranks_that_build_nothing_load_nothing(tmp_path: Path) -> None:
    done = run_fresh("-c", HELPER, str(tmp_path))
    assert done.stdout == "[]\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_second_node_finds_the_first_one_and_ends_with_it(tmp_path: Path) -> None:
    first, second = (JobPlace("other", "job", rank, 2, 0, 1) for rank in range(2))
    with (
        alongside(tmp_path, threads=1, host="127.0.0.1", job=first) as leader,
        alongside(tmp_path, threads=2, job=second) as helper,
    ):
        assert helper.client is None
        wait_for(lambda: len(leader.client.nthreads()) == 2, "both workers are there")
        assert sorted(leader.client.nthreads().values()) == [1, 2]
        assert leader.folder is not None
        assert helper.folder == leader.folder


def test_a_worker_above_its_memory_limit_is_restarted(tmp_path: Path) -> None:
    with alongside(tmp_path, threads=1, memory="600MiB") as cluster:
        before = find_members()["worker"]
        too_much = cluster.client.submit(np.ones, 1 << 27, retries=0)
        wait_for(lambda: is_gone(before), "the worker ends")
        too_much.cancel()
        wait_for(lambda: "worker" in find_members(), "a worker is started")
        assert cluster.folder is not None
        logs = "".join(path.read_text() for path in (cluster.folder / "logs").glob("worker-*"))
        assert "bytes; it is restarted" in logs


def test_a_scheduler_that_cannot_start_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Rendezvous.wait

    def wait_for_words(rendezvous: Rendezvous, seconds: float, *check: Any) -> Any:
        wait_for(lambda: "address" in rendezvous.last_log_line("scheduler"), "it has failed")
        return wait(rendezvous, 0.1, *check)

    monkeypatch.setattr(Rendezvous, "wait", wait_for_words)
    with (
        pytest.raises(ConfigError, match=r"none has \(its last words: .*address"),
        alongside(tmp_path, threads=1, host="192.0.2.1"),
    ):
        pass
    assert find_members() == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encryption": "some"}, "encryption must be one of"),
        ({"rendezvous": "mail"}, "rendezvous must be one of"),
        ({"rendezvous": "file"}, "needs folder=, a directory that all nodes share"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"memory": "much"}, "memory must be at least"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message), alongside(**settings):  # type: ignore[arg-type]
        pass
