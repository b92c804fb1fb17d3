"""Readers of the same samples by zindex and its peers, each in its own environment.

``python -m tests.benchmarks.peers.streams write|read CONTENDER PLACE SAMPLES WORKERS``

Standard library and numpy only, but for what a contender imports. Samples are bytes, nothing is
decoded; batches are lists, so nothing is stacked.
"""

import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.peers.measuring import list_versions

NUM_FILES, BATCH, BUFFER, SEED = 6, 32, 10_000, 7
#: Samples over which the entropy of their files is taken.
WINDOW = 256
_MEAN_NBYTES = 2000
#: Reads samples of a folder or URL, in so many workers, epoch after epoch.
Reader = Callable[[str, int], Iterator[list[bytes]]]


def make_samples(num_samples: int) -> Iterator[tuple[int, bytes]]:
    """Yield the file of each sample, and its bytes, which begin with the number of that file."""
    rng = np.random.default_rng(SEED)
    for number in range(NUM_FILES):
        for size in rng.integers(1, 2 * _MEAN_NBYTES, num_samples // NUM_FILES).tolist():
            yield number, bytes([number]) + rng.bytes(size)


def write_tar(folder: Path, num_samples: int) -> None:
    """Write one archive for each file."""
    with ExitStack() as stack:
        archives = [
            stack.enter_context(tarfile.open(folder / f"{number:03d}.tar", "w"))
            for number in range(NUM_FILES)
        ]
        for place, (number, content) in enumerate(make_samples(num_samples)):
            info = tarfile.TarInfo(f"{place:08d}.bin")
            info.size = len(content)
            archives[number].addfile(info, BytesIO(content))


def write_mds(folder: Path, num_samples: int) -> None:
    """Write shards of MosaicML Streaming, about one for each file."""
    from streaming import MDSWriter

    limit = num_samples // NUM_FILES * _MEAN_NBYTES
    with MDSWriter(out=str(folder), columns={"bin": "bytes"}, size_limit=limit) as writer:
        for _, content in make_samples(num_samples):
            writer.write({"bin": content})


def write_chunks(folder: Path, num_samples: int) -> None:
    """Write chunks of LitData, one for each file."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=num_samples // NUM_FILES)
    for place, (_, content) in enumerate(make_samples(num_samples)):
        writer[place] = {"bin": content}
    writer.done()
    writer.merge()


def write_energon(folder: Path, num_samples: int) -> None:
    """Write archives, and what Energon's ``prepare`` adds to them."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory

    write_tar(folder, num_samples)
    paths = [f"{number:03d}.tar" for number in range(NUM_FILES)]
    BaseWebdatasetFactory.prepare_dataset(
        EPath(str(folder)), paths, split_parts_ratio=[("train", 1.0)], workers=1
    )
    kind = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (folder / ".nv-meta" / "dataset.yaml").write_text(kind)


def list_archives(place: str) -> list[str]:
    """Return the archives of a folder or URL."""
    return [f"{place}/{number:03d}.tar" for number in range(NUM_FILES)]


def read_zindex(place: str, num_workers: int) -> Iterator[list[bytes]]:
    """Read archives with all that exact resuming needs."""
    from torch.utils.data import DataLoader

    from zindex.streaming import MergedDataset, MetaDistributedWebDataset, mixed_collate

    source: Any = MetaDistributedWebDataset(list_archives(place))
    source.name, source.percent = "only", 1.0
    dataset = MergedDataset([source], seed=SEED)
    loader = DataLoader(dataset, BATCH, num_workers=num_workers, collate_fn=mixed_collate)
    for batch in loader:
        yield [sample["bin"] for sample in batch]


def read_webdataset(place: str, num_workers: int) -> Iterator[list[bytes]]:
    """Read archives with webdataset's own shuffle, of shards and in a buffer."""
    from torch.utils.data import DataLoader
    from webdataset import WebDataset

    dataset = (
        WebDataset(list_archives(place), shardshuffle=NUM_FILES, seed=SEED).repeat().shuffle(BUFFER)
    )
    loader = DataLoader(dataset, BATCH, num_workers=num_workers, collate_fn=list)
    for batch in loader:
        yield [sample["bin"] for sample in batch]


def read_mds(place: str, num_workers: int) -> Iterator[list[bytes]]:
    """Read shards of MosaicML Streaming with its default shuffle."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=place, batch_size=BATCH, shuffle=True, shuffle_seed=SEED)
    loader = DataLoader(dataset, BATCH, num_workers=num_workers, collate_fn=list)
    while True:
        for batch in loader:
            yield [sample["bin"] for sample in batch]


def copy_bytes(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return samples of LitData, whose bytes may be views, which loader workers cannot send."""
    return [{"bin": bytes(sample["bin"])} for sample in samples]


def read_chunks(place: str, num_workers: int) -> Iterator[list[bytes]]:
    """Read chunks of LitData with its default shuffle."""
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(place, shuffle=True, seed=SEED)
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=copy_bytes
    )
    while True:
        for batch in loader:
            yield [sample["bin"] for sample in batch]


def read_energon(place: str, num_workers: int) -> Iterator[list[bytes]]:
    """Read archives with Energon, in slices of 100 samples and through a buffer."""
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
        stateless,
    )

    @stateless
    def keep(sample: Any) -> Any:
        return sample

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc, type-arg]
        decoder = None
        cookers = [Cooker(keep)]  # noqa: RUF012

        def batch(self, samples: Any) -> Any:
            return samples

    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    dataset = get_train_dataset(
        place,
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
    )
    for batch in get_loader(dataset):
        yield [sample["bin"] for sample in batch]


#: Contender -> its format, and its reader.
READERS: dict[str, tuple[str, Reader]] = {
    "zindex": ("tar", read_zindex),
    "webdataset": ("tar", read_webdataset),
    "MosaicML Streaming": ("mds", read_mds),
    "LitData": ("chunks", read_chunks),
    "Energon": ("energon", read_energon),
}
WRITERS: dict[str, Callable[[Path, int], None]] = {
    "tar": write_tar,
    "mds": write_mds,
    "chunks": write_chunks,
    "energon": write_energon,
}
_PACKAGES = ["torch", "webdataset", "mosaicml-streaming", "litdata", "megatron-energon"]


def find_entropy(labels: np.ndarray) -> float:
    """Return the mean entropy of labels in a window, in bits."""
    entropies = []
    for start in range(0, len(labels) - WINDOW + 1, WINDOW):
        shares = np.bincount(labels[start : start + WINDOW], minlength=NUM_FILES) / WINDOW
        shares = shares[shares > 0]
        entropies.append(-(shares * np.log2(shares)).sum())
    return float(np.mean(entropies))


def measure(name: str, place: str, num_samples: int, num_workers: int) -> dict[str, float]:
    """Read an epoch to warm up, then two more, whose speed is measured."""
    read = READERS[name][1]
    begin = time.perf_counter()
    batches = read(place, num_workers)
    labels: list[int] = []
    first = start = 0.0
    while len(labels) < 3 * num_samples:
        labels += [sample[0] for sample in next(batches)]
        if not first:
            first = time.perf_counter() - begin
        if not start and len(labels) >= num_samples:
            start, done = time.perf_counter(), len(labels)
    seconds = time.perf_counter() - start
    return {
        "samples_per_second": (len(labels) - done) / seconds,
        "first_batch_seconds": first,
        "entropy_bits": find_entropy(np.array(labels[:num_samples])),
    }


def main() -> None:
    """Write or read in this process; print the figures as JSON."""
    what, name, place, num_samples, num_workers = sys.argv[1:]
    if what == "write":
        folder = Path(place)
        folder.mkdir(parents=True)
        WRITERS[READERS[name][0]](folder, int(num_samples))
        print("{}", flush=True)
    else:
        figures = measure(name, place, int(num_samples), int(num_workers))
        print("\n" + json.dumps({"figures": figures, "versions": list_versions(_PACKAGES)}))
    sys.stdout.flush()
    os._exit(0)  # without waiting for the threads and processes of loaders that are left


if __name__ == "__main__":
    main()
