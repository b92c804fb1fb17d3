"""Batches from a remote store, against ranges of a flat file with the same prefetch depth.

``python -m tests.benchmarks.bench_remote --tokens 1e8 --seconds 8 --latency 0.03 --runs 3``

An HTTP server of this machine answers each request late by the latency. A corpus and its index are
there, raw and compressed; batches of 32 samples of 4,096 tokens come from the dataset's
``__getitems__`` in the run's shuffled order, some of them read ahead by threads. The rival is what
one would write by hand: all indices in memory, the ``.bin`` on the server, and for each batch all
ranges of its documents at once by obstore, by the same threads. All take turns, each run in a
process of its own. Chunks that are kept are few against the corpus.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.contenders import ARRAYS
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, make_parser, take_turns
from tests.cloud.servers import free_port, wait_for_port
from tests.conftest import FakeTokenizer
from zindex.io.system_calls import peak_nbytes

BATCH, MEAN_LENGTH, VOCAB = 32, 800, 50_000
CONTENDERS = {"zindex, raw": "none", "zindex, zstd": "zstd"}
FLAT = "obstore, ranges of a flat file"
RUN = "run.json"


def write_run(folder: Path, num_tokens: int, length: int, codec: Any) -> None:
    """Write a corpus, its index, and the run that they make."""
    import zindex
    from zindex.execution.executor import SerialExecutor
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
        if codec == "none":
            shutil.copy(f"{prefix}.bin", folder / "corpus.bin")
    run = {
        "datasets": ["corpus.zarr"],
        "sequence_length": length,
        "split": "100,0,0",
        "order": "scalable",
        "index": "index",
        "grid": {"chunk_length": 1 << 13, "shard_length": 1 << 20},
    }
    zindex.build(place_run(run, str(folder)), SerialExecutor())
    (folder / RUN).write_text(json.dumps(run))


def place_run(run: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a run whose data are below a URL."""
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


class FlatFile:
    """Samples of a ``.bin`` on a server, whose offsets and indices are in memory.

    Parameters
    ----------
    dataset
        Of ours, with the same samples: its indices are read here, untimed.
    offsets
        Where each document starts, in tokens, and where the last one stops.
    url
        The folder of the ``.bin``.
    """

    def __init__(self, dataset: Any, offsets: np.ndarray, url: str) -> None:
        from obstore.store import HTTPStore

        self.documents, self.samples, self.order = (
            np.asarray(getattr(dataset, name)[:], np.int64) for name in ARRAYS
        )
        self.offsets = offsets
        options = {"allow_http": True}
        self.store = HTTPStore.from_url(url, client_options=options)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __getitems__(self, positions: list[int]) -> np.ndarray:
        """Return the tokens of samples, one more for each than it has labels."""
        spans = []
        for row in self.order[positions].tolist():
            (first, start), (last, stop) = self.samples[row : row + 2].tolist()
            for place in range(first, last + 1):
                begin, end = self.offsets[self.documents[place] :][:2].tolist()
                if place == last:
                    end = begin + stop + 1
                if place == first:
                    begin += start
                spans.append((2 * begin, 2 * end))
        parts = asyncio.run_coroutine_threadsafe(self._read(spans), self.loop).result()
        tokens = np.frombuffer(b"".join(map(bytes, parts)), np.uint16)
        return tokens.reshape(len(positions), -1).astype(np.int64)

    async def _read(self, spans: list[tuple[int, int]]) -> list[Any]:
        from obstore import get_range_async as get

        return await asyncio.gather(
            *(get(self.store, "corpus.bin", start=start, end=end) for start, end in spans)
        )


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


def run_worker(name: str, place: str, settings: str) -> None:
    """Read batches for some seconds in this process and print its figures as JSON."""
    from zindex.datasets.run_datasets import open_run
    from zindex.store.chunk_cache import reader_statistics, set_chunk_cache
    from zindex.store.open import open_store

    folder, url = json.loads(place)
    codec, args = CONTENDERS.get(name, "none"), json.loads(settings)
    set_chunk_cache(int(args["cache"]))
    run = json.loads((Path(folder) / codec / RUN).read_text())
    begin = time.perf_counter()
    [dataset] = open_run(place_run(run, f"{url}/{codec}"), FakeTokenizer(vocab_size=VOCAB))["train"]
    dataset.config.create_attention_mask = False
    num_samples = len(dataset)
    if name == FLAT:
        corpus = open_store(f"{folder}/{codec}/corpus.zarr")
        dataset = FlatFile(dataset, corpus["sequence_offset"][:], f"{url}/{codec}")
        begin = time.perf_counter()
    batches = cycle(np.arange(num_samples // BATCH * BATCH).reshape(-1, BATCH))
    batch = dataset.__getitems__(next(batches).tolist())
    first = time.perf_counter() - begin
    reader_statistics(reset=True)
    busy = time.process_time()
    num_batches, elapsed = read_batches(dataset, args["ahead"], batches, args["seconds"])
    busy = time.process_time() - busy
    each = max(1, num_batches)
    figures = {
        "samples_per_second": num_batches * BATCH / elapsed,
        "first_batch_seconds": first,
        "num_batches": num_batches,
        "batch_cpu_ms": 1e3 * busy / each,
        "peak_nbytes": peak_nbytes(),
    }
    if name == FLAT:
        tokens = batch[:, :-1]
    else:
        tokens, counts = batch.tensors["tokens"].numpy(), reader_statistics()
        figures |= {
            "requests_per_batch": counts.num_requests / each,
            "batch_nbytes": counts.nbytes / each,
            "hits_per_batch": counts.num_hits / each,
            "misses_per_batch": counts.num_misses / each,
        }
    print(json.dumps(figures | {MADE: {"first batch": digest(tokens)}}))


def main() -> None:
    """Measure, print, and write the record."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--tokens", type=float, default=1e8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--ahead", type=int, default=8, help="batches read ahead")
    parser.add_argument("--cache", type=float, default=1 << 25, help="bytes of chunks kept")
    args = parser.parse_args()
    if args.worker:
        run_worker(*args.worker)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for codec in CONTENDERS.values():
            (Path(folder) / codec).mkdir()
            write_run(Path(folder) / codec, int(args.tokens), args.length, codec)
        with serve(Path(folder), args.latency) as url:
            settings = {name: getattr(args, name) for name in ("cache", "ahead", "seconds")}
            work = (json.dumps([folder, url]), json.dumps(settings))
            runs = take_turns(__spec__.name, [FLAT, *CONTENDERS], args.runs, *work)
    table = Table.of_runs(
        f"latency-{1e3 * args.latency:g}ms-{name_size(int(args.tokens))}",
        f"batches of {BATCH} samples of {args.length:,} tokens from a server "
        f"{1e3 * args.latency:g} ms away, {args.ahead} read ahead",
        runs,
        rival=FLAT,
        ratio_of="samples_per_second",
        notes=[
            f"{FLAT}: indices in memory, all ranges of a batch at once, int64 tokens and no more; "
            "zindex reads its indices from the server too, checks crc32c and makes all tensors"
        ],
    )
    for name in CONTENDERS if args.tokens >= 1e8 else ():
        table = table.with_bar(name, 0.8)
    show(table)
    Record.of("bench_remote", [table], args.folder).write(args.json)


if __name__ == "__main__":
    main()
