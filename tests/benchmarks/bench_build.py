"""Index builds: Megatron Core's rank-0 path against ``zindex.build``, on the same documents.

``python -m tests.benchmarks.bench_build --documents 1e7 1e8 --runs 3``

Every run is a process of its own, the contenders take turns, and each first builds a small index so
that compiling and importing are not timed. Megatron's time is that of its ``GPTDataset``
constructor with an empty cache: document index, sample index, shuffle index, ``numpy.save``.
Ours is ``zindex.build`` with an empty index folder: planning, threads, every shard with
checksums and fsync, commit. Peak memory is the whole process's, imports included; the first process
compiles kernels, the others find them. What ours builds in Megatron's order is compared with what
Megatron built, bit for bit, in every run.
"""

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.contenders import ARRAYS, SEED, make_dataset
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, folder_nbytes, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes
from zindex.kernels import numpy_budget

SEQUENCE_LENGTH = 4096
RIVAL = "megatron-core, rank 0"
CONTENDERS = {
    RIVAL: None,
    "zindex, megatron order": {"order": "megatron"},
    "zindex, scalable order": {"order": "scalable"},
    "zindex, scalable, minimal": {"order": "scalable", "store": "minimal"},
}
_NOTES = [
    "megatron-core with its defaults: GPTDataset with an empty cache, numpy.save without fsync",
    "zindex: zindex.build with an empty index folder, in threads, with crc32c, fsync and commit",
    "both build the same arrays in Megatron's order, compared bit for bit in every run",
    "the scalable order is bound by random reads of lengths and by the bijection's 64-bit "
    "multiplications, whose cost differs by processor: see bench_kernels",
]


def make_corpus(prefix: Path, num_documents: int) -> None:
    """Write an ``.idx`` of log-normal document lengths and a sparse ``.bin`` of the right size."""
    from zindex.formats.idx_writer import write_index

    rng = np.random.default_rng(num_documents)
    lengths = np.empty(num_documents, np.int32)
    for start in range(0, num_documents, 1 << 22):
        part = rng.lognormal(6.3, 1.2, min(1 << 22, num_documents - start))
        lengths[start : start + len(part)] = np.minimum(part, 100_000)
    bounds = np.arange(num_documents + 1, dtype=np.int64)
    write_index(f"{prefix}.idx", np.uint16, lengths, bounds, None)
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


def build_megatron(prefix: str, folder: str) -> list[np.ndarray]:
    """Build with Megatron Core what its rank 0 builds."""
    dataset = make_dataset("megatron", prefix, folder, SEQUENCE_LENGTH)
    return [getattr(dataset, name) for name in ARRAYS]


def build_zindex(source: str, folder: str, settings: dict[str, str]) -> Any:
    """Build the same with zindex; return the store."""
    import zindex

    results = zindex.build(
        {
            "datasets": [source],
            "sequence_length": SEQUENCE_LENGTH,
            "seed": SEED,
            "split": "100,0,0",
            "index": folder,
            **settings,
        }
    )
    (result,) = results.values()
    return result.store


def build(name: str, prefix: str, suffix: str, folder: str) -> Any:
    """Build into a folder for one contender; return what it made."""
    settings = CONTENDERS[name]
    if settings is None:
        return build_megatron(prefix, folder)
    return build_zindex(prefix + suffix, folder, settings)


def run_worker(name: str, prefix: str, tiny: str, suffix: str) -> None:
    """Build once in this process and print its figures as JSON."""
    numpy_budget.exhaust()
    with tempfile.TemporaryDirectory(dir=Path(prefix).parent) as folder:
        build(name, tiny, suffix, folder)
    target = tempfile.mkdtemp(dir=Path(prefix).parent)
    start = time.perf_counter()
    index = build(name, prefix, suffix, target)
    figures: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "peak_nbytes": peak_nbytes(),
        "written_nbytes": folder_nbytes(target),
    }
    if name == RIVAL:
        figures[MADE] = {"index": digest(*index)}
    elif name == "zindex, megatron order":
        arrays = [index[array].read(0, index.layouts[array].length) for array in ARRAYS]
        figures[MADE] = {"index": digest(*arrays)}
    shutil.rmtree(target)
    print(json.dumps(figures))


def measure(num_documents: int, num_runs: int, folder: Path, suffix: str) -> Table:
    """Return the table of one corpus."""
    import zindex

    prefix, tiny = folder / f"documents-{num_documents}", folder / "tiny"
    for path, size in ((prefix, num_documents), (tiny, min(2_000_000, num_documents))):
        make_corpus(path, size)
        if suffix:
            zindex.convert(path, f"{path}{suffix}", link=True)
    runs = take_turns(__spec__.name, [*CONTENDERS], num_runs, prefix, tiny, suffix)
    for path in folder.glob(f"{prefix.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    table = Table.of_runs(
        f"documents-{name_size(num_documents)}",
        f"index of {num_documents:,} documents, samples of {SEQUENCE_LENGTH:,} tokens",
        runs,
        rival=RIVAL,
        notes=[*_NOTES, memory_note(runs)],
    )
    if num_documents < 10**8:
        return table
    return table.with_bar("zindex, megatron order", 5).with_bar("zindex, scalable order", 8)


def memory_note(runs: dict[str, list[dict[str, float]]]) -> str:
    """Return how the most memory of ours compares with the rival's; a third is the bar at 10^8."""
    rival = statistics.median(run["peak_nbytes"] for run in runs[RIVAL])
    shares = ", ".join(
        f"{statistics.median(run['peak_nbytes'] for run in each) / rival:.2f}"
        for name, each in runs.items()
        if name != RIVAL
    )
    return f"peak memory of the three against the rival's: {shares} (bar at 1e8 documents: 0.33)"


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--documents", nargs="+", type=float, default=[1e7, 1e8])
    parser.add_argument("--source", choices=("zarr", "idx"), default="zarr")
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    suffix = ".zarr" if arguments.source == "zarr" else ""
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for size in map(int, arguments.documents):
            tables.append(measure(size, arguments.runs, Path(folder), suffix))
            show(tables[-1])
    Record.of("bench_build", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
