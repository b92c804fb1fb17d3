"""A thread that says in the log what stands still in a cluster, and when it goes on."""

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("zindex.cluster")

# Seconds that one look at the scheduler may take.
_CALL_SECONDS = 5.0
# Seconds that a cluster may be without any worker: those of a lost scheduler start again.
_RESTART_SECONDS = 20.0
# What the executor appends to the name of each task.
_SUFFIX = re.compile(r"-[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker, as the scheduler sees it."""

    name: str
    address: str
    host: str
    #: Seconds since it was heard of.
    silence: float
    #: Tasks that it has and has not finished.
    num_tasks: int
    #: Tasks that it runs, and for how many seconds.
    running: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster, as its scheduler sees it."""

    workers: list[WorkerView]
    #: Tasks that are not finished; the name of one of them.
    num_waiting: int
    waiting: str
    #: Steps that any task has made: a number that only grows.
    num_steps: int


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Something that stands still."""

    #: What it is: said again where this changes.
    state: Any
    sentence: str
    #: What is said when it is over.
    relief: str
    #: The worker that it is about, and what is said where that is gone.
    address: str = ""
    loss: str = ""


def view_cluster(dask_scheduler: Any) -> ClusterView:
    """Return what a scheduler knows; runs in its process."""
    now = time.time()
    workers = [
        WorkerView(
            name=str(worker.name),
            address=worker.address,
            host=worker.host,
            silence=now - worker.last_seen,
            num_tasks=len(worker.processing),
            running={
                str(task.key): seconds + now - worker.last_seen
                for task, seconds in worker.executing.items()
            },
        )
        for worker in dask_scheduler.workers.values()
    ]
    states = ("waiting", "no-worker", "queued", "processing")
    waiting = [key for key, task in dask_scheduler.tasks.items() if task.state in states]
    return ClusterView(
        workers=workers,
        num_waiting=len(waiting),
        waiting=str(waiting[0]) if waiting else "",
        num_steps=dask_scheduler.transition_counter,
    )


class Watchdog:
    """Says once what stands still in a cluster, and once when it goes on; a context manager.

    It only looks, at intervals and in a thread of its own; whatever goes wrong there harms no
    build.

    Parameters
    ----------
    client
        A synchronous ``distributed.Client``.
    num_workers
        Workers that are expected, one per node; None expects at least one.
    names
        Names of workers that are expected.
    task_limit
        Seconds that a task may run, or the whole cluster finish nothing.
    silence_limit
        Seconds that a worker may say nothing.
    start_limit
        Seconds that expected workers may be missing.
    interval
        Seconds between looks.
    """

    def __init__(
        self,
        client: Any,
        num_workers: int | None = None,
        names: Iterable[str] = (),
        *,
        task_limit: float = 300.0,
        silence_limit: float = 8.0,
        start_limit: float = 60.0,
        interval: float = 5.0,
    ) -> None:
        self.client = client
        self.names = sorted(names)
        self.num_workers = max(num_workers or 1, len(self.names))
        self.task_limit = task_limit
        self.silence_limit = silence_limit
        self.start_limit = start_limit
        self.interval = interval
        self._address = getattr(getattr(client, "scheduler", None), "address", "?")
        self._troubles: dict[tuple[str, ...], _Trouble] = {}
        self._since: dict[Any, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="zindex-watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(2 * _CALL_SECONDS)

    def _watch(self) -> None:
        """Look until the block ends or the client is closed."""
        while not self._ended.wait(self.interval):
            try:
                if self.client.status == "closed":
                    return
                self.look()
            except Exception:
                logger.debug("the watchdog could not look", exc_info=True)

    def look(self) -> None:
        """Look once, and say what has changed."""
        now = time.monotonic()
        view = self._ask()
        troubles: dict[tuple[str, ...], _Trouble] = {}
        if view is None:
            sentence = f"the scheduler at {self._address} does not answer"
            relief = f"the scheduler at {self._address} answers again"
            # Nothing is known of all else, so nothing of it is over.
            troubles = self._troubles | {("scheduler",): _Trouble(None, sentence, relief)}
        elif not self._ended.is_set():
            troubles = dict(self._find_troubles(view, now))
        if not self._ended.is_set():
            self._say(troubles, view)

    def _ask(self) -> ClusterView | None:
        """Return what the scheduler sees, or None where it does not answer."""
        if self.client.status != "running":
            return None
        try:
            view: ClusterView = self.client.run_on_scheduler(
                view_cluster, callback_timeout=_CALL_SECONDS
            )
        except (OSError, TimeoutError):
            return None
        return view

    def _find_troubles(
        self, view: ClusterView, now: float
    ) -> Iterator[tuple[tuple[str, ...], _Trouble]]:
        """Yield what stands still, by what it is."""
        yield from self._find_missing(view, now)
        for worker in view.workers:
            place = f"worker {worker.name} at {worker.address}"
            if worker.silence > self.silence_limit:
                yield (
                    ("worker", worker.address),
                    _Trouble(
                        None,
                        f"{place} has not been heard of for {worker.silence:.0f} s; it has "
                        f"{worker.num_tasks} tasks",
                        f"{place} is heard of again",
                        worker.address,
                        f"{place} is given up; its tasks go to others",
                    ),
                )
            for key, seconds in worker.running.items():
                if seconds > self.task_limit:
                    task = f"task {_SUFFIX.sub('', key)}"
                    yield (
                        ("task", key, worker.address),
                        _Trouble(
                            None,
                            f"{task} has run for {seconds:.0f} s on {place} (host {worker.host})",
                            f"{task} no longer runs on {place}",
                        ),
                    )
        is_idle = not view.num_waiting or not view.workers
        still = self._lasts("steps", None if is_idle else view.num_steps, now)
        if still > self.task_limit:
            yield (
                ("steps",),
                _Trouble(
                    None,
                    f"no task has begun or ended for {still:.0f} s, {view.num_waiting} are not "
                    f"finished, such as {_SUFFIX.sub('', view.waiting)}",
                    "tasks begin and end again",
                ),
            )

    def _find_missing(
        self, view: ClusterView, now: float
    ) -> Iterator[tuple[tuple[str, ...], _Trouble]]:
        """Yield that workers are missing, or all of them."""
        count = len(view.workers)
        there = {worker.name for worker in view.workers}
        missing = [name for name in self.names if name not in there]
        without = self._lasts("none", None if count else 0, now)
        if without > min(_RESTART_SECONDS, self.start_limit):
            sentence = f"no worker is connected to the scheduler at {self._address}"
            if view.num_waiting:
                sentence += f", {view.num_waiting} tasks wait for one"
            relief = f"workers are connected to the scheduler at {self._address} again"
            yield ("none",), _Trouble(None, sentence, relief)
        is_short = count < self.num_workers or bool(missing)
        if count and self._lasts("missing", is_short or None, now) > self.start_limit:
            named = f", not {', '.join(missing)}" if missing else ""
            sentence = f"{count} of {self.num_workers} workers are connected{named}"
            relief = f"all {self.num_workers} workers are connected"
            yield ("missing",), _Trouble((count, *missing), sentence, relief)

    def _lasts(self, subject: str, state: Any, now: float) -> float:
        """Return for how many seconds something has been in a state; None is no state."""
        for known in [key for key in self._since if key[0] == subject and key[1] != state]:
            del self._since[known]
        if state is None:
            return 0.0
        return now - self._since.setdefault((subject, state), now)

    def _say(self, troubles: dict[tuple[str, ...], _Trouble], view: ClusterView | None) -> None:
        """Log what is new and what is over."""
        there = {worker.address for worker in view.workers} if view is not None else set()
        for subject, trouble in self._troubles.items():
            if subject not in troubles:
                is_gone = trouble.loss and trouble.address not in there
                logger.info("%s", trouble.loss if is_gone else trouble.relief)
        for subject, trouble in troubles.items():
            known = self._troubles.get(subject)
            if known is None or known.state != trouble.state:
                logger.warning("%s", trouble.sentence)
        self._troubles = troubles
