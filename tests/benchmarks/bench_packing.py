"""Packing: plain Python against the kernel, and whole builds by one worker and by two.

``python -m tests.benchmarks.bench_packing --documents 2e7 --python 1e6 --runs 3``

The rivals pack lengths in memory, as fast as we could write them: best-fit decreasing with
``bisect``, and the kernel's own source run by Python. The kernel does the same work on the same
lengths. A build also shuffles the documents, reads their lengths, and writes and commits every
shard. Its workers are processes that have compiled and imported everything before they are timed.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zindex.kernels import packing as kernels
from zindex.kernels.packing import SPLIT, pack_documents

SEQUENCE_LENGTH, MAX_DOCUMENTS = 4096, 256
# Documents that Python packs by the kernel's source, which it is slow at.
_SOURCE_DOCUMENTS = 20_000

Lengths = np.ndarray


def lognormal(rng: np.random.Generator, size: int) -> Lengths:
    """Return lengths like those of web pages: 828 tokens on average, some of 100,000."""
    return np.exp(rng.normal(6, 1.2, size)).astype(np.int32) + 1


def uniform(rng: np.random.Generator, size: int) -> Lengths:
    """Return lengths of which any up to the whole sample is equally likely."""
    return rng.integers(1, SEQUENCE_LENGTH + 2, size, dtype=np.int32)


def short(rng: np.random.Generator, size: int) -> Lengths:
    """Return lengths of up to 200 tokens."""
    return rng.integers(1, 200, size, dtype=np.int32)


KINDS: dict[str, Callable[[np.random.Generator, int], Lengths]] = {
    "lognormal": lognormal,
    "uniform": uniform,
    "short": short,
}


def pack_in_python(lengths: list[int], room: int, max_documents: int) -> list[list[int]]:
    """Return samples as lists of documents: best-fit decreasing, with ``bisect``."""
    stride = room - 1
    parts = []
    for document, length in enumerate(lengths):
        while length > room:
            parts.append((room, document))
            length -= stride
        parts.append((length, document))
    parts.sort(reverse=True)
    samples: list[list[int]] = []
    rooms: list[int] = []  # that some open sample has left, each once
    stacks: list[list[int]] = [[] for _ in range(room + 1)]
    for length, document in parts:
        place = bisect_left(rooms, length)
        if place == len(rooms):
            left, sample = room - length, len(samples)
            samples.append([document])
        else:
            left = rooms[place]
            stack = stacks[left]
            sample = stack.pop()
            if not stack:
                del rooms[place]
            left -= length
            samples[sample].append(document)
        if left and len(samples[sample]) < max_documents:
            if not stacks[left]:
                insort(rooms, left)
            stacks[left].append(sample)
    return samples


def pack_by_kernel(lengths: Lengths) -> Any:
    """Pack lengths as a build does."""
    documents = np.arange(len(lengths), dtype=np.int32)
    return pack_documents(lengths, documents, SEQUENCE_LENGTH, 1, MAX_DOCUMENTS, SPLIT)


@contextmanager
def kernels_in_python() -> Iterator[None]:
    """Let Python run the source of the kernels."""
    jitted = {name: item for name, item in vars(kernels).items() if hasattr(item, "py_func")}
    try:
        for name, item in jitted.items():
            setattr(kernels, name, item.py_func)
        yield
    finally:
        for name, item in jitted.items():
            setattr(kernels, name, item)


def clock(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(lengths: Lengths, num_runs: int) -> dict[str, float]:
    """Return nanoseconds per document of plain Python and of the kernel on the same lengths."""
    values, few = lengths.tolist(), lengths[:_SOURCE_DOCUMENTS]
    samples = pack_in_python(values, SEQUENCE_LENGTH + 1, MAX_DOCUMENTS)
    assert len(samples) == len(pack_by_kernel(lengths).sample_offset) - 1
    bisect, kernel = [], []
    for _ in range(num_runs):
        kernel += [clock(lambda: pack_by_kernel(lengths)) for _ in range(3)]
        bisect.append(clock(lambda: pack_in_python(values, SEQUENCE_LENGTH + 1, MAX_DOCUMENTS)))
    with kernels_in_python():
        source = clock(lambda: pack_by_kernel(few))
    return {
        "Python, bisect": 1e9 * statistics.median(bisect) / len(lengths),
        "Python, the same": 1e9 * source / len(few),
        "kernel": 1e9 * statistics.median(kernel) / len(lengths),
    }


def write_lengths(path: Path, lengths: Lengths) -> None:
    """Write the pair of a corpus of these lengths, its tokens a hole in the file."""
    from zindex.formats.idx_writer import write_index

    write_index(f"{path}.idx", np.uint16, lengths, range(len(lengths) + 1), None)
    with open(f"{path}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


def build(path: Path, folder: Path, executor: Any) -> tuple[float, dict[str, Any]]:
    """Build and commit the packed index of a corpus; return seconds and what it tells of itself."""
    from zindex.building.executor import run_builds
    from zindex.building.packing import build_packing
    from zindex.building.source import open_source
    from zindex.plan.packing import PackingPlan, PackingRules

    source = open_source(str(path))
    size = source.facts.num_sequences
    plan = PackingPlan(
        source=source.facts,
        split="train",
        start=0,
        stop=size,
        tokens_per_epoch=source.count_tokens(0, size),
        sequence_length=SEQUENCE_LENGTH,
        extra_token=1,
        seed=7,
        rules=PackingRules(MAX_DOCUMENTS),
    )
    start = time.perf_counter()
    result = run_builds(build_packing(plan, source, folder, executor))
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return seconds, result.store.attributes


def build_with_workers(
    lengths: Lengths, num_runs: int, folder: Path
) -> tuple[dict[str, dict[str, float]], float]:
    """Return seconds of builds by one and two workers, in turns, and the padding share."""
    from distributed import Client, LocalCluster

    from zindex.building.executor import DaskExecutor

    path, warm = folder / "corpus", folder / "warm"
    write_lengths(path, lengths)
    write_lengths(warm, lengths[:1000])
    seconds: dict[str, list[float]] = {"1 worker": [], "2 workers": []}
    busiest: dict[str, list[float]] = {"1 worker": [], "2 workers": []}
    settings: Any = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with (
        LocalCluster(n_workers=1, **settings) as one,
        LocalCluster(n_workers=2, **settings) as two,
        Client(one, set_as_default=False) as first,
        Client(two, set_as_default=False) as second,
    ):
        clients = {"1 worker": first, "2 workers": second}
        for client in clients.values():
            client.run(_warm_up, str(warm), str(folder))
        for _ in range(num_runs):
            for name, client in clients.items():
                before = client.run(time.process_time)
                taken, facts = build(path, folder / "index", DaskExecutor(client))
                after = client.run(time.process_time)
                seconds[name].append(taken)
                busiest[name].append(max(after[worker] - before[worker] for worker in before))
    medians = {
        name: {
            "seconds": statistics.median(seconds[name]),
            "cpu_seconds": statistics.median(busiest[name]),
        }
        for name in seconds
    }
    return medians, facts["padding_share"]


def _warm_up(path: str, folder: str) -> None:
    """Compile and import everything in a worker."""
    from zindex.building.executor import SerialExecutor

    build(Path(path), Path(tempfile.mkdtemp(dir=folder)), SerialExecutor())


def measure_padding(num_documents: int) -> dict[str, dict[str, float]]:
    """Return the padding of one packing of all documents, and of partitions as in a build."""
    from zindex.plan.packing import PARTITION_LENGTH

    shares = {}
    for kind, draw in KINDS.items():
        lengths = draw(np.random.default_rng(1), num_documents)
        num_partitions = max(1, num_documents // PARTITION_LENGTH)
        cuts = [num_documents * i // num_partitions for i in range(num_partitions + 1)]
        parts = [pack_by_kernel(lengths[a:b]) for a, b in pairwise(cuts)]
        whole = pack_by_kernel(lengths)
        num_tokens = sum(part.num_tokens for part in parts)
        num_samples = sum(len(part.sample_offset) - 1 for part in parts)
        shares[kind] = {
            name: 1 - num_tokens / (number * (SEQUENCE_LENGTH + 1))
            for name, number in (("all", len(whole.sample_offset) - 1), ("build", num_samples))
        }
    return shares


def show(result: dict[str, Any], num_documents: int, num_python: int) -> None:
    """Print the tables."""
    print(f"\n{num_python:,} documents in memory; nanoseconds per document")
    print(f"{'':12}{'bisect':>10}{'source':>10}{'kernel':>10}{'faster':>10}{'and':>10}")
    for kind, row in result["memory"].items():
        bisect, source, kernel = row.values()
        ratios = f"{bisect / kernel:.0f}x", f"{source / kernel:.0f}x"
        print(f"{kind:12}{bisect:10.0f}{source:10.0f}{kernel:10.1f}{ratios[0]:>10}{ratios[1]:>10}")
    print(f"\n{num_documents:,} documents; padding of one packing of all, and of a build")
    for kind, row in result["padding"].items():
        print(f"{kind:12}{row['all']:10.4%}{row['build']:10.4%}")
    one, two = result["build"].values()
    print(
        f"\nbuild: {one['seconds']:.2f} s by 1 worker, {two['seconds']:.2f} s by 2: "
        f"{one['seconds'] / two['seconds']:.2f}x; CPU of the busiest worker "
        f"{one['cpu_seconds']:.2f} s and {two['cpu_seconds']:.2f} s: "
        f"{one['cpu_seconds'] / two['cpu_seconds']:.2f}x\n"
        f"{1e9 * one['seconds'] / num_documents:.0f} ns per document; "
        f"padding {result['build_padding']:.4%}"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=float, default=2e7)
    parser.add_argument("--python", type=float, default=1e6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    num_documents, num_python = int(arguments.documents), int(arguments.python)
    result: dict[str, Any] = {"documents": num_documents, "python": num_python}
    result["memory"] = {
        kind: compare(draw(np.random.default_rng(0), num_python), arguments.runs)
        for kind, draw in KINDS.items()
    }
    result["padding"] = measure_padding(num_documents)
    lengths = lognormal(np.random.default_rng(1), num_documents)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result["build"], result["build_padding"] = build_with_workers(
            lengths, arguments.runs, Path(folder)
        )
    show(result, num_documents, num_python)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
