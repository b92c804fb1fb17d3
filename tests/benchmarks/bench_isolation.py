"""Steps of a fixed training loop, alone and with builds on the other processors of its node.

``python -m tests.benchmarks.bench_isolation --steps 1000 --documents 1e6 --samples 1e8``

A step is products of matrices in one thread, whose size is chosen for 20 ms on an idle machine.
Builds of the same run follow each other for as long as the steps last, on a cluster of `alongside`
in the same job. Contenders take turns, each in a process of its own that has compiled everything.
"""

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from tests.benchmarks.bench_ahead import make_run
from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import folder_nbytes, make_parser, take_turns

ALONE = "alone"
#: Contender -> niceness of the workers, and whether steps are marked.
BESIDE = {
    "beside builds, niceness 0": (0, False),
    "beside builds": (19, False),
    "beside builds, cluster.step()": (19, True),
}
_SECONDS = 0.02


def run_worker(name: str, path: str, steps: str) -> None:
    """Run the steps, and print their seconds."""
    import torch

    from zindex.cluster import alongside

    torch.set_num_threads(1)
    index = Path(path).parent / "index"
    shutil.rmtree(index, ignore_errors=True)
    nice, marks = BESIDE.get(name, (19, True))
    seconds, nbytes = [], 0
    with alongside(nice=nice) as cluster:
        assert cluster.client is not None
        building = None
        matrix = torch.rand(512, 512)
        product = torch.empty_like(matrix)
        start = time.perf_counter()
        for _ in range(20):
            torch.mm(matrix, matrix, out=product)
        repeats = max(1, round(20 * _SECONDS / (time.perf_counter() - start)))
        end = time.perf_counter()
        for _ in range(int(steps)):
            if name != ALONE and (building is None or building.is_done):
                nbytes += folder_nbytes(index)
                shutil.rmtree(index, ignore_errors=True)
                building = cluster.begin_build(path)
                end = time.perf_counter()
            for _ in range(repeats):
                torch.mm(matrix, matrix, out=product)
            if marks:
                cluster.step()
            start, end = end, time.perf_counter()
            seconds.append(end - start)
        nbytes += folder_nbytes(index)
        if building is not None:
            building.cancel()
    seconds.sort()
    figures = {
        "median_seconds": statistics.median(seconds),
        "p99_seconds": seconds[len(seconds) * 99 // 100],
        "written_nbytes": nbytes,
    }
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--documents", type=float, default=1e6)
    parser.add_argument("--samples", type=float, default=1e8)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        numbers = (4, int(arguments.documents), int(arguments.samples))
        path = make_run(Path(folder) / "run", *numbers)
        runs = take_turns(__spec__.name, (ALONE, *BESIDE), arguments.runs, path, arguments.steps)
    table = Table.of_runs(
        "steps",
        f"{arguments.steps:,} steps beside builds of blends of {numbers[2]:,} samples",
        runs,
        rival=ALONE,
        ratio_of="median_seconds",
        notes=["written: by builds in the time of the steps"],
    )
    show(table)
    Record.of("bench_isolation", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
