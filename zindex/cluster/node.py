"""Node supervisor: ``python -m zindex.cluster.node`` keeps a node's processes running.

It starts the node's worker, and on the first node also the scheduler, and restarts them when they
end. It ends them all when its parent closes the pipe or dies, or the cluster is stopped.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zindex.cluster.bandwidth import Guard, guard_bandwidth
from zindex.cluster.isolation import Throttle, least_weight_group
from zindex.cluster.rendezvous import LOGS, POLL_SECONDS, Rendezvous
from zindex.cluster.resources import (
    choose_cpus,
    choose_memory,
    choose_scratch,
    choose_threads,
    open_scratch,
    usable_cpus,
)
from zindex.cluster.settings import IDLE, RETIRE_SECONDS, NodeSettings
from zindex.io.backoff import Backoff
from zindex.io.machine import count_cpus, usable_memory

# Initial and maximum restart backoff in seconds.
_RESTART_SECONDS = 0.2, 5.0
# Uptime in seconds after which a process counts as started.
_SOUND_SECONDS = 30.0
# Seconds that a worker has to end after it has retired.
_GRACE_SECONDS = 2.0
# Seconds between checks of memory and of a stop request.
_SLOW_POLL_SECONDS = 1.0
# Gap between checks, in seconds, that means that this process was itself stopped.
_STOPPED_SECONDS = 5.0
# Heartbeat interval in the list of nodes, in seconds.
_TOUCH_SECONDS = 30.0
# Fraction of a worker's memory limit at which it is ended, as in Dask's nanny.
_TERMINATE_SHARE = 0.95


@dataclass(eq=False)
class _Member:
    """A supervised process."""

    role: str
    settings: dict[str, Any]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(*_RESTART_SECONDS))
    next_start: float = 0.0
    throttle: Throttle | None = None
    # The last heartbeat, and when it was seen.
    seen: tuple[float, float] = (0.0, 0.0)

    def keep(self, now: float) -> None:
        """Start the process if it is not running and its backoff has passed."""
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            if now - self.next_start > _SOUND_SECONDS:
                self.backoff.restart()
            self.next_start = now + self.backoff.next_pause()
            self.log_line(f"the {self.role} ended with {code}; it starts again")
        if now < self.next_start:
            return
        Path(self.settings["alive"]).unlink(missing_ok=True)
        command = [sys.executable, "-m", "zindex.cluster.member", self.role]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        if self.throttle is not None:
            self.throttle.watch(self.process)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps(self.settings).encode() + b"\n")

    def check_memory(self) -> None:
        """End the process if it exceeds its memory limit, before the OOM killer ends training."""
        limit = self.settings["memory"]
        if self.process is None or not limit:
            return
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return
        nbytes = pages * os.sysconf("SC_PAGE_SIZE")
        if nbytes > _TERMINATE_SHARE * limit:
            self.log_line(f"the {self.role} took {nbytes:,} of {limit:,} bytes; it is restarted")
            self.process.kill()

    def check_alive(self, now: float, last_check: float) -> None:
        """End the process if its heartbeat is missing, for example because it is stopped.

        If the supervisor itself was stopped, the timeout starts again.
        """
        if self.process is None:
            return
        try:
            touched = os.stat(self.settings["alive"]).st_mtime
        except OSError:
            return  # it is starting, or waits for the scheduler
        if touched != self.seen[0] or now - last_check > _STOPPED_SECONDS:
            self.seen = touched, now
        elif now - self.seen[1] > self.settings["silent_seconds"]:
            self.log_line(f"the {self.role} sent no heartbeat; it is replaced")
            self.process.kill()

    def log_line(self, sentence: str) -> None:
        """Write a sentence to the log of the process."""
        with self.log.open("a") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} zindex: {sentence}\n")


class Node:
    """Supervisor of the processes of a node.

    Parameters
    ----------
    settings
        What to run.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.name = settings.name or f"{os.uname().nodename}-{os.getpid()}"
        self.scratch = Path(choose_scratch(settings.scratch))
        self.ended = threading.Event()
        #: Whether the node is being shut down by its machine.
        self.retires = threading.Event()
        self.throttle = Throttle()

    def run(self) -> None:
        """Keep the processes running until the node is asked to stop."""
        # One thread per task: the worker's threads provide the parallelism.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = "1"
        with ExitStack() as stack:
            scratch = stack.enter_context(open_scratch(self.scratch))
            group = stack.enter_context(least_weight_group(str(os.getpid())))
            guard = stack.enter_context(self._guard_bandwidth())
            rendezvous = Rendezvous(self.settings.rendezvous or scratch / "rendezvous")
            if self.settings.packed is not None:
                rendezvous.unpack(self.settings.packed)
            rendezvous.open()
            members = self._members(rendezvous, scratch, group, guard)
            key = rendezvous.find_key() if self.settings.scheduler_host is not None else None
            try:
                with rendezvous.register_node() as entry:
                    self._supervise(members, rendezvous, entry)
            finally:
                self.throttle.share = 1.0  # or else it may not retire in time
                _end(members, retire=self.retires.is_set())
                # The process that made the key may have been killed.
                rendezvous.remove_key(key)

    def _supervise(self, members: list[_Member], rendezvous: Rendezvous, entry: Path) -> None:
        earlier = self.settings.earlier_stop and (*self.settings.earlier_stop,)
        next_check = next_touch = last_check = 0.0
        published = time.monotonic()
        while not self.ended.wait(POLL_SECONDS):
            now = time.monotonic()
            for member in members:
                member.keep(now)
            if now >= next_check:
                next_check = now + _SLOW_POLL_SECONDS
                for member in members:
                    member.check_memory()
                    member.check_alive(now, last_check)
                last_check = now
                if now >= next_touch:
                    next_touch = now + _TOUCH_SECONDS
                    with suppress(OSError):
                        entry.touch()
                if rendezvous.find_stop() not in (None, earlier):
                    break
                if not self.settings.ends_with_scheduler or rendezvous.read() is not None:
                    published = now
                elif now - published > self.settings.start_timeout:
                    break

    def _guard_bandwidth(self) -> AbstractContextManager[Guard]:
        """Choose the number of threads, and limit their memory bandwidth."""
        settings = self.settings
        if settings.threads == 0:  # no worker
            return nullcontext(Guard(0, ""))
        threads = choose_threads(settings.threads, settings.num_ranks)
        return guard_bandwidth(settings.bandwidth, threads, is_fixed=settings.threads is not None)

    def _members(
        self, rendezvous: Rendezvous, scratch: Path, group: Path | None, guard: Guard
    ) -> list[_Member]:
        settings = self.settings
        logs = rendezvous.folder / LOGS
        common = asdict(settings) | {
            "rendezvous": str(rendezvous.folder),
            "supervisor": os.getpid(),
            "scratch": str(scratch),
            "packed": None,
        }
        members = []
        if settings.scheduler_host is not None:
            scheduler = common | {"memory": 0, "alive": str(scratch / "scheduler.alive")}
            members.append(_Member("scheduler", scheduler, logs / "scheduler.log"))
        if guard.threads:
            groups = [] if group is None or settings.nice < IDLE else [group / "cgroup.procs"]
            groups += [] if guard.group is None else [guard.group / "tasks"]
            worker = common | {
                "threads": guard.threads,
                "memory": choose_memory(settings.memory),
                "name": self.name,
                "alive": str(scratch / "worker.alive"),
                "groups": [str(file) for file in groups],
            }
            worker["cpus"] = sorted(choose_cpus(worker["threads"]))
            log = logs / f"worker-{self.name}.log"
            members.append(_Member("worker", worker, log, throttle=self.throttle))
            members[-1].log_line(
                f"the worker has {worker['threads']} of {count_cpus(usable_cpus())} processors and "
                f"{worker['memory']:,} of {usable_memory():,} bytes that this job may take"
            )
            members[-1].log_line(guard.sentence)
        return members


def _end(members: list[_Member], *, retire: bool) -> None:
    """End processes; shards are written atomically.

    With ``retire``, workers first transfer their results; the scheduler runs until then.
    """
    members = [member for member in members if member.process is not None]
    for member in members:
        assert member.process is not None
        if retire and member.role == "worker":
            member.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(RETIRE_SECONDS + _GRACE_SECONDS)
    for member in members:
        assert member.process is not None
        member.process.kill()
        member.process.wait()


def _watch_pipe(descriptor: int, node: Node) -> None:
    """End the node when the other end of the pipe closes, for example because its process dies.

    Each byte sets the worker's share of the time, in 255ths. Reads are unbuffered, because Python
    would wait for a buffer's lock at exit.
    """
    with suppress(OSError):
        while content := os.read(descriptor, 1):
            node.throttle.share = content[0] / 255
    node.ended.set()


def main() -> None:
    """Run a node with settings from standard input, one line of JSON."""
    pipe = sys.stdin.buffer
    node = Node(NodeSettings(**json.loads(pipe.readline())))

    def end(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            node.retires.set()
        node.ended.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    # Schedulers announce the end of a job to all of its processes; members inherit this.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if node.settings.is_tied_to_pipe:
        arguments = pipe.fileno(), node
        watcher = threading.Thread(target=_watch_pipe, args=arguments, daemon=True)
        watcher.start()
    node.run()


if __name__ == "__main__":
    main()
