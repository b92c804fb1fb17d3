"""Keyed datasets in worker processes: the same batches, and no copy of data in shared memory."""

import os
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.keyed.upstream_files import write_bin, write_h5
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.keyed import DatasetFactory
from zindex.keyed.base_dataset import BaseDataset

# torch warns of more workers than cores; nothing is timed here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

NUM_TOKENS, NUM_SHARDS = 1 << 20, 4
WINDOW = 1 << 15


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same eight MiB of tokens in each format."""
    root = tmp_path_factory.mktemp("workers")
    for shard in range(NUM_SHARDS):
        share = NUM_TOKENS // NUM_SHARDS
        tokens = np.arange(shard * share, (shard + 1) * share, dtype="int64")
        groups = {"sequence": [tokens], "loss_mask": [tokens % 2 == 1]}
        write_bin(root / "bin" / f"shard_{shard}", groups)
        write_h5(root / "h5" / f"data_{shard}.h5", groups)
    convert_keyed(root / "h5", root / "zarr", client=SerialExecutor())
    return {name: root / name for name in ("bin", "h5", "zarr")}


def shared_nbytes(process: int) -> int:
    """Return the bytes of shared memory that a process has mapped."""
    total = 0
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        segment = line.partition("/dev/shm/")[2]  # not a file of the test in a folder there
        if "/torch_" in line or (segment and "/" not in segment):
            start, stop = line.split()[0].split("-")
            total += int(stop, 16) - int(start, 16)
    return total


def read(dataset: Any, collate: Any, num_workers: int, method: str | None) -> tuple[list[Any], int]:
    """Return all batches, and the most shared memory that a worker had, without the batches'."""
    batches = DataLoader(
        dataset,
        batch_size=1,
        collate_fn=collate,
        num_workers=num_workers,
        multiprocessing_context=method,
        prefetch_factor=1 if num_workers else None,
    )
    found, most = [], 0
    iterator = iter(batches)
    for batch in iterator:
        found.append(batch)
        for worker in getattr(iterator, "_workers", ()):
            if worker.is_alive():
                most = max(most, shared_nbytes(worker.pid))
    return found, most


def check(dataset: BaseDataset, num_workers: int, method: str | None) -> None:
    expected = [dataset.collate([sample]) for sample in dataset]  # which ends
    assert len(expected) == len(dataset) == 31
    found, most = read(dataset, dataset.collate, num_workers, method)
    for batch, other in zip(found, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in batch)
    # A batch that was sent may be mapped still; the tokens of the store are much more.
    assert most <= 3 * WINDOW * 17 < NUM_TOKENS * 2


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (2, "fork"), (2, "forkserver")])
def test_d11_all_workers_give_the_same_batches(
    folders: dict[str, Path], num_workers: int, method: str | None
) -> None:
    check(DatasetFactory.load("sft", folders["bin"], WINDOW), num_workers, method)


@pytest.mark.parametrize("name", ["h5", "zarr"])
def test_d11_of_other_formats(folders: dict[str, Path], name: str) -> None:
    check(DatasetFactory.load("sft", folders[name], WINDOW), 1, "fork")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bin", "h5", "zarr"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_d11_restarted(folders: dict[str, Path], name: str, method: str) -> None:
    check(DatasetFactory.load("sft", folders[name], WINDOW), 1, method)


def test_fault_08_spawned_processes_get_descriptions_and_no_data(folders: dict[str, Path]) -> None:
    own = os.getpid()
    before = shared_nbytes(own)
    shared = torch.arange(NUM_TOKENS).share_memory_()
    assert shared_nbytes(own) >= before + shared.nbytes
    for name, folder in folders.items():
        dataset = DatasetFactory.load("sft", folder, WINDOW)
        dataset[0]  # maps what it needs, which must not travel
        before = shared_nbytes(own)
        assert len(ForkingPickler.dumps(dataset)) < 20_000, name
        assert shared_nbytes(own) == before
