"""Batches from a store far away: against a server with 30 ms added latency.

``python -m tests.benchmarks.bench_remote --tokens 1e8 --seconds 8 --latency 0.03``

An HTTP server of this machine answers each request late by the latency. A corpus and its index lie
there; batches of 32 samples of 4,096 tokens come from the dataset's ``__getitems__`` in the run's
shuffled order, some of them read ahead by threads. Chunks that
are kept are few against the corpus. The ideal is one batch per round trip: what a loader gets that
asks for all of a batch at once and waits for it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.cloud.servers import free_port, wait_for_port
from tests.conftest import FakeTokenizer

BATCH, MEAN_LENGTH, VOCAB = 32, 800, 50_000
CODECS = ("none", "zstd")


def write_run(folder: Path, num_tokens: int, length: int, codec: Any) -> dict[str, Any]:
    """Write a corpus and its index, and return the run that they make."""
    import zindex
    from zindex.building.executor import SerialExecutor
    from zindex.formats.bin_writer import PairWriter
    from zindex.store.layout import ChunkGrid

    generator = np.random.default_rng(1)
    mean, sigma = np.log(MEAN_LENGTH) - 0.5, 1.0
    lengths = generator.lognormal(mean, sigma, num_tokens // MEAN_LENGTH).astype(np.int64) + 1
    with tempfile.TemporaryDirectory() as scratch:
        prefix = f"{scratch}/corpus"
        writer = PairWriter(f"{prefix}.bin", np.uint16)
        for part in np.array_split(lengths, max(1, len(lengths) // 10_000)):
            writer.append(generator.integers(1, VOCAB, part.sum()), part)
        writer.end_document()
        writer.finalize(f"{prefix}.idx")
        # A sample is one or two chunks: fewer bytes for nothing than with the chunks for disks.
        grid = ChunkGrid(chunk_length=1 << 13, shard_length=1 << 23, codec=codec)
        zindex.convert(prefix, folder / "corpus.zarr", client=SerialExecutor(), grid=grid)
    run = {
        "datasets": ["corpus.zarr"],
        "sequence_length": length,
        "split": "100,0,0",
        "order": "scalable",
        "index": "index",
        "grid": {"chunk_length": 1 << 13, "shard_length": 1 << 20},
    }
    zindex.build(place_run(run, str(folder)), SerialExecutor())
    return run


def place_run(run: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a run whose data lie below a place."""
    datasets = [f"{place}/{name}" for name in run["datasets"]]
    return run | {"datasets": datasets, "index": f"{place}/{run['index']}"}


@contextmanager
def serve(folder: Path, latency: float) -> Iterator[str]:
    """Serve a folder, late, by a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.latency_server", str(folder)]
    process = subprocess.Popen([*command, str(port), str(latency)])
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def read_batches(
    dataset: Any, num_ahead: int, batches: Iterator[np.ndarray], seconds: float
) -> tuple[int, float]:
    """Return how many batches were read in how many seconds, some of them ahead by threads."""
    with ThreadPoolExecutor(num_ahead) as pool:

        def submit() -> Any:
            return pool.submit(dataset.__getitems__, next(batches).tolist())

        pending = deque(submit() for _ in range(num_ahead))
        begin = time.perf_counter()
        num_read = 0
        while time.perf_counter() - begin < seconds:
            pending.popleft().result()
            pending.append(submit())
            num_read += 1
        elapsed = time.perf_counter() - begin
        for future in pending:
            future.cancel()
    return num_read, elapsed


def measure(run: dict[str, Any], url: str, args: argparse.Namespace, codec: str) -> dict[str, Any]:
    """Return the figures of one run."""
    from zindex.datasets.run_datasets import open_run
    from zindex.store.chunk_cache import cache, reader_statistics, set_chunk_cache

    cache.reset()
    set_chunk_cache(int(args.cache))
    begin = time.perf_counter()
    [dataset] = open_run(place_run(run, url), FakeTokenizer(vocab_size=VOCAB))["train"]
    dataset.config.create_attention_mask = False
    positions = np.arange(len(dataset) // BATCH * BATCH).reshape(-1, BATCH)
    batches = iter(positions[np.arange(10_000_000) % len(positions)])
    dataset.__getitems__(next(batches).tolist())
    first = time.perf_counter() - begin
    reader_statistics(reset=True)
    busy = time.process_time()
    num_batches, elapsed = read_batches(dataset, args.ahead, batches, args.seconds)
    busy = time.process_time() - busy
    counts = reader_statistics()
    rate = num_batches * BATCH / elapsed
    return {
        "codec": codec,
        "samples_per_second": rate,
        "ideal_samples_per_second": BATCH / args.latency,
        "ratio": rate * args.latency / BATCH,
        "first_batch_seconds": first,
        "num_batches": num_batches,
        "cpu_seconds": busy,
        "num_requests": counts.num_requests,
        "nbytes": counts.nbytes,
        "num_hits": counts.num_hits,
        "num_misses": counts.num_misses,
        "num_ahead": counts.num_ahead,
    }


def describe(figures: dict[str, Any]) -> str:
    """Return a line for people."""
    num_batches = max(1, figures["num_batches"])
    return (
        f"{figures['codec']:5} {figures['samples_per_second']:8,.0f} samples/s of "
        f"{figures['ideal_samples_per_second']:,.0f} ideal: {figures['ratio']:.2f}x; first batch "
        f"{figures['first_batch_seconds']:.2f} s; a batch: "
        f"{figures['num_requests'] / num_batches:.1f} requests, "
        f"{figures['nbytes'] / num_batches / 1e6:.2f} MB, {figures['num_hits'] / num_batches:.1f} "
        f"hits, {figures['num_misses'] / num_batches:.1f} misses, "
        f"{figures['cpu_seconds'] / num_batches * 1e3:.1f} ms of CPU"
    )


def main() -> None:
    """Measure, print, and write figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=float, default=1e8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--ahead", type=int, default=8, help="batches read ahead")
    parser.add_argument("--cache", type=float, default=1 << 25, help="bytes of chunks kept")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    figures = []
    for codec in CODECS:
        with tempfile.TemporaryDirectory() as folder:
            run = write_run(Path(folder), int(args.tokens), args.length, codec)
            with serve(Path(folder), args.latency) as url:
                figures.append(measure(run, url, args, codec))
                print(describe(figures[-1]), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
