"""Sentence mappings: Megatron Core's helpers against zindex, and builds with one and two threads.

``python -m tests.benchmarks.bench_mapping --documents 2e6 --runs 3``

The helpers are called with the same arguments, one thread each, and must make the same mappings.
They take turns, each in a process of its own that makes all of them. A build also reads and digests
lengths, and writes and commits every shard, by threads of a Dask worker that has compiled
everything before.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, make_parser, take_part, take_turns
from zindex.indexing.ensure import build_store
from zindex.io.system_calls import peak_nbytes

TARGET = 509
THEIRS, OURS = "megatron-core helper", "zindex, helper"
ONE, TWO = "zindex, 1 thread", "zindex, 2 threads"


def draw_corpus(num_documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds and lengths: documents of up to 29 sentences of up to 59 tokens."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 30, num_documents)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    return bounds, rng.integers(1, 60, bounds[-1]).astype(np.int32)


def sentences(helpers: Any, bounds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Map one epoch, all targets alike."""
    return helpers.build_mapping(bounds, lengths, 1, 2**40, TARGET, 0.0, 1234, False, 2)


def short_ones(helpers: Any, bounds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Map one epoch, one target in ten drawn."""
    return helpers.build_mapping(bounds, lengths, 1, 2**40, TARGET, 0.1, 1234, False, 2)


def four_epochs(helpers: Any, bounds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Map four epochs, all targets alike."""
    return helpers.build_mapping(bounds, lengths, 4, 2**40, TARGET, 0.0, 1234, False, 2)


def blocks(helpers: Any, bounds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Map blocks with room for a title."""
    titles = np.arange(len(bounds) - 1, dtype=np.int32) % 40
    return helpers.build_blocks_mapping(bounds, lengths, titles, 1, 2**40, 288, 1234, False, False)


KINDS: dict[str, Callable[[Any, np.ndarray, np.ndarray], np.ndarray]] = {
    "sentences": sentences,
    "short ones": short_ones,
    "four epochs": four_epochs,
    "blocks": blocks,
}


def run_worker(name: str, kinds: list[str], num_documents: int) -> None:
    """Map sentences once for each kind in this process and print the figures as JSON."""
    if name == THEIRS:
        from megatron.core.datasets import helpers
    else:
        from zindex.datasets import helpers
    few, (bounds, lengths) = draw_corpus(100), draw_corpus(num_documents)
    figures, made = {}, {}
    for kind in kinds:
        KINDS[kind](helpers, *few)  # compiled
        start = time.perf_counter()
        mapping = KINDS[kind](helpers, bounds, lengths)
        seconds = time.perf_counter() - start
        figures[f"{kind}/sentence_ns"] = 1e9 * seconds / len(lengths)
        made[kind] = digest(mapping)
    figures |= {f"{kind}/peak_nbytes": peak_nbytes() for kind in kinds}
    print(json.dumps(figures | {MADE: made}))


def build(path: Path, folder: Path, executor: Any) -> float:
    """Build and commit the keyed mapping of four epochs of a corpus; return seconds."""
    from zindex.execution.executor import run_builds
    from zindex.indexing.mapping_tasks import SentenceSource
    from zindex.indexing.sentence_mapping import plan_mapping
    from zindex.ingest.length_source import open_source

    source = SentenceSource(open_source(path, require_bin=False))
    plan = plan_mapping(
        source,
        range(source.sentences.reader.num_documents),
        split="train",
        max_sequence_length=TARGET,
        min_num_sentences=2,
        short_sequence_probability=0.1,
        seed=1234,
        order="scalable",
        num_requested=4 * source.sentences.reader.num_documents,
    )
    start = time.perf_counter()
    run_builds(build_store(plan, source, folder, executor))
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return seconds


def build_with_threads(num_documents: int, num_runs: int, folder: Path) -> Table:
    """Return the table of builds by one thread and by two, in turns."""
    from zindex.execution.executor import SerialExecutor, embedded_client, open_executor
    from zindex.formats.idx_writer import write_index

    path, warm = folder / "corpus", folder / "warm"
    for prefix, size in ((path, num_documents), (warm, 1000)):
        bounds, lengths = draw_corpus(size)
        write_index(f"{prefix}.idx", np.uint16, lengths, bounds)
    build(warm, folder / "index", SerialExecutor())
    runs: dict[str, list[dict[str, float]]] = {ONE: [], TWO: []}
    for _ in range(num_runs):
        for num_threads, name in enumerate(runs, 1):
            with embedded_client(num_threads) as client, open_executor(client) as executor:
                build(warm, folder / "index", executor)
                before = time.process_time()
                seconds = build(path, folder / "index", executor)
                figures = {"seconds": seconds, "cpu_seconds": time.process_time() - before}
            runs[name].append(figures)
    return Table.of_runs(
        f"build-{name_size(num_documents)}",
        f"four epochs of sentences of {num_documents:,} documents, targets keyed",
        runs,
        rival=ONE,
        notes=["threads of one Dask worker in this process; cpu: of the whole process"],
    )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--documents", type=float, default=2e6)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    arguments = parser.parse_args()
    if arguments.worker:
        name, kinds, count = arguments.worker
        run_worker(name, json.loads(kinds), int(count))
        return
    num_documents = int(arguments.documents)
    work = (json.dumps(arguments.kinds), num_documents)
    runs = take_turns(__spec__.name, (THEIRS, OURS), arguments.runs, *work)
    tables = []
    for kind in arguments.kinds:
        table = Table.of_runs(
            f"memory-{kind.replace(' ', '-')}-{name_size(num_documents)}",
            f"mapping sentences of {num_documents:,} documents in memory: {kind}",
            {name: take_part(each, kind) for name, each in runs.items()},
            rival=THEIRS,
            ratio_of="sentence_ns",
            notes=["peak memory: of a process that makes all kinds of mappings one by one"],
        )
        tables.append(table)
        show(table)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        tables.append(build_with_threads(num_documents, arguments.runs, Path(folder)))
    show(tables[-1])
    Record.of("bench_mapping", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
