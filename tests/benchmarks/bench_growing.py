"""Growing stores: appends, how soon readers see them, and reads before and after compaction.

``python -m tests.benchmarks.bench_growing --generations 200 --records 32 --latency 0.02 --runs 3``

Records are groups of four responses of 100 to 400 tokens, with masks, log-probabilities and
rewards: some 10 kB each. With a latency, appends also go to moto's object store, each of whose
answers is late by it. What is read is compared with a store that was written at once.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import make_parser
from tests.cloud.servers import free_port, moto_server, wait_for_port
from zindex.growing.compaction import compact
from zindex.growing.growing_log import GrowingLog
from zindex.growing.homes import store_path
from zindex.growing.writer import GrowingWriter
from zindex.io import object_calls
from zindex.keyed import DatasetFactory
from zindex.keyed.growing_dataset import GrowingDataset

AT_ONCE, FILES, COMPACTED = "written at once", "growing, small files", "growing, compacted"
BATCH = 64
Figures = dict[str, float]


def make_records(num_records: int) -> list[dict[str, Any]]:
    """Return groups of four responses."""
    rng, records = np.random.default_rng(1), []
    for _ in range(num_records):
        sizes = rng.integers(100, 400, 4)
        records.append(
            {
                "prompts": rng.integers(0, 50_000, 200).astype(np.int32),
                "responses": [rng.integers(0, 50_000, size).astype(np.int32) for size in sizes],
                "masks": [np.ones(size, np.bool_) for size in sizes],
                "logprobs": [np.zeros(size, np.float32) for size in sizes],
                "rewards": rng.random(4).astype(np.float32),
            }
        )
    return records


def write(store: str, records: list[dict[str, Any]], num_generations: int) -> list[float]:
    """Append generations; return the seconds of each."""
    writer, seconds = GrowingWriter(store), []
    for _ in range(num_generations):
        start = time.perf_counter()
        writer.append(records)
        seconds.append(time.perf_counter() - start)
    return seconds


def measure_appends(
    store: str, records: list[dict[str, Any]], num_generations: int, num_writers: int
) -> Figures:
    """Append by several processes at once; return the seconds of an append, and the rate of all."""
    write(store, records, 1)
    context = multiprocessing.get_context("fork" if object_calls.may_fork() else "spawn")
    with context.Pool(num_writers) as pool:
        pool.map(abs, range(num_writers))  # until all have started
        share = max(1, num_generations // num_writers)
        start = time.perf_counter()
        found = pool.starmap(write, [(store, records, share)] * num_writers, chunksize=1)
        seconds = time.perf_counter() - start
    total = sum(map(len, found)) * len(records)
    median = statistics.median(each for part in found for each in part)
    return {"append_seconds": median, "records_per_second": total / seconds}


def measure_follow(store: str, records: list[dict[str, Any]], num_rounds: int) -> Figures:
    """Return the seconds from the end of an append until a waiting reader has its records."""
    write(store, records, 1)
    dataset = GrowingDataset("grpo", store, round_size=len(records), patience=60)
    dataset[0]
    delays = []
    for number in range(1, num_rounds + 1):
        ends: list[float] = []

        def work(ends: list[float] = ends) -> None:
            time.sleep(0.5)  # the reader waits
            write(store, records, 1)
            ends.append(time.perf_counter())

        thread = threading.Thread(target=work)
        thread.start()
        dataset[number * len(records)]
        now = time.perf_counter()
        thread.join()
        delays.append(max(0.0, now - ends[0]))
    return {"seconds": statistics.median(delays), "longest_seconds": max(delays)}


def measure_read(dataset: Any, num_batches: int) -> Figures:
    """Return the samples per second of random batches."""
    places = np.random.default_rng(2).integers(0, len(dataset), (num_batches + 8, BATCH))
    for batch in places[:8]:
        dataset.collate(dataset.__getitems__(batch))
    start = time.perf_counter()
    for batch in places[8:]:
        dataset.collate(dataset.__getitems__(batch))
    return {"samples_per_second": num_batches * BATCH / (time.perf_counter() - start)}


async def _forward(port: int, target: int, seconds: float) -> None:
    """Forward connections, whose requests arrive late."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: float) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while content := await reader.read(1 << 16):
                loop.call_later(late, writer.write, content)
        loop.call_later(late, writer.close)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, back, seconds), copy(there, writer, 0.0))

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


@contextmanager
def late_bucket(folder: Path, latency: float) -> Iterator[str]:
    """Run moto behind a latency; yield the URL of an empty bucket that the environment leads to."""
    with moto_server(folder) as server:
        target, port = int(server.endpoint.rpartition(":")[2]), free_port()
        server.client.create_bucket(Bucket="growing")
        work = lambda: asyncio.run(_forward(port, target, latency))  # noqa: E731
        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        wait_for_port(port)
        before = dict(os.environ)
        os.environ.update(server.environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
        object_calls.forget_clients()
        try:
            yield "s3://growing"
        finally:
            object_calls.forget_clients()
            os.environ.clear()
            os.environ.update(before)
            process.terminate()
            process.join()


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments="+")
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--records", type=int, default=32)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.0, help="of an object store; 0: none")
    arguments = parser.parse_args()
    records = make_records(arguments.records)
    what = f"{arguments.generations} generations of {arguments.records} records of some 10 kB"
    appends: dict[str, list[Figures]] = {}
    follows: dict[str, list[Figures]] = {}
    reads: dict[str, list[Figures]] = {AT_ONCE: [], FILES: [], COMPACTED: []}
    for run in range(arguments.runs):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            place, count = Path(folder), arguments.generations
            for writers in arguments.writers:
                figures = measure_appends(f"{folder}/append-{writers}", records, count, writers)
                appends.setdefault(f"file system, writers: {writers}", []).append(figures)
            figures = measure_follow(f"{folder}/follow", records, arguments.rounds)
            follows.setdefault("file system", []).append(figures)
            store = f"{folder}/append-{arguments.writers[0]}"
            dataset = DatasetFactory.load("grpo", store, 1)
            reads[FILES].append(measure_read(dataset, arguments.batches))
            compact(store, min_count=2)
            dataset = DatasetFactory.load("grpo", store, 1)
            reads[COMPACTED].append(measure_read(dataset, arguments.batches))
            log = GrowingLog(store)
            largest = max(log.history.homes, key=lambda home: home.nbytes)
            dataset = DatasetFactory.load("grpo", store_path(log.root, largest.name), 1)
            reads[AT_ONCE].append(measure_read(dataset, arguments.batches))
            if arguments.latency:
                with late_bucket(place, arguments.latency) as url:
                    name = f"object store, {1e3 * arguments.latency:g} ms away"
                    for writers in arguments.writers:
                        few = max(2, count // 10)
                        figures = measure_appends(f"{url}/{run}-{writers}", records, few, writers)
                        appends.setdefault(f"{name}, writers: {writers}", []).append(figures)
                    figures = measure_follow(f"{url}/{run}-follow", records, arguments.rounds)
                    follows.setdefault(name, []).append(figures)
    tables = [
        Table.of_runs(
            "append",
            f"appends of {what}",
            appends,
            ratio_of="append_seconds",
            notes=["append: median of the time until a generation is committed and durable"],
        ),
        Table.of_runs(
            "follow",
            f"from an append of {arguments.records} records to the sample of a waiting reader",
            follows,
        ),
        Table.of_runs(
            "read",
            f"random batches of {BATCH} of {what}",
            reads,
            rival=AT_ONCE,
            ratio_of="samples_per_second",
        ),
    ]
    for table in tables:
        show(table)
    Record.of("bench_growing", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
