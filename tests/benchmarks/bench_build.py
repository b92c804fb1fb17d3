"""Whole index builds: Megatron Core's rank-0 path against ``zindex.build``, on the same documents.

``python -m tests.benchmarks.bench_build --documents 1e7 1e8 --runs 3``

Every run is a process of its own, the contenders take turns, and each first builds a small index so
that compiling and importing are not timed. Megatron's time is that of its ``GPTDataset``
constructor with an empty cache: document index, sample index, shuffle index, ``numpy.save``.
Ours is ``zindex.build`` with an empty index folder: planning, embedded cluster, every shard with
checksums and fsync, commit. Peak memory is the whole process's, imports included.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.benchmarks.turns import make_parser, take_turns
from zindex.measuring.machine import peak_nbytes

SEQUENCE_LENGTH = 4096
CONTENDERS = ("megatron-core", "megatron order", "scalable order", "scalable, minimal")


def make_corpus(prefix: Path, num_documents: int) -> None:
    """Write an ``.idx`` of log-normal document lengths and a sparse ``.bin`` of the right size."""
    from zindex.formats.idx_writer import write_index

    rng = np.random.default_rng(num_documents)
    lengths = np.empty(num_documents, np.int32)
    for start in range(0, num_documents, 1 << 22):
        part = rng.lognormal(6.3, 1.2, min(1 << 22, num_documents - start))
        lengths[start : start + len(part)] = np.minimum(part, 100_000)
    bounds = np.arange(num_documents + 1, dtype=np.int64)
    write_index(f"{prefix}.idx", np.uint16, lengths, bounds, None)
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


def build_megatron(prefix: str, folder: str) -> None:
    """Build with Megatron Core what its rank 0 builds."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=SEQUENCE_LENGTH,
        blend=([prefix], None),
        split="100,0,0",
        path_to_cache=folder,
        tokenizer=SimpleNamespace(unique_identifiers={}, vocab_size=50_000, eod=0, pad=-1),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    low_level = IndexedDataset(prefix)
    indices = np.arange(len(low_level), dtype=np.int32)
    GPTDataset(low_level, prefix, indices, None, Split.train, config)


def build_zindex(source: str, folder: str, *, order: str, store: str) -> None:
    """Build the same with zindex."""
    import zindex

    zindex.build(
        {
            "datasets": [source],
            "sequence_length": SEQUENCE_LENGTH,
            "split": "100,0,0",
            "order": order,
            "store": store,
            "index": folder,
        }
    )


def contender(name: str, prefix: str, source: str) -> Callable[[str], None]:
    """Return the function that builds into a folder for one contender."""
    if name == "megatron-core":
        return lambda folder: build_megatron(prefix, folder)
    order = "megatron" if name.startswith("megatron") else "scalable"
    store = "minimal" if name.endswith("minimal") else "all"
    return lambda folder: build_zindex(source, folder, order=order, store=store)


def run_worker(name: str, prefix: str, tiny: str, suffix: str) -> None:
    """Build once in this process and print seconds and peak memory as JSON."""
    with tempfile.TemporaryDirectory(dir=Path(prefix).parent) as folder:
        contender(name, tiny, tiny + suffix)(folder)
    target = tempfile.mkdtemp(dir=Path(prefix).parent)
    start = time.perf_counter()
    contender(name, prefix, prefix + suffix)(target)
    seconds = time.perf_counter() - start
    nbytes = sum(path.stat().st_size for path in Path(target).rglob("*") if path.is_file())
    shutil.rmtree(target)
    figures = {"seconds": seconds, "peak_nbytes": peak_nbytes(), "written_nbytes": nbytes}
    print(json.dumps(figures))


def measure(num_documents: int, num_runs: int, folder: Path, suffix: str) -> dict[str, Any]:
    """Return the medians of every contender on one corpus."""
    import zindex

    prefix, tiny = folder / f"documents-{num_documents}", folder / "tiny"
    for path, size in ((prefix, num_documents), (tiny, min(2_000_000, num_documents))):
        make_corpus(path, size)
        if suffix:
            zindex.convert(path, f"{path}{suffix}", link=True)
    result = take_turns(__spec__.name, CONTENDERS, num_runs, prefix, tiny, suffix)
    os.unlink(f"{prefix}.bin")
    return result


def show(num_documents: int, result: dict[str, Any]) -> None:
    """Print one table."""
    rival = result["megatron-core"]
    print(f"\n{num_documents:,} documents, samples of {SEQUENCE_LENGTH} tokens")
    print(f"{'':20}{'seconds':>10}{'faster':>9}{'peak MiB':>10}{'share':>8}{'written MiB':>13}")
    for name, row in result.items():
        print(
            f"{name:20}{row['seconds']:10.2f}{rival['seconds'] / row['seconds']:8.1f}x"
            f"{row['peak_nbytes'] / 2**20:10.0f}{row['peak_nbytes'] / rival['peak_nbytes']:8.2f}"
            f"{row['written_nbytes'] / 2**20:13.0f}"
        )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--documents", nargs="+", type=float, default=[1e7, 1e8])
    parser.add_argument("--source", choices=("zarr", "idx"), default="zarr")
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    suffix = ".zarr" if arguments.source == "zarr" else ""
    results = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for size in map(int, arguments.documents):
            results[size] = measure(size, arguments.runs, Path(folder), suffix)
            show(size, results[size])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
