"""Ranks that keep a cluster and wait in a collective operation until SIGTERM ends them.

``python -m tests.cluster.systems.terminated FOLDER``, on every rank of a job of two nodes. The
worker of the second node holds a result that rank 0 reads once the file ``read`` is there.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.cluster.systems.train import wait_for
from zindex.cluster import alongside


def make_once(path: Path) -> int:
    """Make a result, and count how often."""
    with path.open("a") as stream:
        stream.write("once\n")
    return 5


def train(folder: Path) -> None:
    """Be one rank of the job."""
    dist.init_process_group("gloo")
    # The ranks of each node wait for each other, as in the collective operations of training.
    size = int(os.environ["LOCAL_WORLD_SIZE"])
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), size)]
    with alongside(folder / "cluster", threads=1, nice=0) as cluster:
        job = cluster.job
        if cluster.client is not None:
            cluster.client.wait_for_workers(job.num_nodes, timeout=180)
            (other,) = (
                worker["name"]
                for worker in cluster.client.scheduler_info()["workers"].values()
                if not worker["name"].endswith("-0")
            )
            made = cluster.client.submit(make_once, folder / "made", workers=other)
            assert made.result() == 5
            (folder / "made").rename(folder / "held")
            wait_for(folder / "read")
            copied = cluster.client.submit(abs, made, pure=False)
            (folder / "copied").write_text(str(copied.result(timeout=60)))
        if job.local_rank == 0:
            dist.all_reduce(torch.ones(1), group=groups[job.rank // size])
        else:
            wait_for(folder / "never")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
