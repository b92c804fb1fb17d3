"""Blends: Megatron Core's C++ helper against ``build_blend``, with the same weights.

``python -m tests.benchmarks.bench_blend --datasets 100 1000 --samples 1e8 --runs 3``

The rival fills its two arrays in memory, nothing more; its time per sample does not depend on how
many there are, so it draws fewer of them. Ours is the whole build with an empty index folder: the
shuffle, every shard with checksums and fsync, commit. All contenders take
turns, each in a process of its own that has compiled and imported everything before it is timed.
In Megatron's order, all that the rival drew is compared with ours, element for element.
"""

import json
import shutil
import tempfile
import time
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, folder_nbytes, make_parser, take_turns
from zindex.indexing.ensure import build_store
from zindex.io.system_calls import peak_nbytes

RIVAL, RIVAL_EXHAUSTIVE = "megatron-core helper", "megatron-core helper, exhaustive"
CONTENDERS: dict[str, dict[str, str] | None] = {
    RIVAL: None,
    RIVAL_EXHAUSTIVE: None,
    "zindex, megatron order": {"order": "megatron"},
    "zindex, megatron order, exhaustive": {"order": "megatron"},
    "zindex, scalable order": {"order": "scalable"},
    "zindex, scalable order, uniform": {"order": "scalable", "shuffle": "uniform"},
}
ARRAYS = ("dataset_index", "dataset_sample_index")
_NOTES = [
    "megatron-core: the C++ helper behind its BlendedDataset, two arrays in memory, not shuffled, "
    "not saved; num_samples says how many it drew",
    "zindex: the whole build with an empty index folder, shuffle, crc32c, fsync and commit",
    "Megatron's order by weights: what the rival drew is compared with ours in every run",
]
_WARM_SAMPLES = 5_000_000
# Seconds that a large blend of 1,000 datasets may take on two idle cores.
_LIMIT_SAMPLES, _LIMITS = 2 * 10**9, {"zindex, megatron order": 90, "zindex, scalable order": 12}
# About as many evaluations of a dataset's error by the rival.
_RIVAL_STEPS = 1_000_000_000
# What ``--more-datasets`` compares.
_FEW = (RIVAL, "zindex, megatron order", "zindex, scalable order")


def make_weights(num_datasets: int) -> np.ndarray:
    """Return random weights, the same in every process, as a user gives them."""
    return np.random.default_rng(num_datasets).random(num_datasets)


def normalize(weights: np.ndarray) -> np.ndarray:
    """Return weights over their sum: both do this once, for a second time may change a last bit."""
    return weights / weights.sum()


def make_sizes(num_datasets: int, num_samples: int) -> np.ndarray:
    """Return whole sizes in proportion to the weights."""
    return np.maximum(1, (normalize(make_weights(num_datasets)) * num_samples).astype(np.int64))


def count_drawn(num_datasets: int, num_samples: int) -> int:
    """Return how many samples the rival draws."""
    return min(num_samples, max(1000, _RIVAL_STEPS // num_datasets))


def run_rival(name: str, num_datasets: int, num_samples: int) -> dict[str, Any]:
    """Fill the arrays with Megatron Core's helper; return figures."""
    from megatron.core.datasets import helpers_cpp

    num_samples = count_drawn(num_datasets, num_samples)
    sizes = make_sizes(num_datasets, num_samples)
    if name.endswith("exhaustive"):
        num_samples = int(sizes.sum())
    dataset_index = np.zeros(num_samples, np.int16)
    dataset_sample_index = np.zeros(num_samples, np.int64)
    start = time.perf_counter()
    if name.endswith("exhaustive"):
        helpers_cpp.build_exhaustive_blending_indices(
            dataset_index, dataset_sample_index, sizes, num_datasets
        )
    else:
        weights = normalize(make_weights(num_datasets))
        helpers_cpp.build_blending_indices(
            dataset_index, dataset_sample_index, weights, num_datasets, num_samples, False
        )
    seconds, peak = time.perf_counter() - start, peak_nbytes()
    figures: dict[str, Any] = {"seconds": seconds, "num_samples": num_samples, "peak_nbytes": peak}
    if not name.endswith("exhaustive"):
        figures[MADE] = {"order": digest(dataset_index, dataset_sample_index)}
    return figures


def run_zindex(name: str, num_datasets: int, num_samples: int, folder: str) -> dict[str, Any]:
    """Build and commit a blend; return figures."""
    from zindex.execution.executor import open_executor, run_builds
    from zindex.plan.blend_plan import BlendPlan

    settings: Any = {"split": "train"} | (CONTENDERS[name] or {})
    if name.endswith("exhaustive"):
        plan = BlendPlan.exhaustive(make_sizes(num_datasets, num_samples), **settings)
    else:
        plan = BlendPlan.weighted(make_weights(num_datasets), num_samples, **settings)
    start = time.perf_counter()
    with open_executor() as executor:
        result = run_builds(build_store(plan, None, folder, executor))
        again = sum(span.stage == "again" for span in executor.timeline.spans)
    figures: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "num_samples": plan.num_samples,
        "peak_nbytes": peak_nbytes(),
        "written_nbytes": folder_nbytes(folder),
        "num_chunks_again": again,
    }
    if name == "zindex, megatron order":
        drawn = count_drawn(num_datasets, num_samples)
        datasets, samples = (result.store[array].read(0, drawn) for array in ARRAYS)
        # Ours takes int32 where that is enough, the rival int64 always.
        figures[MADE] = {"order": digest(datasets, samples.astype(np.int64))}
    return figures


def run_worker(name: str, num_datasets: int, num_samples: int, folder: str) -> None:
    """Run one contender in this process and print its figures as JSON."""
    if CONTENDERS[name] is None:
        run_rival(name, num_datasets, 1000)
        figures = run_rival(name, num_datasets, num_samples)
    else:
        with tempfile.TemporaryDirectory(dir=folder) as warm:
            run_zindex(name, num_datasets, min(num_samples, _WARM_SAMPLES), warm)
        target = tempfile.mkdtemp(dir=folder)
        figures = run_zindex(name, num_datasets, num_samples, target)
        shutil.rmtree(target)
    figures["sample_ns"] = 1e9 * figures["seconds"] / figures["num_samples"]
    print(json.dumps(figures))


def measure(
    num_datasets: int, num_samples: int, contenders: list[str], num_runs: int, folder: str
) -> Table:
    """Return the table of one blend."""
    runs = take_turns(__spec__.name, contenders, num_runs, num_datasets, num_samples, folder)
    table = Table.of_runs(
        f"datasets-{num_datasets}-samples-{name_size(num_samples)}",
        f"blend of {num_datasets:,} datasets with random weights, {num_samples:,} samples",
        runs,
        rival={
            name: RIVAL_EXHAUSTIVE if name.endswith("exhaustive") else RIVAL for name in contenders
        },
        ratio_of="sample_ns",
        notes=_NOTES,
    )
    if num_samples < 10**8 or num_datasets not in (100, 1000):
        return table
    if num_datasets == 100:
        return table.with_bar("zindex, megatron order", 4)
    table = table.with_bar("zindex, megatron order", 40).with_bar("zindex, scalable order", 160)
    for name, limit in _LIMITS.items() if num_samples == _LIMIT_SAMPLES else ():
        table = table.with_limit(name, "seconds", limit)
    return table


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--datasets", nargs="*", type=int, default=[100, 1000])
    parser.add_argument(
        "--more-datasets",
        nargs="+",
        type=int,
        default=[],
        help="numbers of datasets at which only the plain orders are compared, for the curve",
    )
    parser.add_argument("--samples", nargs="+", type=float, default=[1e8])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    arguments = parser.parse_args()
    if arguments.worker:
        name, num_datasets, num_samples, folder = arguments.worker
        run_worker(name, int(num_datasets), int(num_samples), folder)
        return
    tables = []
    works = [(number, arguments.contenders) for number in arguments.datasets]
    works += [(number, list(_FEW)) for number in arguments.more_datasets]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for num_datasets, contenders in sorted(works):
            for num_samples in map(int, arguments.samples):
                sizes = (num_datasets, num_samples)
                tables.append(measure(*sizes, contenders, arguments.runs, folder))
                show(tables[-1])
    Record.of("bench_blend", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
