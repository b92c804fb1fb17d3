"""Beyond one machine: the cost model against real builds, and its forecasts for 1 to 1,000 nodes.

``python -m tests.benchmarks.bench_scaling --documents 4e6 2e7 --runs 3``

The costs of tasks are measured with one worker process of one thread, on small builds of four
shapes: one dataset, the same cut into a hundred tasks, several datasets, many small ones. With
these costs alone the model predicts other builds, larger ones and ones of many datasets, with one
worker and with two, and compares them with measurements. Client and scheduler share a process and
the machine's processors with the workers, as the model knows.

The curves are predictions and no measurements: nodes of 16 threads whose tasks cost what was
measured here, with this disk's bandwidth each, and a store that gives 100 GB/s in all; documents of
800 tokens in 1,000 datasets, samples of 4,096 tokens, scalable order, everything stored.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.record import Record, Row, Table, name_size, show
from tests.benchmarks.turns import make_parser
from zindex.forecast.cost_model import Costs, Forecast, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench.bandwidths import Bandwidths, measure_bandwidths
from zindex.inspection.bench.fitting import (
    MeasuredBuild,
    calibrate,
    fit_costs,
    keep_medians,
)
from zindex.inspection.bench.short_builds import (
    KINDS,
    SyntheticData,
    describe_build,
    measure_task_seconds,
    run_build,
    write_synthetic,
)
from zindex.store.layout import SHARD_LENGTH

ORDERS = ("scalable", "megatron")
_DOCUMENT_LENGTH = 800
_NODE_THREADS, _STORE_BANDWIDTH = 16, 1e11
_DESIGN_NODES = 100
_DAY = 86_400.0


@dataclass(frozen=True)
class Work:
    """One build: how many datasets of how many documents, cut how."""

    name: str
    data: SyntheticData
    shard_length: int = SHARD_LENGTH


def write_works(
    folder: Path, num_documents: int, most_datasets: int
) -> tuple[list[Work], list[Work]]:
    """Write the datasets of one size; return the builds to measure costs with, and to predict."""

    def write(num_datasets: int, each: int) -> SyntheticData:
        place = folder / f"{num_datasets}-{each}"
        sizes = {"num_datasets": num_datasets, "num_documents": each}
        return write_synthetic(place, document_length=_DOCUMENT_LENGTH, **sizes)

    small = max(2000, num_documents // 4)
    num_small = 2 * most_datasets // 5
    cut = 1 << max(8, (small // 100).bit_length())
    one = write(1, small)
    fitted = [
        Work("one dataset", one),
        Work("one dataset, cut", one, cut),
        Work("8 datasets", write(8, small // 8)),
        Work(f"{num_small} small datasets", write(num_small, 1000)),
    ]
    size = f"{num_documents:,} documents"
    many = write(1, num_documents)
    predicted = [
        Work(f"{size} in 1 dataset", many),
        Work(f"{size} in 1 dataset, cut", many, 1 << max(8, (num_documents // 60).bit_length())),
        Work(f"{size} in 5 datasets", write(5, num_documents // 5)),
        Work(
            f"{size} in {most_datasets} datasets",
            write(most_datasets, num_documents // most_datasets),
        ),
    ]
    return fitted, predicted


@contextmanager
def start_workers(num_workers: int, folder: Path) -> Iterator[Any]:
    """Give a client of worker processes of one thread, each of which has all kernels."""
    from distributed import Client, LocalCluster

    data = write_synthetic(
        folder / "kernels", num_datasets=2, num_documents=1000, document_length=_DOCUMENT_LENGTH
    )
    with (
        LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(folder),
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(num_workers)
        for order in ORDERS:
            index = str(folder / f"kernels-{num_workers}-{order}")
            client.run(_build_alone, data, index, order)
        yield client


def _build_alone(data: SyntheticData, index: str, order: str) -> None:
    """Compile kernels, or load them, by a build in this very process."""
    import zindex
    from zindex.execution.executor import SerialExecutor
    from zindex.kernels import numpy_budget

    numpy_budget.exhaust()
    own = f"{index}-{os.getpid()}"
    run, _ = describe_build(data, own, KINDS[order], shard_length=256)
    zindex.build(run, SerialExecutor())


def measure_tasks(client: Any, num_tasks: int) -> Costs:
    """Return the costs of an empty task: in the client's and scheduler's process, and the worker's.

    The two share a process here. Apart they take 0.42 and 0.58 of it, as three processes showed.
    """
    before = sum(client.run(time.process_time).values())
    _, here = measure_task_seconds(client, num_tasks)
    after = sum(client.run(time.process_time).values())
    there = (after - before) / (2 * num_tasks)
    return Costs(
        client_task_seconds=0.42 * here,
        scheduler_task_seconds=0.58 * here,
        worker_task_seconds=there,
        base_seconds=0.05,
    )


def run_in_turns(
    works: list[tuple[Work, int]], clients: dict[int, Any], num_runs: int, folder: Path
) -> dict[tuple[str, int, str], list[MeasuredBuild]]:
    """Return every run of every work on its number of workers, in both orders."""
    runs: dict[tuple[str, int, str], list[MeasuredBuild]] = {}
    for _ in range(num_runs):
        for work, num_workers in works:
            for order in ORDERS:
                with tempfile.TemporaryDirectory(dir=folder) as index:
                    run, job = describe_build(
                        work.data, index, KINDS[order], shard_length=work.shard_length
                    )
                    done = run_build(run, job, clients[num_workers])
                    runs.setdefault((work.name, num_workers, order), []).append(done)
    return runs


def one_machine(num_workers: int) -> Machines:
    """Return worker processes that share this machine with the client."""
    processors = len(os.sched_getaffinity(0))
    return Machines(num_workers, 1, scheduler_in_client=True, num_processors=processors)


def fit_dataset_seconds(
    one: MeasuredBuild, many: MeasuredBuild, costs: Costs, machines: Machines
) -> float:
    """Return the client's seconds for a dataset, from builds whose workers are other processes.

    Parameters
    ----------
    one, many
        Builds of one dataset, and of many small ones in bundles.
    costs
        Costs of a task for the client and the scheduler, which share a process.
    machines
        The machines that the builds ran on.
    """
    task_seconds = costs.client_task_seconds + costs.scheduler_task_seconds
    num_tasks = [forecast_build(build.job, machines, costs).num_tasks for build in (one, many)]
    seconds = many.process_seconds - one.process_seconds
    seconds -= task_seconds * (num_tasks[1] - num_tasks[0])
    return max(0.0, seconds / (many.job.num_datasets - one.job.num_datasets))


def fit_order(builds: list[MeasuredBuild], costs: Costs) -> Costs:
    """Return what the steps of one order cost, from builds with one worker."""
    builds = keep_medians(builds)
    by_datasets = sorted(builds, key=lambda build: build.job.num_datasets)
    one, many = by_datasets[0], by_datasets[-1]
    dataset_seconds = fit_dataset_seconds(one, many, costs, one_machine(1))
    costs = replace(costs, dataset_seconds=dataset_seconds)
    return calibrate(builds, fit_costs(builds, costs), one_machine(1))


def with_bandwidths(costs: Costs, found: Bandwidths) -> Costs:
    """Return costs with what this machine's memory and disk give."""
    return replace(
        costs,
        memory_bandwidth=max(2 * found.copy, 64 * found.gathers_per_second),
        write_bandwidth=found.write,
        # What was just written is in memory.
        read_bandwidth=math.inf,
    )


def check_builds(
    sizes: list[int],
    most_datasets: int,
    num_runs: int,
    folder: Path,
    bandwidths: Bandwidths,
    workers: list[int],
    num_tasks: int,
) -> tuple[Table, dict[str, Costs]]:
    """Return real builds, their predictions and the costs of these."""
    fitted, predicted = [], []
    for size in sorted(sizes):
        small, large = write_works(folder / name_size(size), size, most_datasets)
        # Elements outweigh tasks in the largest of the small builds.
        fitted = small
        predicted += large
    with ExitStack() as stack:
        clients = {
            number: stack.enter_context(start_workers(number, folder))
            for number in sorted({1, *workers})
        }
        costs = with_bandwidths(measure_tasks(clients[1], num_tasks), bandwidths)
        # All in turns: what else the machine does meets costs and builds alike.
        works = [(work, 1) for work in fitted]
        works += [(work, number) for number in workers for work in predicted]
        runs = run_in_turns(works, clients, num_runs, folder)
    by_order = {}
    for order in ORDERS:
        builds = [run for work in fitted for run in runs[work.name, 1, order]]
        by_order[order] = fit_order(builds, costs)
    rows, errors = [], []
    for number in workers:
        for work in predicted:
            for order in ORDERS:
                row = compare(work, number, order, runs[work.name, number, order], by_order[order])
                rows.append(row)
                errors.append(row.figures["error_percent"][0])
    errors.sort()
    notes = [
        f"the prediction is off by {errors[len(errors) // 2]:.0f} % (median) and at most "
        f"{errors[-1]:.0f} %",
        "costs are from other, smaller builds with one worker: none of these was fitted to",
        "one thread a worker; client and scheduler share one process and this machine with them",
    ]
    title = "real builds and their forecasts, on one machine"
    return Table("check", title, rows, notes=notes), by_order


def compare(
    work: Work, num_workers: int, order: str, runs: list[MeasuredBuild], costs: Costs
) -> Row:
    """Return a real build and its prediction."""
    forecast = forecast_build(runs[0].job, one_machine(num_workers), costs)
    seconds = statistics.median(run.seconds for run in runs)
    workers = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    figures = {
        "seconds": [run.seconds for run in runs],
        "predicted_seconds": [forecast.seconds],
        "error_percent": [100 * abs(forecast.seconds / seconds - 1)],
        "num_tasks": [float(forecast.num_tasks)],
    }
    return Row(f"{workers}, {order}, {work.name}", figures)


def make_node_costs(costs: Costs, read_bandwidth: float) -> Costs:
    """Return the costs on nodes of several such processors, with a store that all share."""
    share = _NODE_THREADS / len(os.sched_getaffinity(0))
    return replace(
        costs,
        memory_bandwidth=costs.memory_bandwidth * share,
        read_bandwidth=read_bandwidth,
        store_bandwidth=_STORE_BANDWIDTH,
    )


def forecast_row(name: str, forecast: Forecast) -> Row:
    """Return a row of a forecast."""
    figures = {
        "seconds": forecast.seconds,
        "num_tasks": float(forecast.num_tasks),
        "client_nbytes": forecast.client_nbytes,
        "scheduler_nbytes": forecast.scheduler_nbytes,
    }
    return Row(name, {figure: [value] for figure, value in figures.items()})


def name_nodes(number: int) -> str:
    """Return a number of nodes in words."""
    return "1 node" if number == 1 else f"{number:,} nodes"


def draw_curves(
    costs: Costs, tokens: list[float], nodes: list[int], num_datasets: int
) -> list[Table]:
    """Return what builds of each size take on each number of nodes."""
    tables = []
    for num_tokens in tokens:
        rows, notes = [], []
        job = Job(num_tokens, num_datasets=num_datasets, document_length=_DOCUMENT_LENGTH)
        for number in nodes:
            forecast = forecast_build(job, Machines(number, _NODE_THREADS), costs)
            rows.append(forecast_row(name_nodes(number), forecast))
            notes.append(f"{name_nodes(number)}: {describe_bound(forecast)}")
        size = name_size(num_tokens)
        title = (
            f"predicted: {size} tokens in {num_datasets:,} datasets, nodes of "
            f"{_NODE_THREADS} threads, scalable order, everything stored"
        )
        tables.append(Table(f"curve-{size}", title, rows, notes=notes))
    return tables


def describe_bound(forecast: Forecast) -> str:
    """Return the bound of a build and the second bound."""
    busy = sorted(forecast.busy.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in busy[:3])
    bound = "stages wait for one another" if forecast.bound == "order" else forecast.bound
    return f"bound by {bound} (busy: {shares})"


def compare_designs(
    costs: Costs, tokens: list[float], nodes: int, num_datasets: int
) -> list[Table]:
    """Return forecasts for other shards and for a minimal store, at each size."""
    tables = []
    for num_tokens in tokens:
        job = Job(num_tokens, num_datasets=num_datasets, document_length=_DOCUMENT_LENGTH)
        designs = {
            "as it is": job,
            "shards of 2^22 elements": replace(job, grows=False),
            "shards of 2^20 elements": replace(job, shard_length=1 << 20),
            "shards of 2^26 elements": replace(job, shard_length=1 << 26),
            "minimal store": replace(job, stored="minimal"),
        }
        rows, notes = [], []
        for name, each in designs.items():
            forecast = forecast_build(each, Machines(nodes, _NODE_THREADS), costs)
            rows.append(forecast_row(name, forecast))
            notes.append(f"{name}: {describe_bound(forecast)}")
        size = name_size(num_tokens)
        title = f"predicted: {size} tokens on {name_nodes(nodes)}, by shards and store"
        tables.append(Table(f"design-{size}", title, rows, notes=notes))
    return tables


def compare_losses(costs: Costs, num_tokens: float, num_nodes: int, num_datasets: int) -> Table:
    """Return what losses of nodes cost, the more the more often they happen."""
    job = Job(num_tokens, num_datasets=num_datasets, document_length=_DOCUMENT_LENGTH)
    rows = []
    every = {"no losses": float("inf"), "each node once in 30 days": 30 * _DAY}
    every |= {"each node once a day": _DAY, "each node once an hour": _DAY / 24}
    for name, seconds in every.items():
        losing = replace(costs, node_mtbf_seconds=seconds)
        forecast = forecast_build(job, Machines(num_nodes, _NODE_THREADS), losing)
        row = forecast_row(name, forecast)
        row.figures["num_lost_tasks"] = [float(forecast.num_lost)]
        rows.append(row)
    title = f"predicted: {name_size(num_tokens)} tokens on {name_nodes(num_nodes)} that are lost"
    notes = [
        f"a loss is noticed after {costs.detection_seconds:.0f} s, and another node is there "
        f"{costs.restart_seconds:.0f} s later; its tasks run again elsewhere",
        "the loss of the client or the scheduler is no part of it: a build goes on from its shards",
    ]
    return Table("failures", title, rows, notes=notes)


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=1)
    parser.add_argument("--documents", nargs="+", type=float, default=[4e6, 2e7])
    parser.add_argument("--most-datasets", type=int, default=100, help="of the builds")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--tasks", type=int, default=500, help="empty ones, to measure their cost")
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 3, 10, 30, 100, 300, 1000])
    parser.add_argument("--tokens", nargs="+", type=float, default=[1e12, 1e13, 1e14])
    parser.add_argument("--datasets", type=int, default=1000, help="of the curves")
    parser.add_argument("--seconds", type=float, default=6.0, help="to measure bandwidths")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as scratch,
        tempfile.TemporaryDirectory(prefix="kernels-") as kernels,
    ):
        # Workers compile once, not each by itself.
        os.environ.setdefault("NUMBA_CACHE_DIR", kernels)
        folder = Path(scratch)
        bandwidths = measure_bandwidths(folder, arguments.seconds)
        sizes = [int(size) for size in arguments.documents]
        check, by_order = check_builds(
            sizes,
            arguments.most_datasets,
            arguments.runs,
            folder,
            bandwidths,
            arguments.workers,
            arguments.tasks,
        )
        if os.environ.get("NUMBA_CACHE_DIR") == kernels:
            del os.environ["NUMBA_CACHE_DIR"]
    costs = make_node_costs(by_order["scalable"], bandwidths.read)
    tokens, num_datasets = sorted(arguments.tokens), arguments.datasets
    tables = [check, *draw_curves(costs, tokens, arguments.nodes, num_datasets)]
    tables += compare_designs(costs, tokens, _DESIGN_NODES, num_datasets)
    tables.append(compare_losses(costs, tokens[-1], max(arguments.nodes), num_datasets))
    for table in tables:
        show(table)
    Record.of("bench_scaling", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
