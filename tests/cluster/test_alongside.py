"""A cluster on the nodes of a job starts and ends with the job."""

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

import zindex
from tests.cluster.processes import find_members, find_nodes, is_gone, wait_for, wait_until_gone
from tests.conftest import WriteCorpus
from tests.forked import Forked, run_fresh, start_interpreter
from tests.indexing.runs import make_config
from zindex.cluster import alongside
from zindex.cluster.job import JobPlace
from zindex.cluster.rendezvous import LOGS, Rendezvous
from zindex.errors import ConfigError
from zindex.execution.executor import ambient_client


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
    cluster = alongside(threads=1, dashboard=0)
    cluster._settings.silent_seconds = 600  # the first page imports much
    with cluster:
        assert cluster.client is not None
        link = cluster.client.dashboard_link
        assert link.startswith("http://127.0.0.1:")
        with urlopen(link) as page:
            assert b"Bokeh" in page.read()
        with urlopen(link.replace("/status", "/metrics")) as metrics:
            assert b"dask_scheduler_workers" in metrics.read()
        assert list_listeners(find_members()) == ["127.0.0.1"] * 3


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_process_that_is_stopped_is_replaced(role: str) -> None:
    cluster = alongside(threads=1)
    cluster._settings.silent_seconds = 3
    with cluster:
        assert cluster.client is not None
        members = find_members()
        members[role].send_signal(signal.SIGSTOP)
        wait_until_gone({role: members[role]})

        def is_replaced() -> bool:
            found = find_members()
            return role in found and found[role].pid != members[role].pid

        wait_for(is_replaced, f"another {role} starts")
        wait_for(lambda: works(cluster.client), "the client works")
        (log,) = (cluster.folder / "logs").glob(f"{role}*.log")
        assert f"the {role} sent no heartbeat; it is replaced" in log.read_text()
        assert find_members()["node"] == members["node"]


def works(client: Any) -> bool:
    """Return whether a client runs tasks; futures of a lost scheduler fail."""
    try:
        return bool(client.submit(len, "abc", pure=False).result(timeout=5) == 3)
    except Exception:
        return False


def test_processes_that_end_are_restarted(tmp_path: Path) -> None:
    with alongside(threads=1) as cluster:
        address = cluster.address
        for role in ("worker", "scheduler"):
            before = find_members()[role]
            before.send_signal(signal.SIGKILL)
            wait_until_gone({role: before})
            wait_for(lambda role=role: role in find_members(), f"a {role} is started")

        wait_for(lambda: works(cluster.client), "the client works")
        assert cluster.address == address


LEADER = """
import sys, time
from zindex.cluster import alongside
with alongside(sys.argv[1], threads=1) as cluster:
    cluster.client
    print("entered", flush=True)
    time.sleep(600)
"""


def test_nothing_outlives_a_rank_that_is_killed(tmp_path: Path) -> None:
    with Forked("-c", LEADER, str(tmp_path), forks=True) as rank:
        assert rank.stdout.readline() == "entered\n"
        members = find_members(rank.pid)
        assert len(members) == 3
        rank.send_signal(signal.SIGKILL)
        wait_until_gone(members)
        assert list(tmp_path.rglob("cluster.key")) == []


@pytest.mark.parametrize("victim", ["first", "second"])
def test_a_node_that_is_killed_is_started_again(
    victim: str, tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    first, second = (JobPlace("other", "job", rank, 2, 0, 1) for rank in range(2))
    scratch = tmp_path / "scratch"
    shared = {"threads": 1, "host": "127.0.0.1", "scratch": scratch}
    with alongside(tmp_path, job=first, **shared) as leader:
        assert len(leader.client.nthreads()) == 1
        of_first = find_nodes()
        with alongside(tmp_path, job=second, **shared):
            wait_for(lambda: len(leader.client.nthreads()) == 2, "both workers are there")
            (node,) = of_first if victim == "first" else find_nodes() - of_first
            members = find_members(node.pid)
            node.kill()
            wait_until_gone(members)
            wait_for(lambda: len(find_nodes()) == 2, "a node is started")

            def works() -> bool:
                try:
                    return len(leader.client.nthreads()) == 2
                except Exception:  # the scheduler is lost
                    return False

            wait_for(works, "both workers are there again")
            # The scratch folder of the killed node is swept.
            assert len(list(scratch.iterdir())) == 2
            config = make_config(tmp_path, write_corpus([5, 7, 3, 9] * 4))
            assert zindex.build(config, client=leader.client)
    wait_for(lambda: not find_nodes(), "the nodes end")


HELPER = """
import sys
from zindex.cluster import JobPlace, alongside
with alongside(sys.argv[1], job=JobPlace("other", "job", 1, 2, 1, 2)) as cluster:
    cluster.client
    building = cluster.begin_build(sys.argv[2])
    assert cluster.client is None and len(building.wait()) == 1 and building.is_done
    print([name for name in ("dask", "distributed", "torch", "numba") if name in sys.modules])
"""


def test_ranks_that_build_nothing_load_nothing(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    (tmp_path / "run.yaml").write_text(
        f"sequence_length: 4\nsplit: '1,0,0'\ndatasets: [{write_corpus([5, 7, 3, 9])}]\n"
    )
    zindex.build(tmp_path / "run.yaml")
    (tmp_path / "cluster").mkdir()
    done = run_fresh("-c", HELPER, str(tmp_path / "cluster"), str(tmp_path / "run.yaml"))
    assert done.stdout == "[]\n", done.stderr
    assert list((tmp_path / "cluster").iterdir()) == []


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


def test_a_worker_above_its_memory_limit_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fork begins with the memory of the tests' process.
    monkeypatch.setattr("subprocess.Popen._execute_child", start_interpreter)
    with alongside(tmp_path, threads=1, memory="600MiB") as cluster:
        assert cluster.client is not None
        before = find_members()["worker"]
        too_much = cluster.client.submit(np.ones, 1 << 27, retries=0)
        wait_for(lambda: is_gone(before), "the worker ends")
        too_much.cancel()
        wait_for(lambda: "worker" in find_members(), "a worker is started")
        assert cluster.folder is not None
        logs = "".join(path.read_text() for path in (cluster.folder / "logs").glob("worker-*"))
        assert "bytes; it is restarted" in logs
        assert re.search(
            r"the worker has 1 of \d+ processors and 629,145,600 of [\d,]+ bytes", logs
        )
        assert "memory bandwidth" in logs


def test_a_scheduler_that_cannot_start_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Rendezvous.wait

    def wait_for_its_end(rendezvous: Rendezvous, seconds: float, *check: Any) -> Any:
        logs = rendezvous.folder / LOGS
        wait_for(
            lambda: any(" ended with " in log.read_text() for log in logs.glob("*scheduler*")),
            "it has failed",
        )
        return wait(rendezvous, 0.1, *check)

    monkeypatch.setattr(Rendezvous, "wait", wait_for_its_end)
    with (
        pytest.raises(ConfigError, match=r"none has \(its last words: .*address"),
        alongside(tmp_path, threads=1, host="192.0.2.1") as cluster,
    ):
        _ = cluster.client
    assert find_members() == {}


def test_a_block_is_entered_before_the_scheduler_runs(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, may_go_on = Rendezvous.wait, threading.Event()

    def wait_for_the_test(*args: Any) -> Any:
        assert may_go_on.wait(60)
        return wait(*args)

    monkeypatch.setattr(Rendezvous, "wait", wait_for_the_test)
    config = make_config(tmp_path, write_corpus([5, 7, 3, 9] * 4))
    with alongside(threads=1) as cluster:
        building = cluster.begin_build(config)
        assert not building.is_done
        may_go_on.set()
        # Without a client of its own a build takes the one that is coming.
        result = zindex.build(config)
        assert {done.store.kind for done in result.values()} == {"index"}
        assert ambient_client() is cluster.client
        building.wait()
    assert ambient_client() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encryption": "some"}, "encryption must be one of"),
        ({"rendezvous": "mail"}, "rendezvous must be one of"),
        ({"rendezvous": "file"}, "needs folder=, a directory that all nodes share"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"memory": "much"}, "memory must be at least"),
        ({"bandwidth": 0.0}, "bandwidth must be a share of the memory bandwidth above 0 and at"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message), alongside(**settings):  # type: ignore[arg-type]
        pass
