"""Batches through torch's DataLoader: ours from a store against Megatron Core's, on the same data.

``python -m tests.benchmarks.bench_load --tokens 1e8 --seconds 5``

One process, no loader workers, torch's own choice of threads, page cache warm: batches of 32
samples of 4,096 tokens by a batch sampler, in the run's shuffled order. Megatron Core's
``GPTDataset`` reads its ``.bin/.idx`` pair through its default ``collate_fn``, with its attention
mask (its default) and without; ours reads the Zarr store made of that pair. Documents have
lognormal lengths of 800 tokens on average.

``--datasets 1000`` also measures the first batch of a blend whose indices exist: seconds from the
start of the process, without the import of torch.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

BATCH, MEAN_LENGTH = 32, 800
VOCAB = {"uint16": 50_000, "int32": 120_000}
#: Name -> package, whether there is an attention mask, and what is read.
CONTENDERS = {
    "megatron-core, defaults": ("megatron", True, "pair"),
    "megatron-core, no attention mask": ("megatron", False, "pair"),
    "zindex store, defaults": ("zindex", True, "store"),
    "zindex store, no attention mask": ("zindex", False, "store"),
    "zindex linked store, no attention mask": ("zindex", False, "linked"),
    "zindex pair, no attention mask": ("zindex", False, "pair"),
    "zindex store, scalable, minimal": ("zindex", False, "store"),
}
_ROUNDS = 3


class Tokenizer:
    """What datasets ask of a tokenizer; the tests' own one would load pytest."""

    vocab_size = 200_000
    eod = 0
    pad = -1
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict(name="none")


def write_data(folder: Path, dtype: str, num_tokens: int) -> dict[str, str]:
    """Write a pair, a store and a linked store of the same documents."""
    import zindex
    from zindex.building.executor import SerialExecutor
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
    """Read batches for some seconds, several times; return the best tokens per second."""
    loader = make_loader(name, path, cache, size, length)
    for number, _ in enumerate(loader):  # compiled, opened, and in the page cache
        if CONTENDERS[name][0] == "megatron" and CONTENDERS[name][1] and number:
            break
    best = 0.0
    for _ in range(_ROUNDS):
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds / _ROUNDS:
            for _ in loader:
                count += 1
                if time.perf_counter() - start >= seconds / _ROUNDS:
                    break
        spent = time.perf_counter() - start
        best = max(best, count * size * length / spent)
    return {"contender": name, "tokens_per_second": best}


def write_blend(folder: Path, num_datasets: int) -> dict[str, Any]:
    """Write tiny stores, and build the run that blends them; return its description."""
    import zindex
    from zindex.building.executor import SerialExecutor
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


def first_batch(config: str, started: float) -> dict[str, float]:
    """Read the first batch of a run; return seconds since the process started, without torch."""
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
        "torch": torch_seconds,
        "other imports": imported - started - torch_seconds,
        "opening": opened - imported,
        "first batch": done - opened,
        "all without torch": done - started - torch_seconds,
        "of it on a processor": time.process_time() - torch_cpu,
    }


@contextmanager
def work_folder(chosen: str | None) -> Iterator[Path]:
    """Give the folder that was chosen, or one that is removed afterwards."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
        yield Path(chosen)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    started = json.dumps(arguments | {"started": time.time()})
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_load"]
    done = subprocess.run(
        [*command, "--measure", started], check=True, stdout=subprocess.PIPE, text=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare_loaders(
    folder: Path,
    num_tokens: int,
    size: int,
    length: int,
    seconds: float,
    dtypes: list[str],
    contenders: list[str],
) -> list[dict[str, Any]]:
    """Measure contenders and print what they do."""
    results = []
    for dtype in dtypes:
        paths = write_data(folder, dtype, num_tokens)
        rates = {}
        for name in contenders:
            package, _, kind = CONTENDERS[name]
            arguments = {
                "name": name,
                "path": paths[kind],
                "cache": str(folder / f"cache-{package}"),
                "size": size,
                "length": length,
                "seconds": seconds,
            }
            result = measure(arguments) | {"dtype": dtype}
            rates[name] = result["tokens_per_second"]
            results.append(result)
            print(f"{dtype:7} {name:40} {rates[name] / 1e6:9.2f} M tokens/s")
        for kind, goal in (("defaults", 100), ("no attention mask", 8)):
            pair = [rates.get(f"{name}, {kind}", 0.0) for name in ("zindex store", "megatron-core")]
            if all(pair):
                print(f"{dtype:7} {kind}: {pair[0] / pair[1]:.1f}x (goal {goal}x)")
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=1e8)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--datasets", type=int, default=0, help="of a blend; 0 leaves it out")
    parser.add_argument("--dtypes", nargs="+", choices=VOCAB, default=list(VOCAB))
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME"
    )
    parser.add_argument("--folder", help="a folder to work in and to keep")
    parser.add_argument("--json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        arguments = json.loads(options.measure)
        started = arguments.pop("started")
        if "config" in arguments:
            print(json.dumps(first_batch(arguments["config"], started)))
        else:
            print(json.dumps(run(**arguments)))
        return
    results = []
    with work_folder(options.folder) as folder:
        if options.tokens:
            results += compare_loaders(
                folder,
                int(options.tokens),
                options.batch,
                options.length,
                options.seconds,
                options.dtypes,
                options.contenders,
            )
        if options.datasets:
            config = folder / f"blend-{options.datasets}.json"
            if not config.exists():
                (folder / "blend").mkdir()
                config.write_text(json.dumps(write_blend(folder / "blend", options.datasets)))
            for _ in range(_ROUNDS):
                figures = measure({"config": str(config)})
                results.append(figures)
                text = ", ".join(f"{name} {spent:.2f} s" for name, spent in figures.items())
                print(f"first batch of {options.datasets} datasets: {text}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
