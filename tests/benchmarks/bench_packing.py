"""Packing: plain Python against the kernel, and builds with one and two workers.

``python -m tests.benchmarks.bench_packing --documents 2e7 --python 1e6 --runs 3``

The rivals pack lengths in memory, as fast as we could write them: best-fit decreasing with
``bisect``, and the kernel's own source run by Python. The kernel does the same work on the same
lengths, and makes as many samples. They take turns, each in a process of its own. A build also
shuffles the documents, reads their lengths, and writes and commits every shard. Its workers are
processes that have compiled and imported everything before they are timed.
"""

import json
import shutil
import tempfile
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, make_parser, take_turns
from zindex.indexing.ensure import build_store
from zindex.io.system_calls import peak_nbytes
from zindex.kernels import packing as kernels
from zindex.kernels.packing import SPLIT, FitRules, pack_documents

SEQUENCE_LENGTH, MAX_DOCUMENTS = 4096, 256
# Documents that Python packs by the kernel's source, which it is slow at.
_SOURCE_DOCUMENTS = 20_000

BISECT, SOURCE, KERNEL = "Python, bisect", "Python, the kernel's source", "zindex, kernel"
ONE, TWO = "zindex, 1 worker", "zindex, 2 workers"

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
    return pack_documents(lengths, documents, FitRules(SEQUENCE_LENGTH, 1, MAX_DOCUMENTS, SPLIT))


@contextmanager
def kernels_in_python() -> Iterator[None]:
    """Let Python run the source of the kernels."""
    jitted = {name: item for name, item in vars(kernels).items() if hasattr(item, "py_func")}
    intrinsic = {"find_bit": kernels.find_bit}
    try:
        for name, item in jitted.items():
            setattr(kernels, name, item.py_func)
        kernels.find_bit = lambda bits: (int(bits) & -int(bits)).bit_length() - 1
        yield
    finally:
        for name, item in (jitted | intrinsic).items():
            setattr(kernels, name, item)


def run_worker(name: str, kind: str, num_documents: str) -> None:
    """Pack lengths once in this process and print the figures as JSON."""
    lengths = KINDS[kind](np.random.default_rng(0), int(num_documents))
    made = {}
    if name == BISECT:
        values = lengths.tolist()
        start = time.perf_counter()
        samples = pack_in_python(values, SEQUENCE_LENGTH + 1, MAX_DOCUMENTS)
        seconds = time.perf_counter() - start
        made[kind] = str(len(samples))
    elif name == SOURCE:
        lengths = lengths[:_SOURCE_DOCUMENTS]
        with kernels_in_python():
            seconds = clock(lambda: pack_by_kernel(lengths))
    else:
        pack_by_kernel(lengths[:1000])
        start = time.perf_counter()
        packed = pack_by_kernel(lengths)
        seconds = time.perf_counter() - start
        made[kind] = str(len(packed.sample_offset) - 1)
    figures = {"document_ns": 1e9 * seconds / len(lengths), "peak_nbytes": peak_nbytes()}
    print(json.dumps(figures | {MADE: made}))


def compare_in_memory(kind: str, num_documents: int, num_runs: int) -> Table:
    """Return the table of plain Python and of the kernel on the same lengths."""
    table = Table.of_runs(
        f"memory-{kind}",
        f"packing {num_documents:,} documents in memory: {kind} lengths",
        take_turns(__spec__.name, (BISECT, SOURCE, KERNEL), num_runs, kind, num_documents),
        rival=BISECT,
        ratio_of="document_ns",
        notes=[f"the kernel's source in Python packs {_SOURCE_DOCUMENTS:,} of them"],
    )
    return table.with_bar(KERNEL, 20) if num_documents >= 10**6 else table


def write_lengths(path: Path, lengths: Lengths) -> None:
    """Write the pair of a corpus of these lengths, its tokens a hole in the file."""
    from zindex.formats.idx_writer import write_index

    write_index(f"{path}.idx", np.uint16, lengths, range(len(lengths) + 1), None)
    with open(f"{path}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


def build(path: Path, folder: Path, executor: Any) -> tuple[float, dict[str, Any]]:
    """Build and commit the packed index of a corpus; return seconds and its attributes."""
    from zindex.execution.executor import run_builds
    from zindex.ingest.length_source import open_source
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
    result = run_builds(build_store(plan, source, folder, executor))
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return seconds, result.store.attributes


def build_with_workers(lengths: Lengths, num_runs: int, folder: Path) -> Table:
    """Return the table of builds by one worker and by two, in turns."""
    from distributed import Client, LocalCluster

    from zindex.execution.executor import DaskExecutor

    path, warm = folder / "corpus", folder / "warm"
    write_lengths(path, lengths)
    write_lengths(warm, lengths[:1000])
    runs: dict[str, list[dict[str, float]]] = {ONE: [], TWO: []}
    settings: Any = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with (
        LocalCluster(n_workers=1, **settings) as one,
        LocalCluster(n_workers=2, **settings) as two,
        Client(one, set_as_default=False) as first,
        Client(two, set_as_default=False) as second,
    ):
        clients = {ONE: first, TWO: second}
        for client in clients.values():
            client.run(_warm_up, str(warm), str(folder))
        for _ in range(num_runs):
            for name, client in clients.items():
                before = client.run(time.process_time)
                seconds, facts = build(path, folder / "index", DaskExecutor(client))
                after = client.run(time.process_time)
                figures = {
                    "seconds": seconds,
                    "busiest_cpu_seconds": max(after[key] - before[key] for key in before),
                    "document_ns": 1e9 * seconds / len(lengths),
                    "peak_nbytes": max(client.run(peak_nbytes).values()),
                    "padding_share": facts["padding_share"],
                }
                runs[name].append(figures)
    return Table.of_runs(
        f"build-{name_size(len(lengths))}",
        f"packed index of {len(lengths):,} documents, samples of {SEQUENCE_LENGTH:,} tokens",
        runs,
        rival=ONE,
        notes=[
            "workers of one thread; busiest: processor time of the worker that worked most; "
            "peak memory of the largest worker",
            "two workers share two cores with the process that orders their tasks",
        ],
    )


def _warm_up(path: str, folder: str) -> None:
    """Compile and import everything in a worker."""
    from zindex.execution.executor import SerialExecutor

    build(Path(path), Path(tempfile.mkdtemp(dir=folder)), SerialExecutor())


def measure_padding(kinds: list[str], num_documents: int) -> Table:
    """Return the padding of one packing of all documents, and of partitions as in a build."""
    from zindex.plan.packing import PARTITION_LENGTH

    shares: dict[str, list[dict[str, float]]] = {}
    worst = 0.0
    for kind in kinds:
        lengths = KINDS[kind](np.random.default_rng(1), num_documents)
        num_partitions = max(1, num_documents // PARTITION_LENGTH)
        cuts = [num_documents * i // num_partitions for i in range(num_partitions + 1)]
        parts = [pack_by_kernel(lengths[a:b]) for a, b in pairwise(cuts)]
        whole = pack_by_kernel(lengths)
        num_tokens = sum(part.num_tokens for part in parts)
        num_samples = sum(len(part.sample_offset) - 1 for part in parts)
        whole_share, build_share = (
            1 - num_tokens / (number * (SEQUENCE_LENGTH + 1))
            for number in (len(whole.sample_offset) - 1, num_samples)
        )
        shares[kind] = [{"whole_padding_share": whole_share, "build_padding_share": build_share}]
        worst = max(worst, build_share - whole_share)
    return Table.of_runs(
        f"padding-{name_size(num_documents)}",
        f"padding of {num_documents:,} documents: one packing of all, and a build's partitions",
        shares,
        notes=[
            "bar: a build's share within 0.001 of that of one best-fit-decreasing packing of all; "
            f"it is {worst:.2g} above it at most"
        ],
    )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--documents", type=float, default=2e7)
    parser.add_argument("--python", type=float, default=1e6, help="documents that Python packs")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    num_documents, num_python = int(arguments.documents), int(arguments.python)
    tables = []
    for kind in arguments.kinds:
        tables.append(compare_in_memory(kind, num_python, arguments.runs))
        show(tables[-1])
    tables.append(measure_padding(arguments.kinds, num_documents))
    show(tables[-1])
    lengths = lognormal(np.random.default_rng(1), num_documents)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        tables.append(build_with_workers(lengths, arguments.runs, Path(folder)))
    show(tables[-1])
    Record.of("bench_packing", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
