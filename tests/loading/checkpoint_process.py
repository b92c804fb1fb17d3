"""Save a loader by torch.distributed.checkpoint on two ranks, load it on three and on one.

    python checkpoint_process.py folder

Prints, for each of the two that go on, the samples of every step.
"""

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint

from tests.loading.datasets import Numbers
from zindex.loading.loader import loader


def work(folder: Path, rank: int, size: int) -> None:
    """Run one rank: the two that begin save after two steps, and others go on from there."""
    store = torch.distributed.FileStore(str(folder / f"store-{size}"), size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    batches = loader(Numbers(32), micro_batch_size=3, tail="exact")
    steps: list[Any] = []
    if size == 2:
        iterator = iter(batches)
        steps = [next(iterator)["sample"].tolist() for _ in range(2)]
        checkpoint.save({"loader": batches}, checkpoint_id=folder / "saved")
    else:
        checkpoint.load({"loader": batches}, checkpoint_id=folder / "saved")
        assert batches.consumed_samples == 12
        steps = [batch["sample"].tolist() for batch in batches]
    everyone: list[Any] = [None] * size
    torch.distributed.all_gather_object(everyone, steps)
    if rank == 0:
        together = zip(*everyone, strict=True)
        joined = [[sample for part in parts for sample in part] for parts in together]
        print(json.dumps(joined), flush=True)
    torch.distributed.destroy_process_group()


def main(folder: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for size in (2, 3, 1):
        ranks = [fork.Process(target=work, args=(folder, rank, size)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        assert all(process.exitcode == 0 for process in ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
