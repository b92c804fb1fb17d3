"""Simulated time: what happens when, servers that do one thing after another, and workers.

Workers here are numbers: a task is a duration, bytes to move and what happens when it is done.
"""

import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from zindex.measuring.build_model import Cluster, Costs, Design


class Clock:
    """Calls in the order of their times; those of the same time in the order in which they came."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Have something happen at a time that is not past."""
        heapq.heappush(self._events, (time, next(self._order), call, args))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let happen what is to happen until it is over or nothing is left."""
        events, pop = self._events, heapq.heappop
        while events and not is_over():
            self.now, _, call, args = pop(events)
            call(*args)


class Server:
    """A process or its threads: so many things at a time, the others in the order they came."""

    def __init__(self, clock: Clock, capacity: int = 1) -> None:
        self.clock = clock
        self.capacity = capacity
        self.num_busy = 0
        #: Seconds of service in all.
        self.seconds = 0.0
        #: What a second of service takes; more than one where processors are short.
        self.slowness: Callable[[], float] | None = None
        self._queue: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()

    def serve(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Have something happen after so many seconds of service."""
        if self.num_busy < self.capacity:
            self._begin(seconds, call, args)
        else:
            self._queue.append((seconds, call, args))

    def _begin(self, seconds: float, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.num_busy += 1
        if self.slowness is not None:
            seconds *= self.slowness()
        self.seconds += seconds
        self.clock.at(self.clock.now + seconds, self._end, call, args)

    def _end(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.num_busy -= 1
        if self._queue:
            self._begin(*self._queue.popleft())
        call(*args)


class Pipe:
    """Something that moves so many bytes a second for all who use it, first come first served."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.free_at = 0.0
        self.nbytes = 0.0

    def move(self, now: float, nbytes: float) -> float:
        """Return when bytes that are to be moved from now on have been moved."""
        self.free_at = max(self.free_at, now) + nbytes / self.bandwidth
        self.nbytes += nbytes
        return self.free_at


class Task:
    """One task: what it takes, and what happens when it is done."""

    __slots__ = (
        *("stage", "seconds", "memory_nbytes", "read_nbytes", "written_nbytes", "priority"),
        *("dataset", "shard"),
        *("num_arguments", "uses_lengths", "done", "home", "node", "generation", "attempt"),
        *("is_started", "begun_at"),
    )

    def __init__(
        self,
        stage: str,
        seconds: float,
        done: Callable[["Task"], None],
        *,
        memory_nbytes: float = 0.0,
        read_nbytes: float = 0.0,
        written_nbytes: float = 0.0,
        priority: int = 0,
        dataset: int = -1,
        shard: int = 0,
        num_arguments: int = 0,
        uses_lengths: bool = False,
        home: int | None = None,
    ) -> None:
        self.stage = stage
        self.seconds = seconds
        self.done = done
        self.memory_nbytes = memory_nbytes
        self.read_nbytes = read_nbytes
        self.written_nbytes = written_nbytes
        self.priority = priority
        self.dataset = dataset
        self.shard = shard
        self.num_arguments = num_arguments
        self.uses_lengths = uses_lengths
        self.home = home
        self.node = -1
        self.generation = -1
        self.attempt = 0
        self.is_started = False
        self.begun_at = 0.0


class StageTimes:
    """When the tasks of a stage ran."""

    __slots__ = ("num_tasks", "seconds", "start", "stop")

    def __init__(self, start: float) -> None:
        self.num_tasks = 0
        self.seconds = 0.0
        self.start = start
        self.stop = start


class Workers:
    """The client's way to the scheduler, the scheduler's queue, and the threads of all nodes.

    Parameters
    ----------
    clock, cluster, costs, design
        Of the simulation.
    surcharge
        Called with a task that starts and its node: the seconds that it takes beyond its own.
    lengths_nbytes
        Bytes that a node reads before its first task of a dataset.
    seed
        Decides which nodes are lost, and when.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        costs: Costs,
        design: Design,
        *,
        surcharge: Callable[[Task, int], float],
        lengths_nbytes: float,
        seed: int,
    ) -> None:
        self.clock, self.cluster, self.costs, self.design = clock, cluster, costs, design
        self.surcharge = surcharge
        self.lengths_nbytes = lengths_nbytes
        self.client = Server(clock)
        self.scheduler = self.client if cluster.scheduler_in_client else Server(clock)
        for server in (self.client, self.scheduler):
            server.slowness = self._slowness if cluster.num_processors else None
        nodes = range(cluster.num_nodes)
        self.memory = [Pipe(costs.memory_bandwidth) for _ in nodes]
        self.writing = [Pipe(costs.write_bandwidth) for _ in nodes]
        self.reading = [Pipe(costs.read_bandwidth) for _ in nodes]
        self.store = Pipe(costs.store_bandwidth)
        self.held: list[OrderedDict[int, float]] = [OrderedDict() for _ in nodes]
        self.generation = [0 for _ in nodes]
        self._running: list[dict[int, Task]] = [{} for _ in nodes]
        self._num_running = 0
        self._free = deque(node for _ in range(cluster.num_threads) for node in nodes)
        self._num_free = [cluster.num_threads for _ in nodes]
        # Entries of threads that were taken out of turn, or lost.
        self._stale = [0 for _ in nodes]
        self._queue: list[tuple[int, int, Task]] = []
        self._own_queues: list[list[tuple[int, int, Task]]] = [[] for _ in nodes]
        self._order = itertools.count()
        # Tasks that the client keeps to itself, and how many others there may be.
        self._waiting: list[tuple[int, int, Task]] = []
        self._window = float("inf")
        if design.window is not None:
            self._window = design.window * cluster.num_nodes * cluster.num_threads
        self._random = random.Random(seed)
        self.stages: dict[str, StageTimes] = {}
        self.num_tasks = self.num_lost = self.num_outstanding = self.peak_outstanding = 0
        self.num_arguments = self.peak_arguments = 0
        #: Seconds of threads that computed, and of those that held a task.
        self.compute_seconds = self.thread_seconds = 0.0
        self._plan_loss()

    def submit(self, task: Task) -> None:
        """Hand a task over as soon as the window lets it in."""
        self.num_tasks += 1
        heapq.heappush(self._waiting, (-task.priority, next(self._order), task))
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.num_outstanding < self._window:
            self._hand_over(heapq.heappop(self._waiting)[2])

    def _hand_over(self, task: Task) -> None:
        """Have the client serialize a task, and the scheduler take it in."""
        self.num_outstanding += 1
        self.num_arguments += task.num_arguments
        self.peak_outstanding = max(self.peak_outstanding, self.num_outstanding)
        self.peak_arguments = max(self.peak_arguments, self.num_arguments)
        seconds = self.costs.client_task_seconds / 2
        seconds += self.costs.argument_seconds * task.num_arguments
        self.client.serve(seconds, self._schedule, task)

    def _schedule(self, task: Task) -> None:
        seconds = self.costs.scheduler_task_seconds / 2
        seconds += self.costs.argument_seconds * task.num_arguments
        self.scheduler.serve(seconds, self._enqueue, task)

    def _enqueue(self, task: Task) -> None:
        entry = (-task.priority, next(self._order), task)
        heapq.heappush(self._queue, entry)
        home = task.home
        if home is not None:
            heapq.heappush(self._own_queues[home], entry)
            if self._num_free[home]:
                self._stale[home] += 1
                self._start_next(home)
                return
        self._dispatch()

    def _dispatch(self) -> None:
        """Start tasks as long as there are both, tasks and free threads."""
        while self._free and self._peek(self._queue) is not None:
            node = self._free.popleft()
            if self._stale[node]:
                self._stale[node] -= 1
            else:
                self._start_next(node)

    def _peek(self, queue: list[tuple[int, int, Task]]) -> Task | None:
        """Return the first task of a queue that no thread took from another queue."""
        while queue and queue[0][2].is_started:
            heapq.heappop(queue)
        return queue[0][2] if queue else None

    def _start_next(self, node: int) -> None:
        own = self._own_queues[node]
        task = self._peek(own) or self._peek(self._queue)
        assert task is not None
        self._num_free[node] -= 1
        self._start(task, node)

    def _start(self, task: Task, node: int) -> None:
        """Let a thread of a node begin with a task."""
        now, costs = self.clock.now, self.costs
        task.is_started, task.node, task.generation = True, node, self.generation[node]
        task.begun_at = now
        self._running[node][id(task)] = task
        self._num_running += 1
        seconds = task.seconds + costs.worker_task_seconds + self.surcharge(task, node)
        if self.cluster.num_processors:
            seconds *= self._slowness()
        self.compute_seconds += seconds
        stop = (self._load_lengths(task.dataset, node) if task.uses_lengths else now) + seconds
        if task.memory_nbytes:
            stop = max(stop, self.memory[node].move(now, task.memory_nbytes))
        if task.read_nbytes:
            stop = max(stop, self.reading[node].move(now, task.read_nbytes))
            stop = max(stop, self.store.move(now, task.read_nbytes))
        if task.written_nbytes:
            stop = max(stop, self.writing[node].move(now, task.written_nbytes))
            stop = max(stop, self.store.move(now, task.written_nbytes))
        self.clock.at(stop, self._end, task, task.attempt)

    def _load_lengths(self, dataset: int, node: int) -> float:
        """Return when a node holds the lengths of a dataset; its first task reads them."""
        held, now = self.held[node], self.clock.now
        if dataset not in held:
            stop = self.reading[node].move(now, self.lengths_nbytes)
            held[dataset] = max(stop, self.store.move(now, self.lengths_nbytes))
            while len(held) > 1 and len(held) * self.lengths_nbytes > self.design.held_nbytes:
                held.popitem(last=False)
        held.move_to_end(dataset)
        return max(now, held[dataset])

    def _end(self, task: Task, attempt: int) -> None:
        """Let a task be done, unless it was lost meanwhile."""
        if attempt != task.attempt:
            return
        node, now = task.node, self.clock.now
        del self._running[node][id(task)]
        self._num_running -= 1
        self.thread_seconds += now - task.begun_at
        times = self.stages.setdefault(task.stage, StageTimes(task.begun_at))
        times.num_tasks += 1
        times.seconds += now - task.begun_at
        times.stop = now
        self._num_free[node] += 1
        self._free.append(node)
        self._dispatch()
        self.scheduler.serve(self.costs.scheduler_task_seconds / 2, self._receive, task)

    def _receive(self, task: Task) -> None:
        self.client.serve(self.costs.client_task_seconds / 2, self._done, task)

    def _done(self, task: Task) -> None:
        self.num_outstanding -= 1
        self.num_arguments -= task.num_arguments
        self._admit()
        task.done(task)

    def _slowness(self) -> float:
        """Return how many share each processor of one machine."""
        servers = self.client.num_busy
        if self.scheduler is not self.client:
            servers += self.scheduler.num_busy
        return max(1.0, (self._num_running + servers) / (self.cluster.num_processors or 1))

    def _plan_loss(self) -> None:
        """Have a node lost some time from now."""
        rate = self.cluster.num_nodes / self.costs.node_mtbf_seconds
        if rate:
            self.clock.at(self.clock.now + self._random.expovariate(rate), self._lose)

    def _lose(self) -> None:
        """Lose a node with all that it runs and holds; another takes its place."""
        node = self._random.randrange(self.cluster.num_nodes)
        lost = list(self._running[node].values())
        if lost or self._num_free[node]:
            self._running[node].clear()
            self._num_running -= len(lost)
            self._stale[node] += self._num_free[node]
            self._num_free[node] = 0
            self.held[node].clear()
            self.generation[node] += 1
            self.num_lost += len(lost)
            noticed = self.clock.now + self.costs.detection_seconds
            for task in lost:
                task.attempt += 1
                task.is_started = False
                self.thread_seconds += self.clock.now - task.begun_at
                self.clock.at(noticed, self._schedule, task)
            self.clock.at(noticed + self.costs.restart_seconds, self._restore, node)
        self._plan_loss()

    def _restore(self, node: int) -> None:
        """Have a node again, which holds nothing."""
        self._num_free[node] = self.cluster.num_threads
        self._free.extend([node] * self.cluster.num_threads)
        self._dispatch()
