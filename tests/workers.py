"""Tests in several processes, ``pytest -n 4``: forks of the one that has collected them.

To import and to collect the tests takes 20 seconds. Each process takes one file after another, in
alphabetical order: the tests of a file share servers, and the long ones (benchmarks, cluster,
examples) start early. A test that hangs in C code, which no exception ends, is reported with the
place of its main thread, and runs once more in another process.
"""

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count, groupby, pairwise
from multiprocessing.connection import wait
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from zindex.execution.worker_tasks import die_with

_FORKS = multiprocessing.get_context("fork")
# An interrupted process may wait for threads of its test.
_END_SECONDS = 10
_MARGIN = 1.2  # pytest-timeout cannot end a test that waits in C code
# Prints where the main thread is: pytest's own dump ends after a hundred threads.
_SHOW = signal.SIGRTMAX - 1


class Worker:
    """A process that runs tests and sends their reports, and None for more tests.

    Parameters
    ----------
    session
        Has collected the tests.
    number
        That of the process.
    """

    def __init__(self, session: pytest.Session, number: int) -> None:
        self._session = session
        self._config: Any = session.config
        #: Tests that were given to it, from the one that runs.
        self.items: deque[pytest.Item] = deque()
        #: Of the process that reads it.
        self.connection, self._other = _FORKS.Pipe()
        self.process = _FORKS.Process(target=self._work, args=(number,))
        self.process.start()
        self._heard = time.monotonic()
        #: Whether it was killed for that.
        self.is_stuck = False

    def receive(self) -> Any:
        """Return its next message."""
        self._heard = time.monotonic()
        return self.connection.recv()

    def end_if_stuck(self) -> None:
        """Kill it where a test, or the end of all, lasts longer than pytest-timeout allows."""
        limit = _MARGIN * float(self._config.getini("timeout"))
        if self.process.is_alive() and time.monotonic() - self._heard > limit:
            assert self.process.pid is not None
            os.kill(self.process.pid, _SHOW)
            time.sleep(1)
            self.is_stuck = True
            self.process.kill()

    def give(self, items: list[pytest.Item]) -> None:
        """Answer a request for more tests; none ends the process."""
        self.items += items
        self.connection.send([item.nodeid for item in items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._other.send(data)

    def _receive(self) -> Iterator[pytest.Item]:
        items = {item.nodeid: item for item in self._session.items}
        while True:
            self._other.send(None)
            if not (names := self._other.recv()):
                return
            yield from (items[name] for name in names)

    def _work(self, number: int) -> None:
        die_with(os.getppid())
        faulthandler.register(_SHOW, self._config.stash[fault_handler_stderr_fd_key], False)
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(self)
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()
        if forked := sys.modules.get("tests.forked"):
            forked.fork_commands("zindex.cluster.node")
        capture.start_global_capturing()  # into files of its own
        capture.suspend_global_capture()
        temporary = self._config._tmp_path_factory
        temporary._basetemp /= f"worker-{number}"
        temporary._basetemp.mkdir()
        with suppress(KeyboardInterrupt):
            for item, following in pairwise(chain(self._receive(), [None])):
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._session._setupstate.teardown_exact(None)  # what an interrupt left
        # As an interpreter ends: multiprocessing leaves these out.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def pytest_addoption(parser: pytest.Parser) -> None:
    group: Any = parser.getgroup("workers")
    group._addoption("-n", dest="num_workers", type=int, default=0, help="processes; 0: this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in workers."""
    config: Any = session.config
    if not config.option.num_workers or config.option.collectonly or session.testsfailed:
        return None
    config._tmp_path_factory.getbasetemp()
    if config.option.num_workers > 1 and (forked := sys.modules.get("tests.forked")):
        forked.share_server()
    files = deque(list(items) for _, items in groupby(session.items, lambda item: item.path))
    numbers = count()
    stuck: set[str] = set()
    workers = [Worker(session, next(numbers)) for _ in range(config.option.num_workers)]
    try:
        while workers:
            wait([worker.connection for worker in workers], timeout=1)
            for worker in [*workers]:
                ended = not worker.process.is_alive()  # before its last words are read
                while worker.connection.poll():
                    _handle(session, worker, worker.receive(), files)
                worker.end_if_stuck()
                if ended:
                    workers.remove(worker)
                if ended and worker.process.exitcode and not worker.items:
                    session.shouldfail = "a process did not end after its tests"
                if ended and worker.is_stuck and worker.items[0].nodeid not in stuck:
                    stuck.add(worker.items[0].nodeid)
                    print(f"\n{worker.items[0].nodeid} hung: once more, in another process")
                    files.appendleft([*worker.items])
                    workers.append(Worker(session, next(numbers)))
                elif ended and worker.items:
                    item, *rest = worker.items
                    error = f"its process ended with exit code {worker.process.exitcode}"
                    outcome = pytest.TestReport(
                        item.nodeid, item.location, {}, "failed", error, "call"
                    )
                    config.hook.pytest_runtest_logreport(report=outcome)
                    files.appendleft(rest)
                    workers.append(Worker(session, next(numbers)))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    finally:
        for worker in workers:
            if worker.process.pid is not None and worker.process.is_alive():
                os.kill(worker.process.pid, signal.SIGINT)
        for worker in workers:
            worker.process.join(_END_SECONDS)
            worker.process.kill()
            worker.process.join()
    return True


def _handle(
    session: pytest.Session, worker: Worker, data: Any, files: deque[list[pytest.Item]]
) -> None:
    """Do what a message of a worker asks for."""
    if data is None:
        worker.give(files.popleft() if files else [])
        return
    hook = session.config.hook
    report = hook.pytest_report_from_serializable(config=session.config, data=data)
    hook.pytest_runtest_logreport(report=report)
    if report.when == "teardown":
        item = worker.items.popleft()
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
