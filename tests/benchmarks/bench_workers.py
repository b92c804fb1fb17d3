"""One client and one scheduler for 1 to 1,000 workers: measured, and compared with the forecast.

``python -m tests.benchmarks.bench_workers --workers 10 100 1000 --tasks 2000 --datasets 1000``

Workers are stubs: they register, send heartbeats and results as those of nodes do, and two
processes hold all of them, each with one thread for the tasks of its stubs. First empty tasks; then
builds of many small datasets, and of one dataset that is cut into small shards. Each is built as
usual, with few tasks for many workers, and with a task for every index or shard, as if tasks cost
the client nothing.

Nodes would compute by themselves, these stubs share the machine with client and scheduler. So what
counts is the processor time of these two, without what heartbeats alone take. The forecasts know
what an empty task takes here, and what a dataset takes from a smaller build; they predict the rest.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zindex
from tests.benchmarks.record import Record, Row, Table, show
from tests.benchmarks.stub_workers import NUM_THREADS
from tests.benchmarks.turns import make_parser
from zindex.cluster.rendezvous import Rendezvous
from zindex.cluster.settings import NodeSettings
from zindex.cluster.starting import open_client, prepare_scheduler, start_and_wait
from zindex.execution.dask_executor import DaskExecutor
from zindex.forecast.cost_model import Costs, Forecast, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench.short_builds import (
    KINDS,
    SyntheticData,
    describe_build,
    measure_task_seconds,
    write_synthetic,
)
from zindex.store.layout import SHARD_LENGTH

# Seconds in which heartbeats alone are measured.
_IDLE_SECONDS = 5.0
_CUT = 1 << 9
# Results of empty tasks, times workers that hold them.
_MOST_RESULTS = 200_000


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


class CountingExecutor(DaskExecutor):
    """Counts its tasks."""

    num_tasks = 0

    async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
        """Run one task."""
        self.num_tasks += 1
        return await super().run(function, *args, key=key, priority=priority)


@dataclass(frozen=True)
class Cluster:
    """A client, and how fast its scheduler's processor time grows without tasks."""

    client: Any
    idle_share: float

    @classmethod
    def of(cls, client: Any) -> "Cluster":
        """Measure heartbeats."""
        before = cls(client, 0.0).scheduler_seconds()
        time.sleep(_IDLE_SECONDS)
        seconds = cls(client, 0.0).scheduler_seconds() - before
        return cls(client, seconds / _IDLE_SECONDS)

    def scheduler_seconds(self) -> float:
        """Return the processor time of the scheduler so far."""
        return float(self.client.run_on_scheduler(time.process_time))

    @contextmanager
    def measure(self, figures: dict[str, float]) -> Iterator[None]:
        """Record the seconds of a block, and the processor seconds of client and scheduler."""
        before = time.perf_counter(), time.process_time(), self.scheduler_seconds()
        yield
        scheduler = self.scheduler_seconds() - before[2]
        figures["client_seconds"] = time.process_time() - before[1]
        figures["seconds"] = time.perf_counter() - before[0]
        figures["scheduler_seconds"] = max(0.0, scheduler - self.idle_share * figures["seconds"])


def measure_costs(cluster: Cluster, num_tasks: int) -> tuple[dict[str, float], Costs]:
    """Return the figures of empty tasks, and costs with what one takes."""
    figures: dict[str, float] = {}
    with cluster.measure(figures):
        measure_task_seconds(cluster.client, num_tasks)
    figures = {name: value / 2 for name, value in figures.items()}  # it runs all twice
    figures["num_tasks"] = float(num_tasks)
    return figures, Costs(
        client_task_seconds=figures["client_seconds"] / num_tasks,
        scheduler_task_seconds=figures["scheduler_seconds"] / num_tasks,
    )


def measure_build(
    cluster: Cluster, data: SyntheticData, shard_length: int, *, grouped: bool
) -> tuple[dict[str, float], Job]:
    """Return the figures of a build and its job."""
    executor = CountingExecutor(cluster.client)
    if not grouped:
        executor.overhead = 0.0
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=Path(data.prefixes[0]).parent) as index:
        run, job = describe_build(data, index, KINDS["scalable"], shard_length=shard_length)
        with cluster.measure(figures):
            zindex.build(run, executor)
    figures["num_tasks"] = float(executor.num_tasks)
    return figures, job


def predict(job: Job, number: int, costs: Costs) -> dict[str, float]:
    """Return the predicted processor seconds of client and scheduler."""
    forecast: Forecast = forecast_build(job, Machines(number, NUM_THREADS), costs)
    seconds = {name: share * forecast.seconds for name, share in forecast.busy.items()}
    return {
        "predicted_client_seconds": seconds["client"] + seconds.get("checks", 0.0),
        "predicted_scheduler_seconds": seconds["scheduler"],
        "num_predicted_tasks": float(forecast.num_tasks),
    }


def fit_dataset(figures: dict[str, float], job: Job, costs: Costs) -> Costs:
    """Return costs with the client's seconds for a dataset, from a small build."""
    checks = costs.stage("check", job.order)
    seconds = figures["client_seconds"] - figures["num_tasks"] * costs.client_task_seconds
    each = seconds / job.num_datasets - checks.task_seconds / 8
    return replace(costs, dataset_seconds=max(0.0, each))


def measure(
    numbers: list[int], num_tasks: int, num_datasets: int, num_documents: int, num_runs: int
) -> Iterator[list[Table]]:
    """Yield what empty tasks and builds take on each number of workers, and the forecasts."""
    titles = {
        "tasks": f"up to {num_tasks:,} empty tasks",
        "datasets": f"builds of {num_datasets:,} datasets of 200 documents",
        "shards": f"builds of {num_documents:,} documents in shards of {_CUT}",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def write(num_datasets: int, num_documents: int) -> SyntheticData:
            place = folder / f"{num_datasets}-{num_documents}"
            sizes = {"num_datasets": num_datasets, "num_documents": num_documents}
            return write_synthetic(place, document_length=800, **sizes)

        few, many, cut = (
            write(max(20, num_datasets // 4), 200),
            write(num_datasets, 200),
            write(1, num_documents),
        )
        works = {"datasets": (many, SHARD_LENGTH), "shards": (cut, _CUT)}
        rows: dict[str, list[Row]] = {"tasks": [], **{work: [] for work in works}}
        for number in numbers:
            with start_stubs(number, folder) as client:
                cluster = Cluster.of(client)
                # Two processes do not serve the results of more.
                most = min(num_tasks, _MOST_RESULTS // number)
                runs = [measure_costs(cluster, most) for _ in range(num_runs)]
                rows["tasks"].append(make_row(number, [figures for figures, _ in runs]))
                measure_build(cluster, few, SHARD_LENGTH, grouped=True)  # imports and connections
                costs = fit_dataset(
                    *measure_build(cluster, few, SHARD_LENGTH, grouped=True), runs[-1][1]
                )
                for work, (data, length) in works.items():
                    for grouped in (True, False):
                        done = []
                        for _ in range(num_runs):
                            figures, job = measure_build(cluster, data, length, grouped=grouped)
                            predicted = predict(job, number, costs) if grouped else {}
                            done.append(figures | predicted)
                        suffix = "" if grouped else ", a task for each"
                        rows[work].append(make_row(number, done, suffix))
            yield [Table(key, titles[key], each, notes=_NOTES) for key, each in rows.items()]


_NOTES = [
    "client and scheduler: processor seconds, the scheduler's without those of heartbeats",
    "time: stubs compute in two threads whatever their number, on the processors of client and "
    "scheduler; nodes bring their own",
    "predicted from the cost of an empty task and, per dataset, from a build of a quarter of them",
]


def make_row(number: int, runs: list[dict[str, float]], suffix: str = "") -> Row:
    """Return the row of a number of workers."""
    name = name_workers(number) + suffix
    return Row(name, {figure: [run[figure] for run in runs] for figure in runs[0]})


def name_workers(number: int) -> str:
    """Return a number of workers in words."""
    return "1 worker" if number == 1 else f"{number:,} workers"


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=1)
    parser.add_argument("--workers", nargs="+", type=int, default=[10, 100, 1000])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--datasets", type=int, default=1000)
    parser.add_argument("--documents", type=float, default=5e5)
    arguments = parser.parse_args()
    start = time.perf_counter()
    numbers = sorted(arguments.workers)
    sizes = arguments.tasks, arguments.datasets, int(arguments.documents)
    # What is measured is kept if a later number of workers is too much for this machine.
    for tables in measure(numbers, *sizes, arguments.runs):
        for table in tables:
            show(table)
        Record.of("bench_workers", tables, arguments.folder).write(arguments.json)
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
