"""Watchdog thread that logs stuck parts of a cluster, and their recovery."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from zindex.wording import count_noun

logger = logging.getLogger("zindex.cluster")

# Timeout of one scheduler call, in seconds.
_CALL_SECONDS = 5.0
# Seconds that a cluster may have no worker, while those of a lost scheduler restart.
_RESTART_SECONDS = 20.0
# Suffix that the executor appends to the name of each task.
_SUFFIX = re.compile(r"-[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class WorkerView:
    """State of one worker, as reported by the scheduler."""

    name: str
    address: str
    host: str
    #: Seconds since its last heartbeat.
    silence: float
    #: Number of unfinished tasks assigned to it.
    num_tasks: int
    #: Running tasks, and the duration of each in seconds.
    running: dict[str, float] = field(default_factory=dict)
    threads: int = 0
    #: Memory use and limit in bytes.
    memory: int = 0
    memory_limit: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """State of a cluster, as reported by its scheduler."""

    workers: list[WorkerView]
    #: Number of unfinished tasks, and the name of one of them.
    num_waiting: int
    waiting: str
    #: Number of state transitions of all tasks; never decreases.
    num_steps: int


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A stuck part of the cluster."""

    #: Key that identifies it across checks.
    subject: tuple[str, ...]
    #: Messages for its start and its end.
    sentence: str
    relief: str
    #: Logged again when this value changes.
    state: Any = None
    #: The affected worker, and the message to log if that worker is lost.
    address: str = ""
    loss: str = ""


def view_cluster(dask_scheduler: Any) -> ClusterView:
    """Return the state of a scheduler; runs in the scheduler process."""
    now = time.time()
    workers = [
        WorkerView(
            name=str(worker.name),
            address=worker.address,
            host=worker.host,
            silence=max(0.0, now - worker.last_seen),
            num_tasks=len(worker.processing),
            running={
                str(task.key): seconds + now - worker.last_seen
                for task, seconds in worker.executing.items()
            },
            threads=worker.nthreads,
            memory=worker.metrics.get("memory", 0),
            memory_limit=worker.memory_limit or 0,
        )
        for worker in dask_scheduler.workers.values()
    ]
    states = ("waiting", "no-worker", "queued", "processing")
    waiting = [key for key, task in dask_scheduler.tasks.items() if task.state in states]
    first = str(waiting[0]) if waiting else ""
    return ClusterView(workers, len(waiting), first, dask_scheduler.transition_counter)


@dataclass(eq=False)
class Watchdog:
    """Log once when part of a cluster is stuck, and once when it recovers; a context manager.

    It polls the scheduler from its own thread; its errors never affect a build.

    Parameters
    ----------
    client
        A synchronous ``distributed.Client``.
    num_workers
        Expected number of workers, one per node.
    task_limit
        Timeout in seconds for a task, or for progress of the whole cluster.
    silence_limit
        Heartbeat timeout of a worker, in seconds.
    start_limit
        Seconds that expected workers may be missing.
    interval
        Seconds between polls.
    clock
        Monotonic clock, in seconds.
    """

    client: Any
    num_workers: int = 1
    task_limit: float = 300.0
    silence_limit: float = 8.0
    start_limit: float = 60.0
    interval: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _troubles: dict[tuple[str, ...], _Trouble] = field(default_factory=dict, init=False)
    _since: dict[tuple[str, Any], float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._address = getattr(getattr(self.client, "scheduler", None), "address", "?")
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="zindex-watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.thread.join(2 * _CALL_SECONDS)

    def _watch(self) -> None:
        """Check until the block ends or the client is closed."""
        while not self._ended.wait(self.interval):
            try:
                if self.client.status == "closed":
                    return
                self.check()
            except Exception:
                logger.debug("the watchdog could not look", exc_info=True)

    def check(self) -> None:
        """Poll the scheduler once, and log changes."""
        now = self.clock()
        view = self._poll()
        if view is not None:
            troubles = {found.subject: found for found in self._find_troubles(view, now)}
        else:
            name = f"the scheduler at {self._address}"
            lost = _Trouble(("scheduler",), f"{name} does not answer", f"{name} answers again")
            # The state of the other parts is unknown, so they do not count as recovered.
            troubles = self._troubles | {lost.subject: lost}
        if not self._ended.is_set():
            self._log(troubles, view)

    def _poll(self) -> ClusterView | None:
        """Return the state of the scheduler, or None if it does not respond."""
        if self.client.status != "running":
            return None
        try:
            view: ClusterView = self.client.run_on_scheduler(
                view_cluster, callback_timeout=_CALL_SECONDS
            )
        except (OSError, TimeoutError):
            return None
        return view

    def _find_troubles(self, view: ClusterView, now: float) -> Iterator[_Trouble]:
        """Yield the stuck parts."""
        yield from self._find_missing(view, now)
        for worker in view.workers:
            name = f"worker {worker.name} at {worker.address}"
            if worker.silence > self.silence_limit:
                yield _Trouble(
                    ("worker", worker.address),
                    f"{name} has sent no heartbeat for {worker.silence:.0f} s; it has "
                    f"{count_noun(worker.num_tasks, 'task')}",
                    f"{name} sends heartbeats again",
                    address=worker.address,
                    loss=f"{name} is lost; its tasks are rescheduled",
                )
            for key, seconds in worker.running.items():
                if seconds > self.task_limit:
                    task = f"task {_SUFFIX.sub('', key)}"
                    yield _Trouble(
                        ("task", key, worker.address),
                        f"{task} has run for {seconds:.0f} s on {name} (host {worker.host})",
                        f"{task} no longer runs on {name}",
                    )
        is_idle = not view.num_waiting or not view.workers
        seconds = self._lasts("steps", None if is_idle else view.num_steps, now)
        if seconds > self.task_limit:
            yield _Trouble(
                ("steps",),
                f"no task has begun or ended for {seconds:.0f} s, {view.num_waiting} are not "
                f"finished, such as {_SUFFIX.sub('', view.waiting)}",
                "tasks begin and end again",
            )

    def _find_missing(self, view: ClusterView, now: float) -> Iterator[_Trouble]:
        """Yield missing workers, or one item if all are missing."""
        count = len(view.workers)
        if self._lasts("none", None if count else 0, now) > min(_RESTART_SECONDS, self.start_limit):
            sentence = f"no worker is connected to the scheduler at {self._address}"
            if view.num_waiting:
                sentence += f", {view.num_waiting} tasks wait for one"
            relief = f"workers are connected to the scheduler at {self._address} again"
            yield _Trouble(("none",), sentence, relief)
        is_short = count < self.num_workers
        if count and self._lasts("missing", is_short or None, now) > self.start_limit:
            sentence = f"{count} of {self.num_workers} workers are connected"
            relief = f"all {self.num_workers} workers are connected"
            yield _Trouble(("missing",), sentence, relief, state=count)

    def _lasts(self, subject: str, state: Any, now: float) -> float:
        """Return for how many seconds a subject has been in a state; None means no state."""
        for known in [key for key in self._since if key[0] == subject and key[1] != state]:
            del self._since[known]
        if state is None:
            return 0.0
        return now - self._since.setdefault((subject, state), now)

    def _log(self, troubles: dict[tuple[str, ...], _Trouble], view: ClusterView | None) -> None:
        """Log new and resolved troubles."""
        connected = set() if view is None else {worker.address for worker in view.workers}
        for subject, trouble in self._troubles.items():
            if subject not in troubles:
                is_lost = trouble.loss and trouble.address not in connected
                logger.info("%s", trouble.loss if is_lost else trouble.relief)
        for subject, trouble in troubles.items():
            known = self._troubles.get(subject)
            if known is None or known.state != trouble.state:
                logger.warning("%s", trouble.sentence)
        self._troubles = troubles
