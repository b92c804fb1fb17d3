"""Batches through torch's DataLoader: ours from a store against Megatron Core's, on the same data.

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

import argparse
import importlib
import json
import os
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, make_parser, take_turns
from zindex.inspection.bench.machine import peak_nbytes

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
    "zindex, .bin/.idx pair, no attention mask": ("zindex", False, "pair"),
    "zindex, scalable, minimal, no attention mask": ("zindex", False, "store"),
}
#: How many times as fast as its rival each must be.
BARS = {"zindex, attention mask": 100, "zindex, no attention mask": 8}
FIRST_BATCH = "zindex, open_run"


class Tokenizer:
    """What datasets ask of a tokenizer; the tests' own one would load pytest."""

    vocab_size = 200_000
    eod = 0
    pad = -1
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict(name="none")


def write_data(folder: Path, dtype: str, num_tokens: int) -> dict[str, str]:
    """Write a pair, a store and a linked store of the same documents."""
    import zindex
    from zindex.execution.executor import SerialExecutor
    from zindex.formats.bin_writer import PairWriter

    generator = np.random.default_rng(1)
    mean, sigma = np.log(MEAN_LENGTH) - 0.5, 1.0
    lengths = generator.lognormal(mean, sigma, num_tokens // MEAN_LENGTH).astype(np.int64) + 1
    prefix = str(folder / dtype)
    writer = PairWriter(f"{prefix}.bin", np.dtype(dtype).type)
    for part in np.array_split(lengths, max(1, len(lengths) // 10_000)):
        writer.append(generator.integers(1, VOCAB[dtype], part.sum()), part)
    writer.end_document()
    writer.finalize(f"{prefix}.idx")
    for kind in ("store", "linked"):
        executor = SerialExecutor()
        zindex.convert(prefix, f"{prefix}-{kind}.zarr", client=executor, link=kind == "linked")
    return {"pair": prefix, "store": f"{prefix}-store.zarr", "linked": f"{prefix}-linked.zarr"}


def make_loader(name: str, path: str, cache: str, size: int, length: int) -> Any:
    """Return a DataLoader over one contender's dataset."""
    import torch

    package, has_mask, _ = CONTENDERS[name]
    settings: dict[str, Any] = {}
    collate = None
    if package == "zindex":
        from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from zindex.datasets.utils import Split
        from zindex.loading.collate import collate

        if "minimal" in name:
            settings = {"order": "scalable", "store": "minimal"}
    else:
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.utils import Split
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=length,
        blend=([path], None),
        split="100,0,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=has_mask,
        path_to_cache=cache,
        tokenizer=Tokenizer(),
        **settings,
    )
    low_level = GPTDataset.build_low_level_dataset(path, config)
    documents = np.arange(len(low_level), dtype=np.int32)
    dataset = GPTDataset(low_level, path, documents, None, Split.train, config)
    order = torch.utils.data.SequentialSampler(dataset)
    batches = torch.utils.data.BatchSampler(order, size, drop_last=True)
    return torch.utils.data.DataLoader(dataset, batch_sampler=batches, collate_fn=collate)


def run(name: str, path: str, cache: str, size: int, length: int, seconds: float) -> dict[str, Any]:
    """Read batches for some seconds; return the figures and the first batch's digest."""
    loader = make_loader(name, path, cache, size, length)
    package, has_mask, _ = CONTENDERS[name]
    made = {}
    for number, batch in enumerate(loader):  # compiled, opened, and in the page cache
        if not number and "minimal" not in name:  # the scalable order has other samples
            arrays = [batch[key].numpy() for key in ("tokens", "labels", "position_ids")]
            made["first batch"] = digest(*arrays)
        del batch
        if package == "megatron" and has_mask and number:
            break
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in loader:
            count += 1
            if time.perf_counter() - start >= seconds:
                break
    rate = count * size * length / (time.perf_counter() - start)
    return {"tokens_per_second": rate, "peak_nbytes": peak_nbytes(), MADE: made}


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
    dataset: Any = open_run(described, Tokenizer())["train"]
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


def compare_loaders(folder: Path, options: argparse.Namespace, dtype: str) -> Table:
    """Return the table of the loaders over tokens of one dtype."""
    paths = write_data(folder, dtype, int(options.tokens))
    work = (json.dumps(paths), folder / "cache", options.batch, options.length, options.seconds)
    names = options.contenders
    table = Table.of_runs(
        f"{dtype}-{name_size(int(options.tokens))}",
        f"batches of {options.batch} samples of {options.length:,} tokens ({dtype}) through "
        f"torch's DataLoader, {int(options.tokens):,} tokens in the page cache",
        take_turns(__spec__.name, names, options.runs, *work),
        rival={
            name: MEGATRON if CONTENDERS[name][1] else MEGATRON_PLAIN
            for name in names
            if CONTENDERS[name][0] == "zindex"
        },
        ratio_of="tokens_per_second",
        notes=[
            "one process without loader workers, torch's own number of threads; megatron-core "
            "makes an attention mask for each sample by default",
        ],
    )
    if options.tokens >= 1e8:
        for name, at_least in BARS.items():
            table = table.with_bar(name, at_least)
    return table


def measure_first_batch(folder: Path, num_datasets: int, num_runs: int) -> Table:
    """Return the table of the first batch of a blend that exists."""
    (folder / "blend").mkdir()
    config = folder / "blend.json"
    config.write_text(json.dumps(write_blend(folder / "blend", num_datasets)))
    work = (config, folder, 0, 0, 0)
    # As a user's first process does it: nothing is compiled before. One run takes two seconds.
    runs = take_turns(__spec__.name, [FIRST_BATCH], 3 * num_runs, *work, keep_kernels=False)
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
    parser = make_parser(__doc__, num_worker_arguments=6)
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
        name, path, cache, size, length, seconds = options.worker
        if name == FIRST_BATCH:
            figures = first_batch(path)
        else:
            package, _, kind = CONTENDERS[name]
            place, cache = json.loads(path)[kind], f"{cache}-{package}"
            figures = run(name, place, cache, int(size), int(length), float(seconds))
        print(json.dumps(figures))
        return
    tables = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for dtype in options.dtypes if options.tokens else ():
            tables.append(compare_loaders(Path(folder), options, dtype))
            show(tables[-1])
        if options.datasets:
            tables.append(measure_first_batch(Path(folder), options.datasets, options.runs))
            show(tables[-1])
    Record.of("bench_load", tables, options.folder).write(options.json)


if __name__ == "__main__":
    main()
