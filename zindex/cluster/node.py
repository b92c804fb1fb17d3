"""A node's part of a cluster: ``python -m zindex.cluster.node`` keeps its processes running.

It starts the node's worker, on the first node the scheduler too, and starts again what ends, until
whoever started it closes the pipe, dies, or stops the cluster. Then nothing of it is left.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from zindex.cluster.meeting import LOGS, Meeting
from zindex.cluster.node_settings import NodeSettings
from zindex.cluster.resources import choose_memory, choose_scratch, choose_threads
from zindex.cluster.scratch import numba_cache, open_scratch

_POLL_SECONDS = 0.1
# Between the starts of a process that ends at once; it grows to the second one.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
# A process that has lived so long is no failed start.
_SOUND_SECONDS = 30.0
_GRACE_SECONDS = 2.0
# Seconds between looks at what changes slowly.
_SLOW_POLL_SECONDS = 1.0
# The share of a worker's memory at which it is ended, as Dask's nanny does.
_TERMINATE_SHARE = 0.95


class _Member:
    """One process that is kept running."""

    def __init__(self, role: str, settings: dict[str, Any], log: Path) -> None:
        self.role = role
        self.settings = settings
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.next_start = 0.0
        self.pause = _FIRST_PAUSE

    def keep(self, now: float) -> None:
        """Start the process if it is not running and it is time."""
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            sound = now - self.started > _SOUND_SECONDS
            self.pause = _FIRST_PAUSE if sound else min(2 * self.pause, _LONGEST_PAUSE)
            self.next_start = now + self.pause
            self._note(f"the {self.role} ended with {code}; it starts again")
        if now < self.next_start:
            return
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "zindex.cluster.member", self.role],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
            )
        self.started = now
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps(self.settings).encode() + b"\n")

    def check_memory(self) -> None:
        """End a process that takes more than it may, before the system ends the training."""
        limit = self.settings["memory"]
        if self.process is None or not limit:
            return
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return
        nbytes = pages * os.sysconf("SC_PAGE_SIZE")
        if nbytes > _TERMINATE_SHARE * limit:
            self._note(f"the {self.role} took {nbytes:,} of {limit:,} bytes; it is started anew")
            self.process.kill()

    def _note(self, sentence: str) -> None:
        with self.log.open("a") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} zindex: {sentence}\n")


class Node:
    """The processes of a node.

    Parameters
    ----------
    settings
        What to run.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.name = settings.name or f"{os.uname().nodename}-{os.getpid()}"
        self.place = Path(choose_scratch(settings.scratch))
        self.ended = threading.Event()

    def run(self) -> None:
        """Keep the processes running until the node is to end."""
        if not os.environ.get("NUMBA_CACHE_DIR"):
            os.environ["NUMBA_CACHE_DIR"] = str(numba_cache(self.place))
        # One thread per task: the worker's threads are the parallelism.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = "1"
        with open_scratch(self.place) as scratch:
            meeting = Meeting(self.settings.meeting or scratch / "meeting")
            if self.settings.packed is not None:
                meeting.unpack(self.settings.packed)
            meeting.open()
            members = self._members(meeting, scratch)
            try:
                with meeting.attend():
                    self._keep(members, meeting)
            finally:
                self._end([member.process for member in members if member.process is not None])

    def _keep(self, members: list[_Member], meeting: Meeting) -> None:
        # Of an earlier cluster that met here, until the first node clears it away.
        earlier = meeting.find_stop()
        slow = 0.0
        while not self.ended.wait(_POLL_SECONDS):
            now = time.monotonic()
            for member in members:
                member.keep(now)
            if now >= slow:
                slow = now + _SLOW_POLL_SECONDS
                for member in members:
                    member.check_memory()
                if meeting.find_stop() not in (None, earlier):
                    break

    def _members(self, meeting: Meeting, scratch: Path) -> list[_Member]:
        settings = self.settings
        logs = meeting.folder / LOGS
        common = {
            "meeting": str(meeting.folder),
            "supervisor": os.getpid(),
            "scratch": str(scratch),
        }
        members = []
        if settings.scheduler_host is not None:
            scheduler = {
                "host": settings.scheduler_host,
                "dashboard": settings.dashboard,
                "num_nodes": settings.num_nodes,
                "nice": 0,
                "memory": 0,
            }
            members.append(_Member("scheduler", common | scheduler, logs / "scheduler.log"))
        if settings.threads != 0:
            worker = {
                "threads": choose_threads(settings.threads, settings.num_ranks),
                "memory": choose_memory(settings.memory),
                "name": self.name,
                "nice": settings.nice,
                "patience": settings.patience,
            }
            log = logs / f"worker-{self.name}.log"
            members.append(_Member("worker", common | worker, log))
        return members

    @staticmethod
    def _end(processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # such as one that is stopped
                process.kill()
                process.wait()


def _watch_pipe(pipe: IO[bytes], ended: threading.Event) -> None:
    """Wait until the other end of the pipe is closed, as it is when its process dies."""
    with suppress(OSError):
        while pipe.read(1):
            pass
    ended.set()


def main() -> None:
    """Run the node whose settings come as one line of JSON."""
    pipe = sys.stdin.buffer
    node = Node(NodeSettings(**json.loads(pipe.readline())))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *arguments: node.ended.set())
    if node.settings.lifeline:
        watcher = threading.Thread(target=_watch_pipe, args=(pipe, node.ended), daemon=True)
        watcher.start()
    node.run()


if __name__ == "__main__":
    main()
