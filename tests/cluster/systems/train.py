"""A small ``train.py``: a cluster beside its ranks builds the blend that they read.

``python train.py --run RUN.yaml``, on every rank of a job. Each rank writes what it found to
``rank-N.json`` in the folder of the run.
"""

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

import zindex
from zindex.cluster import alongside


class Tokenizer:
    """Only what datasets ask of a tokenizer."""

    vocab_size, eod, pad = 1000, 0, -1
    unique_identifiers = {"class": "Tokenizer"}  # noqa: RUF012  (as Megatron's tokenizers have it)


def list_ports() -> set[int]:
    """Return the ports that this process listens at."""
    connections = psutil.Process().net_connections("tcp")
    return {item.laddr.port for item in connections if item.status == psutil.CONN_LISTEN}


def wait_for(path: Path) -> None:
    """Return once another process has written a file."""
    deadline = time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.02)


def stand_still_after(num_tasks: int, midway: Path) -> None:
    """Let the build stand still, for ever, before a task."""
    from zindex.execution.executor import DaskExecutor

    run = DaskExecutor.run
    left = iter(range(num_tasks))

    async def stand_still(self: Any, *args: Any, **settings: Any) -> Any:
        if next(left, None) is None:
            midway.touch()
            threading.Event().wait()
        return await run(self, *args, **settings)

    DaskExecutor.run = stand_still  # type: ignore[method-assign]


def train(arguments: argparse.Namespace) -> None:
    """Be one rank of the job."""
    ports = list_ports()
    arguments.folder = arguments.run.parent
    cluster_folder = os.environ.get("CLUSTER_FOLDER", arguments.cluster_folder)
    cluster_folder = cluster_folder or arguments.folder / "cluster"
    # On a busy machine, workers that take only what others leave may take none for minutes.
    folder = None if arguments.no_folder else cluster_folder
    with alongside(folder, threads=1, nice=0) as cluster:
        job = cluster.job
        if cluster.client is not None:
            start = os.environ.get("SLURM_RESTART_COUNT", "0")
            if arguments.stand_still_after and start == "0":
                stand_still_after(arguments.stand_still_after, arguments.folder / "midway")
            if arguments.num_workers:
                cluster.client.wait_for_workers(arguments.num_workers, timeout=180)
        building = cluster.begin_build(arguments.run)
        own_ports = list_ports() - ports
        if arguments.until is not None:
            (arguments.folder / f"ready-{job.rank}").touch()
            wait_for(arguments.until)

        dist.init_process_group("gloo", rank=job.rank, world_size=job.world_size)
        building.wait()
        # The ranks that do not build wait for the commits, and never load Dask.
        datasets = zindex.open_run(arguments.run, Tokenizer())
        batches = zindex.loader(arguments.run, Tokenizer(), micro_batch_size=2)
        tokens = next(iter(batches))["tokens"]
        fingerprints: list[Any] = [None] * job.world_size
        dist.all_gather_object(fingerprints, datasets["train"].fingerprint)  # type: ignore[union-attr]
        facts = {
            "job": [job.launcher, job.rank, job.world_size, job.local_rank, job.local_world_size],
            "fingerprints": fingerprints,
            "batch": hashlib.sha256(tokens.numpy().tobytes()).hexdigest(),
            "samples": len(datasets["train"]),
            "has_dask": "distributed" in sys.modules,
            "has_client": cluster.client is not None,
            "own_ports": sorted(own_ports),
        }
        (arguments.folder / f"rank-{job.rank}.json").write_text(json.dumps(facts))
        dist.barrier()
        dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--cluster-folder", type=Path, help="default: beside the run")
    parser.add_argument("--no-folder", action="store_true", help="meet by torch's own store")
    parser.add_argument("--until", type=Path, help="stay beside the cluster until this file")
    parser.add_argument("--stand-still-after", type=int, default=0, help="tasks of the first start")
    parser.add_argument("--num-workers", type=int, default=0, help="workers that must have come")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_arguments())
