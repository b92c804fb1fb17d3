"""Trillions of tokens in a thousand datasets, from ``.idx`` files to committed indices and blend.

``python -m tests.benchmarks.bench_trillions --tokens 5e11 1e12 5e12 --runs 2``

Log-normal documents of 5,000 tokens on average, in as many ``.idx`` files as there are datasets, no
two alike; the ``.bin`` files are sparse. A build starts with empty index folders and with ``.idx``
files that are not in the page cache, checks every file to its last element, and ends with the last
commit. All tokens are drawn once: the blend takes every dataset for one epoch. Each run is a
process of its own that has compiled its kernels.

The physical limit is what the disk alone would need: the ``.idx`` files read once and the stores
written once, at the rates that large files were read and written with (and synced) in this run.
Megatron Core's time is an estimate, said so in its name: its rank 0 does one dataset after the
other, so one is built and counted as often as there are datasets, and its blend, whose cost per
sample is constant, is drawn for some samples only.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.bench_build import SEQUENCE_LENGTH, build_megatron
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import Figures, folder_nbytes, make_parser, run_once
from zindex.io.system_calls import peak_nbytes
from zindex.kernels import numpy_budget

MEAN_LENGTH = 5000
RIVAL = "megatron-core, rank 0, estimated"
CONTENDERS: dict[str, dict[str, Any]] = {
    "zindex, scalable, minimal": {"order": "scalable", "store": "minimal"},
    "zindex, scalable order": {"order": "scalable"},
    "zindex, megatron order": {"order": "megatron"},
}
#: Megatron's order is drawn in full up to this many tokens.
_MEGATRON_TOKENS = 10**12
_BLEND_SAMPLES = 500_000
_GOAL_TOKENS, _GOALS = 5 * 10**12, (490, 200)
_PROBE_NBYTES = 16 << 20
#: The first word of a task's key -> stage. A bundle's steps are spans themselves.
_STAGES = {
    "open": "check .idx",
    **dict.fromkeys(("begin", "documents", "count", "samples", "shuffle", "arrays"), "indices"),
    **dict.fromkeys(("blend", "permutation", "describe_blend", "again", "store"), "blend"),
}
#: Stored array -> the stage that writes it.
_ARRAYS = {
    **dict.fromkeys(("document_index", "sample_index", "shuffle_index"), "indices"),
    **dict.fromkeys(("dataset_index", "dataset_sample_index"), "blend"),
}


def make_corpus(prefix: str, num_documents: int, number: int) -> None:
    """Write an ``.idx`` and a sparse ``.bin`` of the right size."""
    from zindex.formats.idx_writer import write_index

    mean = np.log(MEAN_LENGTH) - 0.72
    lengths = np.random.default_rng(number).lognormal(mean, 1.2, num_documents)
    lengths = np.clip(lengths, 1, 1_000_000).astype(np.int32)
    write_index(f"{prefix}.idx", np.uint16, lengths, np.arange(num_documents + 1), None)
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


def make_corpora(folder: Path, num_tokens: int, num_datasets: int) -> None:
    """Write the datasets of one size, unless they are there."""
    if folder.exists():
        return
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True)
    each = max(1, num_tokens // MEAN_LENGTH // num_datasets)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        done = [
            pool.submit(make_corpus, f"{partial}/corpus-{number:05d}", each, number)
            for number in range(num_datasets)
        ]
        for future in done:
            future.result()
    partial.rename(folder)


def list_prefixes(folder: str | Path) -> list[str]:
    """Return the paths of all pairs of a folder, without their suffix."""
    return [str(path.with_suffix("")) for path in sorted(Path(folder).glob("*.idx"))]


def forget_pages(prefixes: list[str]) -> None:
    """Drop ``.idx`` files from the page cache, as when they come from a store elsewhere."""
    for prefix in prefixes:
        descriptor = os.open(f"{prefix}.idx", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run_zindex(settings: dict[str, Any], prefixes: list[str], target: str) -> dict[str, Any]:
    """Build a run and return its figures and the seconds that its stages kept threads busy."""
    import zindex
    from zindex.execution.timeline import Timeline

    run = {
        "datasets": [{"path": prefix, "epochs": 1} for prefix in prefixes],
        "sequence_length": SEQUENCE_LENGTH,
        "split": "100,0,0",
        "index": target,
    }
    forget_pages(prefixes)
    timeline, start, busy = Timeline(), time.perf_counter(), time.process_time()
    results = zindex.build(run | settings, timeline=timeline)
    figures = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - busy,
        "peak_nbytes": peak_nbytes(),
        "written_nbytes": folder_nbytes(target),
        "num_samples": results[None, "train"].store.attributes["num_samples"],
    }
    busy_seconds: dict[str, float] = defaultdict(float)
    for span in timeline.spans:
        busy_seconds[_STAGES.get(span.stage, "")] += span.stop - span.start
    stored: dict[str, int] = defaultdict(int)
    for result in results.values():
        for name, layout in result.store.layouts.items():
            stored[_ARRAYS.get(name, "")] += layout.nbytes
    return figures | {"busy": busy_seconds, "stored": stored}


def run_rival(prefixes: list[str], target: str) -> dict[str, Any]:
    """Build one dataset and a part of a blend; return the time of all as estimated."""
    from megatron.core.datasets import helpers_cpp

    prefix = prefixes[len(prefixes) // 2]
    forget_pages([prefix])
    start = time.perf_counter()
    documents, samples, _ = build_megatron(prefix, target)
    one = time.perf_counter() - start
    sizes = np.full(len(prefixes), (len(samples) - 1), np.int64)
    weights = sizes / sizes.sum()
    num_drawn = min(_BLEND_SAMPLES, int(sizes.sum()))
    datasets, numbers = np.zeros(num_drawn, np.int16), np.zeros(num_drawn, np.int64)
    start = time.perf_counter()
    helpers_cpp.build_blending_indices(datasets, numbers, weights, len(prefixes), num_drawn, False)
    blend = (time.perf_counter() - start) * float(sizes.sum()) / num_drawn
    del documents
    return {"seconds": one * len(prefixes) + blend, "num_samples": int(sizes.sum())}


def run_limits(prefixes: list[str], target: str) -> dict[str, Any]:
    """Return the bytes per second that the disk reads and writes with, both cores at it."""
    some = prefixes[: max(1, (4 << 30) // os.path.getsize(f"{prefixes[0]}.idx"))]
    forget_pages(some)

    def read(prefix: str) -> int:
        with open(f"{prefix}.idx", "rb", buffering=0) as stream:
            return sum(iter(lambda: stream.readinto(bytearray(1 << 22)) or 0, 0))

    content = np.random.default_rng(1).bytes(_PROBE_NBYTES)

    def write(number: int) -> int:
        with open(f"{target}/probe-{number}", "wb", buffering=0) as stream:
            stream.write(content)
            os.fsync(stream.fileno())
        return len(content)

    rates = {}
    with ThreadPoolExecutor(4) as pool:
        for name, work, items in (("read", read, some), ("write", write, range(128))):
            start = time.perf_counter()
            nbytes = sum(pool.map(work, items))
            rates[f"{name}_nbytes_per_second"] = nbytes / (time.perf_counter() - start)
    return rates


def run_worker(name: str, folder: str, tiny: str) -> None:
    """Run one contender in this process and print its figures as JSON."""
    work: dict[str, Any] = {"limits": run_limits, RIVAL: run_rival}
    run = work.get(name) or (lambda *places: run_zindex(CONTENDERS[name], *places))
    with tempfile.TemporaryDirectory(dir=Path(folder).parent) as target:
        if name != "limits":
            numpy_budget.exhaust()
            run(list_prefixes(tiny), f"{target}/tiny")
        os.makedirs(f"{target}/index")
        print(json.dumps(run(list_prefixes(folder), f"{target}/index")))


def measure(folder: Path, num_tokens: int, num_datasets: int, num_runs: int) -> list[Table]:
    """Return the tables of one size: the builds, and what bounds them."""
    corpora, tiny = folder / f"tokens-{name_size(num_tokens)}", folder / "tiny"
    make_corpora(corpora, num_tokens, num_datasets)
    make_corpora(tiny, MEAN_LENGTH * 20_000, 20)
    names = [RIVAL, *CONTENDERS]
    if num_tokens > _MEGATRON_TOKENS:
        names.remove("zindex, megatron order")
    idx_nbytes = sum(path.stat().st_size for path in corpora.glob("*.idx"))
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    stages: dict[str, list[dict[str, Figures]]] = {name: [] for name in names if name != RIVAL}
    for _ in range(num_runs):
        limits = run_once(__spec__.name, "limits", corpora, tiny)
        for name in names:
            figures = run_once(__spec__.name, name, corpora, tiny)
            if name != RIVAL:
                parts = figures.pop("busy"), figures.pop("stored")
                stages[name].append(bound_stages(*parts, idx_nbytes, limits))
                reading = idx_nbytes / limits["read_nbytes_per_second"]
                writing = figures["written_nbytes"] / limits["write_nbytes_per_second"]
                figures["disk_limit_seconds"] = reading + writing
            runs[name].append(figures)
    size = name_size(num_tokens)
    num_documents = num_datasets * max(1, num_tokens // MEAN_LENGTH // num_datasets)
    table = Table.of_runs(
        size,
        f"{num_tokens:,} tokens: {num_documents:,} documents in {num_datasets:,} datasets, "
        f"{idx_nbytes / 2**30:.1f} GiB of .idx, samples of {SEQUENCE_LENGTH:,} tokens",
        runs,
        rival=RIVAL,
        notes=_notes(num_tokens, runs, limits),
    )
    return [table, *(tabulate_stages(size, name, each) for name, each in stages.items())]


def _notes(num_tokens: int, runs: dict[str, list[Figures]], limits: dict[str, float]) -> list[str]:
    """Return what one must know to judge the figures."""
    notes = [
        f"the disk read {limits['read_nbytes_per_second'] / 1e9:.2f} and wrote "
        f"{limits['write_nbytes_per_second'] / 1e9:.2f} GB/s in the last run",
        "megatron-core: one dataset built and counted for all, a part of the blend drawn",
    ]
    if num_tokens == _GOAL_TOKENS:
        for name, each in runs.items():
            if name != RIVAL:
                seconds = statistics.median(run["seconds"] for run in each)
                notes.append(
                    f"{name}: {seconds:.0f} s (bar {_GOALS[0]} s, goal {_GOALS[1]} s), "
                    f"{max(run['peak_nbytes'] for run in each) / 2**20:.0f} MiB (bar 4 GB)"
                )
    return notes


def bound_stages(
    busy: dict[str, float], stored: dict[str, int], idx_nbytes: int, limits: dict[str, float]
) -> dict[str, Figures]:
    """Return of each stage what it moves, how long the disk needs for that, and how long it took.

    Lengths that a stage reads again come from memory: the page cache, or the process's own.
    """
    bounds = {}
    for stage in dict.fromkeys(_STAGES.values()):
        rate = limits[
            "read_nbytes_per_second" if stage == "check .idx" else "write_nbytes_per_second"
        ]
        moved = idx_nbytes if stage == "check .idx" else stored.get(stage, 0)
        if stage in busy:
            bounds[stage] = {
                "disk_nbytes": moved,
                "disk_limit_seconds": moved / rate,
                "thread_seconds": busy[stage],
            }
    return bounds


def tabulate_stages(size: str, name: str, runs: list[dict[str, Figures]]) -> Table:
    """Return the stages of one contender."""
    stages: dict[str, list[Figures]] = {}
    for run in runs:
        for stage, figures in run.items():
            stages.setdefault(stage, []).append(figures)
    key = name.removeprefix("zindex, ").replace(",", "").replace(" ", "-")
    return Table.of_runs(
        f"stages-{size}-{key}",
        f"stages of {name}, {size} tokens",
        stages,
        notes=[
            "thread seconds: of all threads together, waiting for the disk included; stages run "
            "side by side, and check .idx is one span of several threads",
        ],
    )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--tokens", nargs="+", type=float, default=[5e11, 1e12, 5e12])
    parser.add_argument("--datasets", type=int, default=1000)
    parser.add_argument("--keep", action="store_true", help="keep the datasets in --folder")
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        folder = Path(arguments.folder if arguments.keep else scratch)
        for num_tokens in sorted(map(int, arguments.tokens)):
            made = measure(folder, num_tokens, arguments.datasets, arguments.runs)
            tables += made
            for table in made:
                show(table)
            if not arguments.keep:
                shutil.rmtree(folder / f"tokens-{name_size(num_tokens)}")
    Record.of("bench_trillions", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
