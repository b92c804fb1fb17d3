"""Spans of tokens by position: zindex, a memory map, zarr-python, and a copy of the same bytes.

``python -m tests.benchmarks.bench_read --tokens 1e8 --members 1000 --runs 3``

The same uint16 tokens in a token store (as the index of a run holds them, and with zstd) and in a
flat file, all of it in the page cache. Each contender is a process of its own that reads single
spans, batches of spans and all tokens; what they read is compared. All chunks have been checked
against their crc32c before, but in the first pass.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, digest, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes
from zindex.schema import TOKENS
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_store
from zindex.store.reader import forget_all_files
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.shard_files import store_all_shards

SAMPLE = 4097
BATCH, ROUND = 64, 32
PASS_NBYTES = 16 << 20
MAP, ZARR, ZINDEX, ZSTD = "memory map", "zarr-python", "zindex", "zindex, zstd"
COPY, MEMBERS = "memory copy", "members"
ONE_BY_ONE, IN_ROUNDS = "zindex, one at a time", "zindex, in rounds of 32"
_NUM_PASSES = 5

Read = Callable[[int, int], Any]


def write_store(folder: Path, tokens: Any, codec: Any) -> None:
    """Write a token store."""
    layout = ArrayLayout.plan(TOKENS, tokens.shape[0], tokens.dtype, ChunkGrid(codec=codec))
    plan = begin_store(StorePlan(folder, "tokens", {"token_dtype": "uint16"}, (layout,)))
    commit_store(plan, [result.receipt for result in store_all_shards(folder, layout, tokens)])


def median_seconds(function: Callable[[Any], Any], arguments: list[Any]) -> float:
    """Return the median seconds of a call with each of the arguments, after one that is not timed.

    The others are what a process does all day; the first one opens files.
    """
    function(arguments[0])
    return statistics.median(clock(partial(function, argument)) for argument in arguments)


def open_tokens(name: str, folder: Path) -> Any:
    """Return the tokens as one contender opens them."""
    if name == MAP:
        return np.memmap(folder / "tokens.bin", np.uint16, "r")
    if name == ZARR:
        import zarr

        return zarr.open_group(folder / "none", mode="r")[TOKENS.name]
    return open_store(folder / ("zstd" if name == ZSTD else "none"))[TOKENS.name]


def measure_spans(tokens: Any, num_spans: int) -> dict[str, Any]:
    """Return the figures of reads of one random span of a sample."""
    read: Read = tokens.read if isinstance(tokens, RowReader) else partial(_slice, tokens)
    rng = np.random.default_rng(1)
    starts = rng.integers(0, tokens.shape[0] - SAMPLE, num_spans).tolist()
    seconds = median_seconds(lambda start: read(start, start + SAMPLE), starts)
    made = digest(*(np.asarray(read(start, start + SAMPLE)) for start in starts[:10]))
    return {"span": {"span_us": 1e6 * seconds}, MADE: {"span": made}}


def _slice(tokens: Any, start: int, stop: int) -> np.ndarray:
    return np.array(tokens[start:stop])


def measure_batches(tokens: Any, num_batches: int) -> dict[str, Any]:
    """Return the figures of batches of samples, as int64 in one array: in one call where we can."""
    out = np.empty(BATCH * SAMPLE, np.int64)
    places = np.arange(BATCH) * SAMPLE
    rng = np.random.default_rng(2)
    draws = [rng.integers(0, tokens.shape[0] - SAMPLE, BATCH) for _ in range(num_batches)]

    def in_one_call(starts: np.ndarray) -> None:
        tokens.read_spans(starts, starts + SAMPLE, out, places)

    def in_a_loop(starts: np.ndarray) -> None:
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            out[place : place + SAMPLE] = tokens[start : start + SAMPLE]

    read = in_one_call if isinstance(tokens, RowReader) else in_a_loop
    rate = BATCH * SAMPLE / median_seconds(read, draws)
    read(draws[0])
    return {"batch": {"tokens_per_second": rate}, MADE: {"batch": digest(out)}}


def measure_ways(array: RowReader, num_batches: int) -> dict[str, dict[str, float]]:
    """Return the figures of other ways to read a batch of ours."""
    out = np.empty(BATCH * SAMPLE, np.int64)
    places = np.arange(BATCH) * SAMPLE
    rng = np.random.default_rng(2)
    copies = [open_store(array.root)[TOKENS.name] for _ in range(BATCH)]
    draws = [rng.integers(0, len(array) - SAMPLE, BATCH) for _ in range(num_batches)]

    def many_arrays(starts: np.ndarray) -> None:
        stops = starts + SAMPLE
        read_many(
            [
                Spans(copy, starts[i : i + 1], stops[i : i + 1], out, places[i : i + 1])
                for i, copy in enumerate(copies)
            ]
        )

    def one_by_one(starts: np.ndarray) -> None:
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            out[place : place + SAMPLE] = array.read(start, start + SAMPLE)

    return {
        f"zindex, {name}": {"tokens_per_second": BATCH * SAMPLE / median_seconds(read, draws)}
        for name, read in (("an array per span", many_arrays), ("one by one", one_by_one))
    }


def one_pass(tokens: Any, target: np.ndarray) -> None:
    """Put all tokens into an array, piece by piece."""
    for start in range(0, tokens.shape[0] - len(target) + 1, len(target)):
        if isinstance(tokens, RowReader):
            tokens.read(start, start + len(target), target)
        else:
            np.copyto(target, tokens[start : start + len(target)])


def run_reader(name: str, folder: Path, num_reads: int) -> dict[str, Any]:
    """Return one contender's figures by table and row, and what it read.

    Every pass puts its pieces into the same array of 16 MiB; the copy takes them from an array in
    memory, the others from the files' pages in the page cache.
    """
    tokens = open_tokens(name, folder)
    target = np.empty(min(PASS_NBYTES // 2, tokens.shape[0]), np.uint16)
    nbytes = tokens.shape[0] // len(target) * target.nbytes
    forget_all_files()
    first = clock(lambda: one_pass(tokens, target))
    few = 10 if name == ZARR else 1
    spans = measure_spans(tokens, 1000 * num_reads // few)
    batches = measure_batches(tokens, 100 * num_reads // few)
    made = spans.pop(MADE) | batches.pop(MADE)
    peak = {"peak_nbytes": peak_nbytes()}
    rows = {
        "span": {name: spans["span"] | peak},
        "batch": {name: batches["batch"] | peak},
        "pass": {},
    }
    if name == ZINDEX:
        rows["batch"] |= measure_ways(tokens, 100 * num_reads)
        rows["pass"]["zindex, first pass, verified"] = {"nbytes_per_second": nbytes / first}
    sources = {name: tokens}
    if name == ZINDEX:
        sources[COPY] = np.fromfile(folder / "tokens.bin", np.uint16)
    seconds: dict[str, list[float]] = {source: [] for source in sources}
    for _ in range(1 if name == ZARR else _NUM_PASSES):
        for source, array in sources.items():
            seconds[source].append(clock(partial(one_pass, array, target)))
    for source, each in seconds.items():
        # Nothing makes a copy faster than it is: the fastest says most on a shared machine.
        rows["pass"][source] = {"nbytes_per_second": nbytes / min(each)}
    return rows | {MADE: made}


def measure_members(folder: Path, num_reads: int) -> dict[str, Any]:
    """Return the figures of a span of one of many small stores, and of one in a round."""
    places = sorted(folder.glob("members/*"))
    arrays = [open_store(place)[TOKENS.name] for place in places]
    rng = np.random.default_rng(3)
    for array in arrays:
        array.read(0, 1)

    def read(number: int) -> None:
        arrays[number].read(number, number + SAMPLE)

    def read_round(number: int) -> None:
        numbers = (number + 7 * np.arange(ROUND)) % len(arrays)
        start, stop = np.array([5]), np.array([5 + SAMPLE])
        read_many([Spans(arrays[number], start, stop) for number in numbers.tolist()])

    numbers = rng.integers(0, len(arrays), 500 * num_reads).tolist()
    rows = {
        ONE_BY_ONE: {"span_us": 1e6 * median_seconds(read, numbers)},
        IN_ROUNDS: {"span_us": 1e6 * median_seconds(read_round, numbers) / ROUND},
    }
    return {"members": rows}


def prepare(folder: Path, num_tokens: int, num_members: int) -> None:
    """Write the flat file and the stores."""
    tokens = np.random.default_rng(0).integers(0, 50_000, num_tokens, np.uint16)
    tokens.tofile(folder / "tokens.bin")
    for codec in ("none", "zstd"):
        write_store(folder / codec, tokens, codec)
    (folder / "members").mkdir()
    write_store(folder / "member", np.arange(4 * SAMPLE, dtype=np.uint16), "none")
    for number in range(num_members):
        shutil.copytree(folder / "member", folder / "members" / str(number))


def make_tables(runs: list[dict[str, Any]], num_tokens: int, num_members: int) -> list[Table]:
    """Return the tables of the figures of all runs."""
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    for run in runs:
        for key, by_row in run.items():
            for row, figures in by_row.items():
                rows.setdefault(key, {}).setdefault(row, []).append(figures)
    size, corpus = name_size(num_tokens), f"of {num_tokens:,} uint16 tokens in the page cache"
    span = Table.of_runs(
        f"span-{size}",
        f"a random span of {SAMPLE:,} tokens {corpus}",
        rows["span"],
        rival=MAP,
        ratio_of="span_us",
        notes=["memory map: the span copied out of np.memmap; zarr-python with its defaults"],
    )
    batch = Table.of_runs(
        f"batch-{BATCH}-{size}",
        f"{BATCH} random spans of {SAMPLE:,} tokens {corpus}, as int64 in one array",
        rows["batch"],
        rival=MAP,
        ratio_of="tokens_per_second",
        notes=["memory map and zarr-python: a loop over the spans; zindex: one call of read_spans"],
    )
    whole = Table.of_runs(
        f"pass-{size}",
        f"a pass over {num_tokens:,} uint16 tokens in pieces of 16 MiB, from the page cache",
        rows["pass"],
        rival=COPY,
        ratio_of="nbytes_per_second",
        notes=[
            "the fastest pass of each process, in turns with a copy of the same bytes in memory"
        ],
    )
    members = Table.of_runs(
        f"members-{num_members}",
        f"a span of {SAMPLE:,} tokens of one of {num_members:,} stores",
        rows["members"],
        rival=ONE_BY_ONE,
        ratio_of="span_us",
    )
    if num_tokens >= 10**8:
        span, whole = span.with_bar(ZINDEX, 1 / 3), whole.with_bar(ZINDEX, 0.7)
    return [span, batch, whole, members]


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--tokens", type=float, default=1e8)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--reads", type=int, default=3, help="thousands of spans of each run")
    arguments = parser.parse_args()
    if arguments.worker:
        name, folder, num_reads = arguments.worker
        measure = measure_members if name == MEMBERS else partial(run_reader, name)
        print(json.dumps(measure(Path(folder), int(num_reads))))
        return
    num_tokens = int(arguments.tokens)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        prepare(Path(folder), num_tokens, arguments.members)
        names = (MAP, ZINDEX, ZSTD, ZARR, MEMBERS)
        runs = take_turns(__spec__.name, names, arguments.runs, folder, arguments.reads)
    tables = make_tables(
        [run for each in runs.values() for run in each], num_tokens, arguments.members
    )
    for table in tables:
        show(table)
    Record.of("bench_read", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
