"""Samples of keyed token stores, and the order in which ranks take them.

``python -m tests.benchmarks.bench_keyed --samples 8192 --runs 3``

The store has the three keys of instruction tuning in 64 folders of raw arrays. The rival does what
such datasets do everywhere: for each item it finds the segments of its span, takes slices of memory
maps, joins them by ``torch.cat`` where there are several, and makes the dtypes of training of them;
``default_collate`` stacks the items of a batch. All contenders give the same batches of windows, in
the same random order, from the page cache, in one thread; only the loader reads ahead, in several.
The sampler's rival is the list of ``torch.randperm`` that others keep on every rank.
"""

import json
import tempfile
import tracemalloc
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, digest, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

DTYPES = {"sequence": "int32", "loss_mask": "bool", "position_ids": "int32"}
OUTPUTS = {
    "input_ids": ("sequence", 0, "int64"),
    "target_ids": ("sequence", 1, "int64"),
    "loss_mask": ("loss_mask", 1, "bool"),
    "position_ids": ("position_ids", 0, "int64"),
}
ITEMS, STACKED = "slices and torch.cat, items", "slices and torch.cat, stacked"
BIN, ZARR, LOADER = "zindex, raw files", "zindex, Zarr", "zindex, raw files, keyed_loader"
MAPPED = "zindex, raw files, mapped_bin"
READERS = (ITEMS, STACKED, BIN, MAPPED, ZARR, LOADER)
LIST, KEYED, RANDPERM = "torch.randperm, list", "zindex, keyed", "zindex, astrai_randperm"
SAMPLERS = (LIST, KEYED, RANDPERM)
_NUM_SHARDS, _WINDOW = 64, 2048
_NUM_DRAWN = 100_000

Batches = Callable[[list[list[int]]], Iterator[Any]]


def write_store(folder: Path, num_samples: int) -> None:
    """Write windows of random tokens in 64 folders, and the same as Zarr."""
    from zindex.formats.keyed.bin_folder import write_bin_folder
    from zindex.ingest.keyed.convert_keyed import convert_keyed

    rng = np.random.default_rng(0)
    length = -(-num_samples * _WINDOW // _NUM_SHARDS) + 1
    for shard in range(_NUM_SHARDS):
        values = {
            "sequence": [rng.integers(0, 50_000, length, np.int32)],
            "loss_mask": [rng.integers(0, 2, length, np.uint8).astype(np.bool_)],
            "position_ids": [np.arange(length, dtype=np.int32) % 4096],
        }
        write_bin_folder(folder / "bin" / f"shard_{shard:04d}", values, dtypes=DTYPES)
    convert_keyed(folder / "bin", folder / "zarr")


class SlicedItems:
    """Windows by slices of memory maps, item by item."""

    def __init__(self, folder: Path) -> None:
        import torch

        self.segments: dict[str, list[torch.Tensor]] = {}
        for key, dtype in DTYPES.items():
            paths = sorted(folder.glob(f"shard_*/{key}.bin"))
            maps = [np.memmap(path, dtype, mode="c") for path in paths]
            self.segments[key] = [torch.from_numpy(values) for values in maps]
        self.ends = np.cumsum([len(values) for values in self.segments["sequence"]]).tolist()
        self.join = torch.cat
        self.dtypes = {"int64": torch.int64, "bool": torch.bool}

    def fetch(self, key: str, begin: int, end: int) -> Any:
        """Return a span of a key."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.ends, end)
        parts = []
        for number in range(first, last + 1):
            segment = self.segments[key][number]
            before = self.ends[number] - len(segment)
            parts.append(segment[max(0, begin - before) : end - before])
        return parts[0] if len(parts) == 1 else self.join(parts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        begin = index * _WINDOW
        return {
            name: self.fetch(key, begin + shift, begin + shift + _WINDOW).to(self.dtypes[dtype])
            for name, (key, shift, dtype) in OUTPUTS.items()
        }


def open_batches(name: str, folder: Path) -> Batches:
    """Return what gives batches as one contender does."""
    from torch.utils.data import default_collate

    from zindex.keyed import DatasetFactory
    from zindex.loading.reading import BatchReader, read_ahead

    if name in (BIN, MAPPED, ZARR, LOADER):
        path = folder / ("zarr" if name == ZARR else "bin")
        kind = "mapped_bin" if name == MAPPED else None
        dataset: Any = DatasetFactory.load("sft", path, _WINDOW, storage_type=kind)
        if name == LOADER:
            reader = BatchReader(dataset, dataset.collate)
            return lambda batches: read_ahead(reader, batches, 4)
        return lambda batches: (dataset.collate(dataset.__getitems__(batch)) for batch in batches)
    items = SlicedItems(folder / "bin")
    if name == ITEMS:
        return lambda batches: ([items[index] for index in batch] for batch in batches)
    return lambda batches: (default_collate([items[index] for index in batch]) for batch in batches)


def measure_reads(name: str, folder: Path, num_samples: int, size: int) -> dict[str, Any]:
    """Return the samples per second of a pass, after one that fills the page cache."""
    from torch.utils.data import default_collate

    read = open_batches(name, folder)
    order = np.random.default_rng(1).permutation(num_samples)[: num_samples // size * size]
    batches = order.reshape(-1, size).tolist()
    first = next(read(batches[:1]))
    if name == ITEMS:
        first = default_collate(first)
    made = {key: digest(first[key].numpy()) for key in OUTPUTS}
    for _ in read(batches):
        pass
    before = peak_nbytes()
    seconds = clock(lambda: [None for _ in read(batches)])
    return {
        MADE: made,
        "samples_per_second": order.size / seconds,
        "tokens_per_second": order.size * _WINDOW / seconds,
        "grown_nbytes": peak_nbytes() - before,
    }


def measure_sampler(name: str, num_samples: int) -> dict[str, Any]:
    """Return what it takes to begin an epoch and to draw indices from it."""
    import torch

    from zindex.keyed import ResumableDistributedSampler

    def begin() -> Iterator[int]:
        if name == LIST:
            generator = torch.Generator().manual_seed(42)
            return iter(torch.randperm(num_samples, generator=generator).tolist())
        order = "keyed" if name == KEYED else "astrai_randperm"
        size = range(num_samples)
        return iter(ResumableDistributedSampler(size, order=order, rank=0, num_ranks=1))

    next(begin())  # compiled and imported
    count = min(num_samples, _NUM_DRAWN)
    first_seconds = clock(lambda: next(begin()))
    drawn = begin()
    num_drawn = count - len([next(drawn)])
    draw_seconds = clock(lambda: sum(islice(drawn, num_drawn)))
    tracemalloc.start()
    held = begin()
    sum(islice(held, count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Tensors are no memory of Python's.
    tensor_nbytes = 0 if name == KEYED else 8 * num_samples
    return {
        "first_ms": 1e3 * first_seconds,
        "index_ns": 1e9 * draw_seconds / num_drawn,
        "order_nbytes": peak + tensor_nbytes,
    }


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=5)
    parser.add_argument("--samples", type=float, default=32_768, help="windows of the store")
    parser.add_argument("--drawn", type=float, nargs="+", default=[1e7], help="of the samplers")
    parser.add_argument("--batches", type=int, nargs="+", default=[32], help="windows of a batch")
    arguments = parser.parse_args()
    if arguments.worker:
        name, what, folder, count, size = arguments.worker
        if what == "reads":
            print(json.dumps(measure_reads(name, Path(folder), int(count), int(size))))
        else:
            print(json.dumps(measure_sampler(name, int(count))))
        return
    num_samples = int(arguments.samples)
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write_store(Path(folder), num_samples)
        for size in arguments.batches:
            what = ("reads", folder, num_samples, size)
            tables.append(
                Table.of_runs(
                    f"windows-batches-{size}",
                    f"batches of {size} windows of {_WINDOW:,} tokens, 3 keys in {_NUM_SHARDS} "
                    f"shards, {num_samples:,} windows in the page cache",
                    take_turns(__spec__.name, READERS, arguments.runs, *what),
                    rival=STACKED,
                    ratio_of="samples_per_second",
                    notes=[
                        f"{ITEMS!r} gives the items of a batch and no batch",
                        "Zarr checks the checksum of every chunk that it reads for the first time",
                    ],
                )
            )
    for size in map(int, arguments.drawn):
        # A list of a thousand million numbers is no rival but a fault.
        contenders = SAMPLERS if size <= 10**8 else (KEYED,)
        runs = take_turns(__spec__.name, contenders, arguments.runs, "draws", ".", size, 1)
        tables.append(
            Table.of_runs(
                f"sampler-{name_size(size)}",
                f"the order of {size:,} samples on one rank, and {min(size, _NUM_DRAWN):,} of it",
                runs,
                rival=LIST if LIST in contenders else None,
                ratio_of="first_ms",
            )
        )
    for table in tables:
        show(table)
    Record.of("bench_keyed", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
