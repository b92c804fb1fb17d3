"""The supervisor of a node, as a process."""

import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import find_members, wait_for, wait_until_gone
from tests.forked import start_interpreter
from zindex.cluster.node import Node
from zindex.cluster.rendezvous import Rendezvous
from zindex.cluster.settings import NodeSettings
from zindex.cluster.starting import (
    NODE_COMMAND,
    open_client,
    prepare_scheduler,
    start_and_wait,
    start_node,
)


def test_a_node_that_is_terminated_ends_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "rendezvous"
    settings = NodeSettings(str(folder), threads=1, memory=1 << 30, scratch=str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(NODE_COMMAND, **pipes) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(settings.to_json().encode() + b"\n")
        node.stdin.flush()
        wait_for(lambda: any((folder / "logs").glob("worker-*")), "a worker starts")
        node.terminate()
        output = node.stdout.read()  # the pipe to it stays open
        assert (node.wait(), output) == (0, b"")


def make_once(path: str) -> int:
    """Make a result, and count how often."""
    with open(path, "a") as stream:
        stream.write("once\n")
    return 5


def test_a_node_that_is_taken_away_hands_its_results_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fork of a worker that has ended would start before the end of the test.
    monkeypatch.setattr("subprocess.Popen._execute_child", start_interpreter)
    # At idle priority, tests beside it may keep a worker from its heartbeats.
    common: dict[str, Any] = {"threads": 1, "memory": 1 << 30, "nice": 0}
    common["scratch"] = str(tmp_path)
    rendezvous = Rendezvous(tmp_path / "rendezvous")
    first = NodeSettings(name="first", num_nodes=2, **common)
    second = NodeSettings(str(rendezvous.folder), name="second", **common)
    prepare_scheduler(rendezvous, first, "127.0.0.1")
    with ExitStack() as stack:
        start_and_wait(rendezvous, first, stack)
        node = start_node(second, stack)
        client = open_client(rendezvous, stack, default=False)
        client.wait_for_workers(2)
        made = client.submit(make_once, str(tmp_path / "made"), workers="second")
        assert made.result() == 5
        # An announcement to training that the job will end changes nothing.
        for process in (node, find_members(node.pid)["worker"]):
            process.send_signal(signal.SIGUSR1)
            process.send_signal(signal.SIGUSR2)
        node.terminate()
        assert node.wait() == 0
        assert [worker["name"] for worker in client.scheduler_info()["workers"].values()] == [
            "first"
        ]
        assert client.submit(make_list, made, pure=False).result() == [5]
        assert (tmp_path / "made").read_text() == "once\n"
        # All processes of a node are signalled at once, and the last worker has no receiver.
        members = find_members()
        for member in ("scheduler", "worker"):
            members[member].terminate()
        wait_until_gone({"worker": members["worker"]})
        assert members["scheduler"].is_running()
        # Read now: the worker is restarted, and cancelled at the end.
        first_log = (rendezvous.folder / "logs" / "worker-first.log").read_text()
    log = (rendezvous.folder / "logs" / "worker-second.log").read_text()
    assert "worker second retires: results move, other workers take its tasks" in log
    assert "lost" not in log
    assert "Traceback" not in first_log


def make_list(value: int) -> list[int]:
    return [value]


def test_a_worker_that_retires_is_not_throttled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the node sets them
    node = Node(NodeSettings(threads=0, scratch=str(tmp_path)))
    node.throttle.share = 0.05
    node.ended.set()
    node.run()
    assert node.throttle.share == 1


def test_a_node_ends_if_it_comes_after_the_request_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = Rendezvous(tmp_path / "rendezvous")
    rendezvous.create()
    rendezvous.stop()
    settings = NodeSettings(str(rendezvous.folder), threads=0, scratch=str(tmp_path))
    Node(settings).run()
    # One that was there before the node was asked for is of an earlier cluster.
    node, looks = Node(replace(settings, earlier_stop=rendezvous.find_stop())), list[None]()
    find_stop = Rendezvous.find_stop
    monkeypatch.setattr(Rendezvous, "find_stop", lambda _: looks.append(None) or find_stop(_))
    thread = threading.Thread(target=node.run)
    thread.start()
    wait_for(lambda: len(looks) == 2, "it has looked twice")
    rendezvous.create()
    rendezvous.stop()
    thread.join(60)
    assert not thread.is_alive()


REPORT = """
import signal, sys
def end(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("begins", sys.stdin.readline()[:1], flush=True)
sys.stdin.read()
print("closed", flush=True)
"""


@pytest.mark.parametrize(
    ("host", "error", "expected"),
    [
        (None, KeyboardInterrupt(signal.SIGTERM), "SIGTERM"),
        ("127.0.0.1", KeyboardInterrupt(signal.SIGTERM), "closed"),  # the scheduler goes, too
        (None, KeyboardInterrupt(), "closed"),
        (None, ValueError(), "closed"),
    ],
)
def test_a_node_learns_that_its_pod_is_taken_away(
    tmp_path: Path, host: str | None, error: BaseException, expected: str
) -> None:
    log, stack = tmp_path / "log", ExitStack()
    settings = NodeSettings(scheduler_host=host)
    start_node(settings, stack, [sys.executable, "-c", REPORT], log)
    wait_for(lambda: "begins" in log.read_text(), "the node begins")
    stack.__exit__(type(error), error, None)
    assert log.read_text().split() == ["begins", "{", expected]
