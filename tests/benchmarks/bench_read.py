"""Spans of tokens by position: ours, a memory map, zarr-python, and a copy of the same bytes.

``python -m tests.benchmarks.bench_read --tokens 1e8 --members 1000``

One process, the same uint16 tokens in a token store (as the index of a run holds them, and with
zstd) and in a flat file, all of it in the page cache.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zindex.schema import TOKENS
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_store
from zindex.store.reader import RowReader, Spans, forget_all_files, read_many
from zindex.store.shard_files import store_all_shards

SAMPLE = 4097
BATCH = 32
PASS_NBYTES = 16 << 20


def write_store(folder: Path, tokens: Any, codec: Any) -> None:
    """Write a token store."""
    layout = ArrayLayout.plan(TOKENS, len(tokens), tokens.dtype, ChunkGrid(codec=codec))
    plan = begin_store(StorePlan(folder, "tokens", {"token_dtype": "uint16"}, (layout,)))
    commit_store(plan, [result.receipt for result in store_all_shards(folder, layout, tokens)])


def timed(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(read: Callable[[int], Any], starts: list[int]) -> float:
    """Return the median microseconds of a read at each of the starts."""
    read(starts[0])
    return 1e6 * statistics.median(timed(lambda start=start: read(start)) for start in starts)


def measure_spans(folder: Path, arrays: dict[str, RowReader], runs: int) -> dict[str, float]:
    """Return microseconds for one random span of a sample."""
    flat = np.memmap(folder / "tokens.bin", np.uint16, "r")
    slow = zarr.open_group(folder / "none", mode="r")[TOKENS.name]
    rng = np.random.default_rng(1)
    starts = rng.integers(0, len(flat) - SAMPLE, 1000 * runs).tolist()
    ways: dict[str, Any] = {
        "memory map, copied": lambda start: np.array(flat[start : start + SAMPLE]),
        "zindex": lambda start: arrays["none"].read(start, start + SAMPLE),
        "zindex, zstd": lambda start: arrays["zstd"].read(start, start + SAMPLE),
    }
    for array in arrays.values():
        array.read(0, len(array))  # verifies all
    result = {name: measure(read, starts) for name, read in ways.items()}
    result["zarr-python"] = measure(
        lambda start: slow[start : start + SAMPLE], starts[: 100 * runs]
    )
    return result


def measure_passes(tokens: Any, array: RowReader, runs: int) -> dict[str, float]:
    """Return GB/s of passes over all tokens in pieces of 16 MiB.

    Every pass puts its pieces into the same array of 16 MiB; the copy takes them from an array in
    memory, the others from the files' pages in the page cache.
    """
    piece = min(PASS_NBYTES // tokens.itemsize, len(tokens))
    target = np.empty(piece, tokens.dtype)
    bounds = [(i, i + piece) for i in range(0, len(tokens) - piece + 1, piece)]

    def copy() -> None:
        for start, stop in bounds:
            np.copyto(target, tokens[start:stop])

    def read() -> None:
        for start, stop in bounds:
            array.read(start, stop, target)

    forget_all_files()
    seconds = {"first pass, verified": timed(read)}
    copies, reads = [], []
    for _ in range(5 * runs):
        copies.append(timed(copy))
        reads.append(timed(read))
    # Nothing makes a copy faster than it is, so that the fastest says most on a shared machine.
    seconds["later pass"] = min(reads)
    seconds["memory copy"] = min(copies)
    nbytes = len(bounds) * target.nbytes
    return {name: nbytes / value / 1e9 for name, value in seconds.items()}


def measure_batches(arrays: dict[str, RowReader], runs: int) -> dict[str, float]:
    """Return million tokens per second of batches of samples, as int64 in one array."""
    array = arrays["none"]
    out = np.empty(BATCH * SAMPLE, np.int64)
    places = np.arange(BATCH) * SAMPLE
    rng = np.random.default_rng(2)
    copies = [open_store(array.root)[TOKENS.name] for _ in range(BATCH)]

    def draw() -> Any:
        return rng.integers(0, len(array) - SAMPLE, BATCH)

    def one_array(starts: Any) -> None:
        array.read_spans(starts, starts + SAMPLE, out, places)

    def many_arrays(starts: Any) -> None:
        stops = starts + SAMPLE
        read_many(
            [
                Spans(copy, starts[i : i + 1], stops[i : i + 1], out, places[i : i + 1])
                for i, copy in enumerate(copies)
            ]
        )

    def one_by_one(starts: Any) -> None:
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            out[place : place + SAMPLE] = array.read(start, start + SAMPLE)

    result = {}
    ways = {"one array": one_array, "32 arrays": many_arrays, "one by one": one_by_one}
    for name, read in ways.items():
        for _ in range(100):  # past the spans that are read without a kernel
            read(draw())
        draws = [draw() for _ in range(100 * runs)]
        times = [timed(lambda starts=starts, read=read: read(starts)) for starts in draws]
        result[name] = BATCH * SAMPLE / statistics.median(times) / 1e6
    return result


def measure_members(folder: Path, count: int, runs: int) -> dict[str, float]:
    """Return microseconds for a span of one of many small stores, and for one in a round."""
    tokens = np.arange(4 * SAMPLE, dtype=np.uint16)
    write_store(folder / "member", tokens, "none")
    arrays = []
    for number in range(count):
        shutil.copytree(folder / "member", folder / str(number))
        arrays.append(open_store(folder / str(number))[TOKENS.name])
    rng = np.random.default_rng(3)
    for array in arrays:
        array.read(0, 1)

    def read(number: int) -> None:
        arrays[number].read(number, number + SAMPLE)

    def read_round(number: int) -> None:
        numbers = (number + 7 * np.arange(BATCH)) % count
        start, stop = np.array([5]), np.array([5 + SAMPLE])
        read_many([Spans(arrays[number], start, stop) for number in numbers.tolist()])

    numbers = rng.integers(0, count, 500 * runs).tolist()
    return {
        "one": measure(read, numbers),
        "in a round of 32": measure(read_round, numbers) / BATCH,
    }


def print_table(title: str, rows: dict[str, float], base: str, *, faster: bool) -> None:
    """Print figures, and how many times as much time each takes as one of them."""
    print(title)
    for name, value in rows.items():
        ratio = rows[base] / value if faster else value / rows[base]
        print(f"  {name:24}{value:12.2f}{ratio:10.2f}x the time")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=float, default=1e8)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, int(arguments.tokens), np.uint16)
    result = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        tokens.tofile(folder / "tokens.bin")
        for codec in ("none", "zstd"):
            write_store(folder / codec, tokens, codec)
        arrays = {codec: open_store(folder / codec)[TOKENS.name] for codec in ("none", "zstd")}
        result["span"] = measure_spans(folder, arrays, arguments.runs)
        title = f"random span of {SAMPLE} tokens, us"
        print_table(title, result["span"], "memory map, copied", faster=False)
        result["pass"] = measure_passes(tokens, arrays["none"], arguments.runs)
        title = f"pass over {tokens.nbytes:,} bytes in pieces of {PASS_NBYTES:,}, GB/s"
        print_table(title, result["pass"], "memory copy", faster=True)
        result["batch"] = measure_batches(arrays, arguments.runs)
        title = f"batches of {BATCH} samples as int64, million tokens/s"
        print_table(title, result["batch"], "one array", faster=True)
        result["members"] = measure_members(folder, arguments.members, arguments.runs)
        title = f"a span of one of {arguments.members} stores, us"
        print_table(title, result["members"], "one", faster=False)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
