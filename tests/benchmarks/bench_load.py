"""Batches through torch's DataLoader: a zindex store against Megatron Core, on the same data.

``python -m tests.benchmarks.bench_load --tokens 1e8 --seconds 2 --runs 3``

Contenders take turns, each in a process of its own: no loader workers, torch's own choice of
threads, page cache warm; batches of 32 samples of 4,096 tokens by a batch sampler, in the run's
shuffled order. Megatron Core's ``GPTDataset`` reads its ``.bin/.idx`` pair through its default
``collate_fn``, with its attention mask (its default) and without; ours reads the Zarr store made of
that pair. Documents have lognormal lengths of 800 tokens on average. The first batch of all is
compared.

``--datasets 1000`` also measures the first batch of a blend whose indices exist: seconds from the
start of the process, without the import of torch.
"""

import importlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.contenders import make_dataset, make_tokenizer
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, make_parser, take_turns
from zindex.errors import ConfigError
from zindex.io.system_calls import peak_nbytes
from zindex.kernels.warm import warm

MODULE = "tests.benchmarks.bench_load"
BATCH, MEAN_LENGTH = 32, 800
VOCAB = {"uint16": 50_000, "int32": 120_000}
MEGATRON, MEGATRON_PLAIN = "megatron-core, its defaults", "megatron-core, no attention mask"
#: Name -> package, whether there is an attention mask, and what is read.
CONTENDERS = {
    MEGATRON: ("megatron", True, "pair"),
    MEGATRON_PLAIN: ("megatron", False, "pair"),
    "zindex, attention mask": ("zindex", True, "store"),
    "zindex, no attention mask": ("zindex", False, "store"),
    "zindex, linked store, no attention mask": ("zindex", False, "linked"),
    "zindex, zstd store, no attention mask": ("zindex", False, "zstd"),
    "zindex, .bin/.idx pair, no attention mask": ("zindex", False, "pair"),
    "zindex, scalable, minimal, no attention mask": ("zindex", False, "store"),
}
#: How many times as fast as its rival each must be.
BARS = {"zindex, attention mask": 100, "zindex, no attention mask": 8}
FIRST_BATCH = "zindex, open_run"


@dataclass(frozen=True)
class Work:
    """What every contender reads."""

    num_tokens: int
    dtype: str = "uint16"
    #: Samples of a batch, and tokens of a sample.
    size: int = BATCH
    length: int = 4096
    #: Of each run, at least.
    seconds: float = 2.0
    #: Loader workers.
    num_workers: int = 0
    #: Whether the corpus has left the page cache: then one pass is read, no longer than `seconds`.
    cold: bool = False

    @property
    def title(self) -> str:
        """The work for people."""
        workers = f" with {self.num_workers} workers" if self.num_workers else ""
        place = "not in the page cache, shuffled" if self.cold else "in the page cache"
        return (
            f"batches of {self.size} samples of {self.length:,} tokens ({self.dtype}) through "
            f"torch's DataLoader{workers}, {self.num_tokens:,} tokens {place}"
        )


def write_data(folder: Path, dtype: str, num_tokens: int, kinds: Sequence[str]) -> dict[str, str]:
    """Write a pair, and stores of the same documents: one, a linked one, one of zstd chunks."""
    import zindex
    from zindex.execution.executor import SerialExecutor
    from zindex.formats.bin_writer import PairWriter
    from zindex.ingest.convert import TOKEN_GRID

    generator = np.random.default_rng(1)
    mean, sigma = np.log(MEAN_LENGTH) - 0.5, 1.0
    lengths = generator.lognormal(mean, sigma, num_tokens // MEAN_LENGTH).astype(np.int64) + 1
    prefix = str(folder / dtype)
    writer = PairWriter(f"{prefix}.bin", np.dtype(dtype).type)
    for part in np.array_split(lengths, max(1, len(lengths) // 10_000)):
        writer.append(generator.integers(1, VOCAB[dtype], part.sum()), part)
    writer.end_document()
    writer.finalize(f"{prefix}.idx")
    paths = {"pair": prefix}
    for kind in {*kinds} - {"pair"}:
        paths[kind] = f"{prefix}-{kind}.zarr"
        grid = replace(TOKEN_GRID, codec="zstd") if kind == "zstd" else None
        client = SerialExecutor()
        zindex.convert(prefix, paths[kind], client=client, link=kind == "linked", grid=grid)
    return paths


def make_loader(name: str, path: str, cache: str, work: Work) -> Any:
    """Return a DataLoader over one contender's dataset."""
    import torch

    package, has_mask, _ = CONTENDERS[name]
    settings: dict[str, Any] = {"random_seed": 1, "create_attention_mask": has_mask}
    if "minimal" in name:
        settings |= {"order": "scalable", "store": "minimal"}
    dataset = make_dataset(package, path, cache, work.length, **settings)
    collate = None
    if package == "zindex":
        from zindex.loading.collate import collate
    order = torch.utils.data.SequentialSampler(dataset)
    return torch.utils.data.DataLoader(
        dataset,
        batch_sampler=torch.utils.data.BatchSampler(order, work.size, drop_last=True),
        collate_fn=collate,
        num_workers=work.num_workers,
        # A cold pass counts the start of its workers; else they have read all before.
        persistent_workers=work.num_workers > 0 and not work.cold,
    )


def run(name: str, path: str, tiny: str, cache: str, work: Work) -> dict[str, Any]:
    """Read batches for some seconds; return the figures and the first batch's digest.

    ``tiny`` is a corpus that is read before a cold one, which must not be touched: a page that is
    mapped stays in the page cache.
    """
    package, has_mask, _ = CONTENDERS[name]
    first = None
    if package == "zindex":
        # A corpus that is read before a cold one is too short for all kernels. In tests, a process
        # may have all of them from another home folder, and none to keep in this one.
        with suppress(ConfigError):
            warm()
    loader = make_loader(name, path, cache, work)
    ready = make_loader(name, tiny, cache, replace(work, cold=False)) if work.cold else loader
    # Compiled, opened, and in the page cache; the second time chunks are read by another kernel
    # than at their first touch, when they are checked, and workers use other kernels.
    for _ in range(2):
        for number, batch in enumerate(ready):
            first = first or batch
            del batch
            if package == "megatron" and has_mask and number:
                break
    if work.cold:
        drop_pages(path)
        first = None
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < work.seconds:
        for batch in loader:
            first = first or batch
            count += 1
            if time.perf_counter() - start >= work.seconds:
                break
        if work.cold:
            break
    rate = count * work.size * work.length / (time.perf_counter() - start)
    assert first is not None
    arrays = [first[key].numpy() for key in ("tokens", "labels", "position_ids")]
    # The scalable order has other samples.
    made = {} if "minimal" in name else {"first batch": digest(*arrays)}
    return {"tokens_per_second": rate, "peak_nbytes": peak_nbytes(), MADE: made}


def drop_pages(path: str) -> None:
    """Drop the files of a corpus from the page cache."""
    place = Path(path)
    pair = [place.with_name(f"{place.name}{suffix}") for suffix in (".bin", ".idx")]
    for file in place.rglob("*") if place.is_dir() else pair:
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def write_blend(folder: Path, num_datasets: int) -> dict[str, Any]:
    """Write tiny stores, and build the run that blends them; return its description."""
    import zindex
    from zindex.execution.executor import SerialExecutor
    from zindex.formats.bin_writer import PairWriter

    names = []
    executor = SerialExecutor()
    for number in range(num_datasets):
        prefix = str(folder / f"d{number}")
        writer = PairWriter(f"{prefix}.bin", np.uint16)
        writer.append(np.arange(2000), np.full(20, 100))
        writer.end_document()
        writer.finalize(f"{prefix}.idx")
        zindex.convert(prefix, f"{prefix}.zarr", client=executor)
        names.append({"path": f"{prefix}.zarr", "weight": 1 + number % 7})
    config = {
        "datasets": names,
        "sequence_length": 64,
        "split": "100,0,0",
        "samples": {"train": 10 * num_datasets},
        "index": str(folder / "index"),
    }
    zindex.build(config, client=executor)
    return config


def first_batch(config: str) -> dict[str, float]:
    """Read the first batch of a run; return seconds since the process started, without torch."""
    started = _process_start()
    before, cpu_before = time.time(), time.process_time()
    importlib.import_module("torch")
    torch_seconds, torch_cpu = time.time() - before, time.process_time() - cpu_before
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

    from zindex.datasets.run_datasets import open_run
    from zindex.loading.collate import collate

    imported = time.time()
    described = json.loads(Path(config).read_text())
    dataset: Any = open_run(described, make_tokenizer())["train"]
    opened = time.time()
    sampler = BatchSampler(SequentialSampler(dataset), BATCH, drop_last=False)
    batch = next(iter(DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)))
    assert batch["tokens"].shape == (min(BATCH, len(dataset)), 64)
    done = time.time()
    return {
        "seconds": done - started - torch_seconds,
        "imports_seconds": imported - started - torch_seconds,
        "opening_seconds": opened - imported,
        "batch_seconds": done - opened,
        "torch_seconds": torch_seconds,
        "cpu_seconds": time.process_time() - torch_cpu,
        "peak_nbytes": peak_nbytes(),
    }


def _process_start() -> float:
    """Return when this process started, as ``time.time`` counts."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - (
        time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    )


def compare_loaders(
    folder: Path,
    paths: dict[str, str],
    names: Sequence[str],
    num_runs: int,
    work: Work,
    *,
    tiny: dict[str, str] | None = None,
    bare: bool = False,
) -> Table:
    """Return the table of loaders over the corpora of `write_data`.

    ``tiny`` are small ones, which cold work needs; ``bare`` is as of `take_turns`.
    """
    states = [f"{work.num_workers}-workers"] * bool(work.num_workers) + ["cold"] * work.cold
    arguments = (
        json.dumps([paths, tiny or paths]),
        folder / f"cache-{work.length}",
        json.dumps(asdict(work)),
    )
    return Table.of_runs(
        "-".join([work.dtype, name_size(work.num_tokens), *states]),
        work.title,
        take_turns(MODULE, names, num_runs, *arguments, bare=bare),
        rival={
            name: MEGATRON if CONTENDERS[name][1] else MEGATRON_PLAIN
            for name in names
            if CONTENDERS[name][0] == "zindex"
        },
        ratio_of="tokens_per_second",
        notes=[
            f"one process and {work.num_workers or 'no'} loader workers, torch's own number of "
            "threads"
            + "; megatron-core makes an attention mask for each sample by default"
            * (MEGATRON in names),
        ],
    )


def measure_first_batch(folder: Path, num_datasets: int, num_runs: int) -> Table:
    """Return the table of the first batch of a blend that exists."""
    (folder / "blend").mkdir()
    config = folder / "blend.json"
    config.write_text(json.dumps(write_blend(folder / "blend", num_datasets)))
    # As a user's first process does it: nothing is compiled before. One run takes two seconds.
    runs = take_turns(MODULE, [FIRST_BATCH], 3 * num_runs, config, folder, "", keep_kernels=False)
    table = Table.of_runs(
        f"first-batch-{num_datasets}",
        f"first batch of a blend of {num_datasets:,} datasets that exists, from process start",
        runs,
        notes=["seconds: all but the import of torch; cpu: of that, on a processor"],
    )
    if num_datasets == 1000:
        reached = table.rows[0].median("seconds") or 0.0
        verdict = "reached" if reached < 2 else "missed"
        table.notes.append(f"bar: under 2 s for 1,000 datasets; {verdict}, {reached:.2f} s")
    return table


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--tokens", type=float, default=1e8, help="0 leaves the loaders out")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--datasets", type=int, default=0, help="of a blend; 0 leaves it out")
    parser.add_argument("--dtypes", nargs="+", choices=VOCAB, default=list(VOCAB))
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME"
    )
    options = parser.parse_args()
    if options.worker:
        name, path, cache, described = options.worker
        if name == FIRST_BATCH:
            figures = first_batch(path)
        else:
            package, _, kind = CONTENDERS[name]
            work = Work(**json.loads(described))
            places = (each[kind] for each in json.loads(path))
            figures = run(name, *places, f"{cache}-{package}", work)
        print(json.dumps(figures))
        return
    tables = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for dtype in options.dtypes if options.tokens else ():
            work = Work(int(options.tokens), dtype, options.batch, options.length, options.seconds)
            kinds = [CONTENDERS[name][2] for name in options.contenders]
            paths = write_data(Path(folder), dtype, work.num_tokens, kinds)
            table = compare_loaders(Path(folder), paths, options.contenders, options.runs, work)
            for name, at_least in BARS.items() if work.num_tokens >= 1e8 else ():
                table = table.with_bar(name, at_least)
            tables.append(table)
            show(table)
        if options.datasets:
            tables.append(measure_first_batch(Path(folder), options.datasets, options.runs))
            show(tables[-1])
    Record.of("bench_load", tables, options.folder).write(options.json)


if __name__ == "__main__":
    main()
