"""Simulated time, servers and pipes, on cases small enough to follow by hand."""

from zindex.measuring.build_model import Cluster, Costs, Design
from zindex.measuring.events import Clock, Pipe, Server, Task, Workers


def never() -> bool:
    return False


def test_a_clock_calls_in_the_order_of_times_and_then_of_arrival() -> None:
    clock, seen = Clock(), []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.at(time, lambda name: seen.append((clock.now, name)), name)
    clock.run(never)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_a_clock_stops_when_it_is_over() -> None:
    clock, seen = Clock(), []
    for time in (1.0, 2.0, 3.0):
        clock.at(time, seen.append, time)
    clock.run(lambda: len(seen) == 2)
    assert seen == [1.0, 2.0]


def test_a_server_serves_so_many_at_a_time() -> None:
    clock, ends = Clock(), []
    server = Server(clock, capacity=2)
    for seconds in (3.0, 1.0, 1.0):
        server.serve(seconds, lambda: ends.append(clock.now))
    clock.run(never)
    assert ends == [1.0, 2.0, 3.0]
    assert server.seconds == 5


def test_a_pipe_moves_bytes_one_after_the_other() -> None:
    pipe = Pipe(10.0)
    assert [pipe.move(0, 10), pipe.move(0.5, 20), pipe.move(5, 10)] == [1, 3, 6]
    assert pipe.nbytes == 40


def make_workers(clock: Clock, cluster: Cluster, **settings: float) -> Workers:
    """Workers whose tasks cost nothing but themselves, with 8 bytes of lengths a dataset."""
    free = {
        "client_task_seconds": 0,
        "scheduler_task_seconds": 0,
        "worker_task_seconds": 0,
        "read_bandwidth": 1.0,
    }
    return Workers(
        clock,
        cluster,
        Costs(**(free | settings)),
        Design(held_nbytes=8),
        surcharge=lambda task, node: 0.0,
        lengths_nbytes=8.0,
        seed=0,
    )


def run_tasks(cluster: Cluster, tasks: list[Task], **settings: float) -> list[tuple[str, float]]:
    """Return what ended when."""
    clock, ends = Clock(), []
    workers = make_workers(clock, cluster, **settings)

    def done(task: Task) -> None:
        ends.append((task.stage, clock.now))

    for task in tasks:
        task.done = done
        workers.submit(task)
    clock.run(never)
    return ends


def task(stage: str, seconds: float, **facts: object) -> Task:
    return Task(stage, seconds, lambda task: None, **facts)


def test_higher_priorities_start_first() -> None:
    tasks = [task("a", 1), task("b", 1), task("c", 1, priority=2)]
    assert run_tasks(Cluster(1, 1), tasks) == [("a", 1), ("c", 2), ("b", 3)]


def test_the_scheduler_takes_its_time_for_each_task() -> None:
    tasks = [task("a", 1), task("b", 1)]
    ends = run_tasks(Cluster(2, 1), tasks, scheduler_task_seconds=0.5)
    # In after 0.25 s and 0.5 s; out at 1.25 s and 1.5 s, and 0.25 s more.
    assert ends == [("a", 1.5), ("b", 1.75)]


def test_bytes_of_a_node_queue() -> None:
    tasks = [task("a", 1, written_nbytes=4), task("b", 1, written_nbytes=4)]
    assert run_tasks(Cluster(1, 2), tasks, write_bandwidth=2) == [("a", 2), ("b", 4)]
    tasks = [task("a", 1, written_nbytes=4), task("b", 1, written_nbytes=4)]
    assert run_tasks(Cluster(2, 1), tasks, write_bandwidth=2) == [("a", 2), ("b", 2)]


def test_a_node_reads_the_lengths_of_a_dataset_once_as_long_as_it_holds_them() -> None:
    def tasks() -> list[Task]:
        return [task("ab"[d], 1, uses_lengths=True, dataset=d) for d in (0, 0, 1, 0)]

    assert run_tasks(Cluster(1, 1), tasks()) == [("a", 9), ("a", 10), ("b", 19), ("a", 28)]


def test_tasks_go_where_they_are_at_home_unless_others_are_idle() -> None:
    clock = Clock()
    workers = make_workers(clock, Cluster(2, 1))
    tasks = [task("a", 1, home=1), task("b", 1, home=1), task("c", 1, home=1)]
    for each in tasks:
        workers.submit(each)
    clock.run(never)
    assert [each.node for each in tasks] == [1, 0, 1]
