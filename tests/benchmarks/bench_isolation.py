"""Steps of a fixed training loop, alone and beside builds on the processors of its node.

``python -m tests.benchmarks.bench_isolation --steps 400 --documents 1e6 --samples 1e8``

A step is products of matrices in one thread and a copy of a batch, 20 ms on an idle machine. The
contenders take turns of 50 steps in one process, so that whatever else the machine does affects all
of them. Each has a cluster of `alongside` in this job that builds the same run again and again; its
processes are stopped during the turns of the others.
"""

import json
import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.bench_ahead import make_run
from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import Figures, folder_nbytes, make_parser, run_once, take_part
from tests.cluster.processes import find_nodes
from zindex.io.machine import count_cpus

ALONE, MARKED = "alone", "beside builds, cluster.step()"
#: Contender -> settings of its cluster, and whether steps are marked.
BESIDE: dict[str, tuple[dict[str, Any], bool]] = {
    # As any Dask cluster: all processors, at the priority of training.
    "beside builds, no isolation": ({"threads": count_cpus(), "nice": 0, "bandwidth": None}, False),
    "beside builds": ({}, False),
    MARKED: ({}, True),
}
#: Steps of a turn, and those before them that are not measured.
TURN, WARM_UP = 50, 10
_SECONDS, _BATCH_NBYTES = 0.02, 1 << 24
# The most that builds may add to the median step and to the 99th percentile.
_GOALS = {"median_seconds": 1.01, "p99_seconds": 1.03}


class Builds:
    """Builds of a run one after the other, on the cluster of one contender.

    Parameters
    ----------
    cluster
        Its cluster.
    path
        The run's YAML file.
    supervisor
        The process whose children are the other processes of the cluster.
    """

    def __init__(self, cluster: Any, path: Path, supervisor: psutil.Process) -> None:
        self.cluster = cluster
        self.written_nbytes = 0
        self._path, self._supervisor = path, supervisor
        self._building: Any = None

    def keep_building(self) -> None:
        """Begin again when a build is done."""
        if self._building is None or self._building.is_done:
            self.clear()
            self._building = self.cluster.begin_build(self._path)

    def clear(self) -> None:
        """Remove what is built, and count its bytes."""
        index = Path(json.loads(self._path.read_text())["index"])
        self.written_nbytes += folder_nbytes(index)
        shutil.rmtree(index, ignore_errors=True)

    def stop(self) -> None:
        """Stop the processes of the cluster."""
        self._supervisor.suspend()  # it would start what ends
        for process in self._supervisor.children():
            process.suspend()

    def resume(self) -> None:
        """Let them run."""
        for process in self._supervisor.children():
            process.resume()
        self._supervisor.resume()

    def end(self) -> None:
        """Cancel the build, and let the cluster end."""
        self.resume()
        if self._building is not None:
            self._building.cancel()


@contextmanager
def open_builds(settings: dict[str, Any], path: Path) -> Iterator[Builds]:
    """Yield builds whose cluster is stopped."""
    from zindex.cluster import alongside

    before = find_nodes()
    with alongside(**settings) as cluster:
        assert cluster.client is not None
        (supervisor,) = find_nodes() - before
        builds = Builds(cluster, path, supervisor)
        builds.stop()
        try:
            yield builds
        finally:
            builds.end()


def make_step() -> Callable[[], None]:
    """Return a training step of about 20 ms."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.rand(512, 512)
    product = torch.empty_like(matrix)
    batch = torch.ones(_BATCH_NBYTES, dtype=torch.uint8)
    copied = torch.empty_like(batch)

    def step(repeats: int) -> None:
        copied.copy_(batch)
        for _ in range(repeats):
            torch.mm(matrix, matrix, out=product)

    def clock(repeats: int) -> float:
        start = time.perf_counter()
        step(repeats)
        return time.perf_counter() - start

    copy = min(clock(0) for _ in range(20))
    one = min(clock(1) for _ in range(20)) - copy
    repeats = max(1, round((_SECONDS - copy) / max(one, 1e-6)))
    return lambda: step(repeats)


def take_turn(
    step: Callable[[], None], num_steps: int, builds: Builds | None, marks: bool
) -> list[float]:
    """Return the seconds of steps."""
    seconds = []
    if builds is not None:
        builds.resume()
    for _ in range(WARM_UP + num_steps):
        if builds is not None:
            builds.keep_building()
        start = time.perf_counter()
        step()
        if builds is not None and marks:
            builds.cluster.step()
        seconds.append(time.perf_counter() - start)
    if builds is not None:
        builds.stop()
    return seconds[WARM_UP:]


def run_worker(_: str, path: str, steps: str) -> None:
    """Run the steps of all contenders in turns, and print their seconds."""
    # Of schedulers that do not answer, because they are stopped.
    logging.getLogger("zindex.cluster").setLevel(logging.ERROR)
    run, num_steps = json.loads(Path(path).read_text()), int(steps)
    beside: dict[str, tuple[Builds | None, bool]] = {ALONE: (None, False)}
    seconds: dict[str, list[float]] = {name: [] for name in (ALONE, *BESIDE)}
    with ExitStack() as stack:
        for number, (name, (settings, marks)) in enumerate(BESIDE.items()):
            own = Path(path).with_name(f"run-{number}.yaml")
            index = str(own.with_name(f"index-{number}"))
            own.write_text(json.dumps(run | {"index": index}))
            beside[name] = stack.enter_context(open_builds(settings, own)), marks
        step, order = make_step(), list(beside)
        for first in range(0, num_steps, TURN):
            for name in order:
                seconds[name] += take_turn(step, min(TURN, num_steps - first), *beside[name])
            order.reverse()
    figures: Figures = {}
    for name, (builds, _marks) in beside.items():
        values = sorted(seconds[name])
        figures[f"{name}/median_seconds"] = statistics.median(values)
        figures[f"{name}/p99_seconds"] = values[len(values) * 99 // 100]
        if builds is not None:
            builds.clear()
            figures[f"{name}/written_nbytes"] = builds.written_nbytes
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--documents", type=float, default=1e6)
    parser.add_argument("--samples", type=float, default=1e8)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        numbers = (4, int(arguments.documents), int(arguments.samples))
        path = make_run(Path(folder) / "run", *numbers)
        runs = [
            run_once(__spec__.name, "in turns", path, arguments.steps)
            for _ in range(arguments.runs)
        ]
    table = Table.of_runs(
        "steps",
        f"{arguments.steps:,} steps beside builds of blends of {numbers[2]:,} samples",
        {name: take_part(runs, name) for name in (ALONE, *BESIDE)},
        rival=ALONE,
        ratio_of="median_seconds",
        notes=["written: by builds in the time of the steps"],
    )
    why = f"the training thread and the build share {count_cpus()} processors"
    for figure, goal in _GOALS.items():
        table = table.with_bar(MARKED, 1 / goal, why, figure)
    show(table)
    Record.of("bench_isolation", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
