"""One client and one scheduler for 1 to 1,000 workers: measured, and compared with the forecast.

``python -m tests.benchmarks.bench_workers --workers 1 10 100 1000 --tasks 2000``

Workers are stubs: they register, send heartbeats and results as those of nodes do, and two
processes hold all of them, each with one thread for the tasks of its stubs. First empty tasks, as a
build submits them; then a build of one dataset that is cut into small tasks, on as many workers as
these processes serve. The forecasts are those of `zindex bench` without measured costs. All of it
shares the processors of this machine: where there are few, the stubs take a part of them that nodes
would bring along.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.record import Record, Row, Table, show
from tests.benchmarks.stub_workers import NUM_THREADS
from tests.benchmarks.turns import make_parser
from zindex.cluster.rendezvous import Rendezvous
from zindex.cluster.settings import NodeSettings
from zindex.cluster.starting import open_client, prepare_scheduler, start_and_wait
from zindex.forecast.cost_model import Costs, Machines, forecast_build
from zindex.inspection.bench.short_builds import (
    KINDS,
    describe_build,
    measure_task_seconds,
    run_build,
    write_synthetic,
)

# Stubs fetch results of each other: beyond so many, two processes cannot serve all of them.
_MOST_BUILDERS = 200


@contextmanager
def start_stubs(number: int, folder: Path) -> Iterator[Any]:
    """Yield a client of a scheduler in a process of its own, with stub workers."""
    with ExitStack() as stack:
        settings = NodeSettings(threads=0, num_nodes=number, scratch=str(folder))
        rendezvous = Rendezvous(folder / f"cluster-{number}")
        prepare_scheduler(rendezvous, settings, "127.0.0.1", "none")
        facts = start_and_wait(rendezvous, settings, stack)
        command = [sys.executable, "-m", "tests.benchmarks.stub_workers", facts["address"]]
        for each in filter(None, (number // 2, number - number // 2)):
            process = stack.enter_context(subprocess.Popen([*command, str(each)]))
            stack.callback(process.terminate)
        client = open_client(rendezvous, stack, default=False)
        client.wait_for_workers(number)
        yield client


def measure(numbers: list[int], num_tasks: int, num_documents: int, num_runs: int) -> list[Table]:
    """Return what empty tasks and a build take on each number of workers, and the forecasts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_synthetic(
            folder / "data", num_datasets=1, num_documents=num_documents, document_length=800
        )
        tasks, builds, costs = [], [], Costs()
        task_seconds = max(costs.client_task_seconds, costs.scheduler_task_seconds)
        for number in numbers:
            machines = Machines(number, NUM_THREADS, num_processors=os.cpu_count())
            with start_stubs(number, folder) as client:
                runs = [measure_task_seconds(client, num_tasks) for _ in range(num_runs)]
                figures = {
                    "seconds": [num_tasks * run[0] for run in runs],
                    "predicted_seconds": [num_tasks * task_seconds],
                    "client_seconds": [num_tasks * run[1] for run in runs],
                }
                tasks.append(Row(name_workers(number), figures))
                if number > _MOST_BUILDERS:
                    continue
                seconds = []
                for run_number in range(num_runs):
                    index = str(folder / f"index-{number}-{run_number}")
                    run, job = describe_build(data, index, KINDS["scalable"], shard_length=1 << 9)
                    seconds.append(run_build(run, job, client).seconds)
                forecast = forecast_build(job, machines, costs)
                figures = {
                    "seconds": seconds,
                    "predicted_seconds": [forecast.seconds],
                    "num_tasks": [float(forecast.num_tasks)],
                }
                builds.append(Row(name_workers(number), figures))
    return [
        Table("tasks", f"{num_tasks:,} empty tasks", tasks),
        Table("builds", f"builds of {num_documents:,} documents cut into small tasks", builds),
    ]


def name_workers(number: int) -> str:
    """Return a number of workers in words."""
    return "1 worker" if number == 1 else f"{number:,} workers"


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=1)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 10, 100, 1000])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--documents", type=float, default=2e5)
    arguments = parser.parse_args()
    start = time.perf_counter()
    numbers = sorted(arguments.workers)
    tables = measure(numbers, arguments.tasks, int(arguments.documents), arguments.runs)
    for table in tables:
        show(table)
    print(f"{time.perf_counter() - start:.0f} s in all")
    Record.of("bench_workers", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
