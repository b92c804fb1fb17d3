"""Blends: Megatron Core's C++ helper against ``build_blend``, on the same weights.

``python -m tests.benchmarks.bench_blend --datasets 100 1000 --samples 1e8 --runs 3``

The rival fills its two arrays in memory, nothing more; its time per sample does not depend on how
many there are, so it draws fewer of them. Ours is the whole build with an empty index folder: the
embedded cluster, the shuffle, every shard with checksums and fsync, commit. All contenders take
turns, each in a process of its own that has compiled and imported everything before it is timed.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.turns import make_parser, take_turns
from zindex.measuring.machine import peak_nbytes

CONTENDERS = {
    "helpers_cpp": None,
    "helpers_cpp, exhaustive": None,
    "megatron order": {"order": "megatron"},
    "megatron order, exhaustive": {"order": "megatron"},
    "scalable order": {"order": "scalable"},
    "scalable order, uniform": {"order": "scalable", "shuffle": "uniform"},
}
_WARM_SAMPLES = 5_000_000
# About as many evaluations of a dataset's error by the rival.
_RIVAL_STEPS = 2_000_000_000


def make_weights(num_datasets: int) -> np.ndarray:
    """Return random weights, the same in every process."""
    weights = np.random.default_rng(num_datasets).random(num_datasets)
    return weights / weights.sum()


def make_sizes(num_datasets: int, num_samples: int) -> np.ndarray:
    """Return whole sizes in proportion to the weights."""
    return np.maximum(1, (make_weights(num_datasets) * num_samples).astype(np.int64))


def run_rival(name: str, num_datasets: int, num_samples: int) -> dict[str, float]:
    """Fill the arrays with Megatron Core's helper; return seconds and samples."""
    from megatron.core.datasets import helpers_cpp

    num_samples = min(num_samples, max(1000, _RIVAL_STEPS // num_datasets))
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
        weights = make_weights(num_datasets)
        helpers_cpp.build_blending_indices(
            dataset_index, dataset_sample_index, weights, num_datasets, num_samples, False
        )
    return {"seconds": time.perf_counter() - start, "samples": num_samples}


def run_zindex(name: str, num_datasets: int, num_samples: int, folder: str) -> dict[str, float]:
    """Build and commit a blend; return seconds, samples and chunks computed again."""
    from zindex.building.blend import build_blend
    from zindex.building.executor import open_executor, run_builds
    from zindex.plan.blend_plan import BlendPlan

    settings: Any = {"split": "train"} | (CONTENDERS[name] or {})
    if name.endswith("exhaustive"):
        plan = BlendPlan.exhaustive(make_sizes(num_datasets, num_samples), **settings)
    else:
        plan = BlendPlan.weighted(make_weights(num_datasets), num_samples, **settings)
    start = time.perf_counter()
    with open_executor() as executor:
        run_builds(build_blend(plan, folder, executor))
        again = sum(span.stage == "again" for span in executor.timeline.spans)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "samples": plan.num_samples, "again": again}


def run_worker(name: str, num_datasets: int, num_samples: int, folder: str) -> None:
    """Run one contender in this process and print its figures as JSON."""
    if name.startswith("helpers_cpp"):
        run_rival(name, num_datasets, 1000)
        figures = run_rival(name, num_datasets, num_samples)
    else:
        with tempfile.TemporaryDirectory(dir=folder) as warm:
            run_zindex(name, num_datasets, min(num_samples, _WARM_SAMPLES), warm)
        target = tempfile.mkdtemp(dir=folder)
        figures = run_zindex(name, num_datasets, num_samples, target)
        shutil.rmtree(target)
    print(json.dumps(figures | {"peak_nbytes": peak_nbytes()}))


def show(num_datasets: int, num_samples: int, result: dict[str, Any]) -> None:
    """Print one table."""
    print(f"\n{num_datasets:,} datasets, {num_samples:,} samples")
    print(f"{'':28}{'seconds':>10}{'ns/sample':>12}{'faster':>10}{'peak MiB':>10}")
    for name, row in result.items():
        rival = result.get(
            "helpers_cpp, exhaustive" if name.endswith("exhaustive") else "helpers_cpp"
        )
        cost = 1e9 * row["seconds"] / row["samples"]
        ratio = ""
        if rival is not None:
            ratio = f"{1e9 * rival['seconds'] / rival['samples'] / cost:.1f}x"
        print(
            f"{name:28}{row['seconds']:10.2f}{cost:12.1f}{ratio:>10}"
            f"{row['peak_nbytes'] / 2**20:10.0f}"
        )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--datasets", nargs="+", type=int, default=[100, 1000])
    parser.add_argument("--samples", nargs="+", type=float, default=[1e8])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    arguments = parser.parse_args()
    if arguments.worker:
        name, num_datasets, num_samples, folder = arguments.worker
        run_worker(name, int(num_datasets), int(num_samples), folder)
        return
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for num_datasets in arguments.datasets:
            for num_samples in map(int, arguments.samples):
                sizes = (num_datasets, num_samples, folder)
                result = take_turns(__spec__.name, arguments.contenders, arguments.runs, *sizes)
                show(num_datasets, num_samples, result)
                results.append(
                    {"datasets": num_datasets, "samples": num_samples, "contenders": result}
                )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
