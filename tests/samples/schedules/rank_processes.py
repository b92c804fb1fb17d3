"""The ranks of a job, each a process forked from this one, without GPUs."""

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

#: Time that a rank waits for another one, which may compile a kernel first on a busy machine.
PATIENCE = timedelta(seconds=150)

# Seconds after which each process ends, whatever happens.
_LIFETIME = 200


def run_ranks(num_ranks: int, run_rank: Callable[[int], object]) -> None:
    """Run all ranks, forked from this process: importing torch takes most of the time."""
    signal.alarm(_LIFETIME)
    ranks = []
    for rank in range(num_ranks):
        ranks.append(os.fork())
        if not ranks[-1]:
            signal.alarm(_LIFETIME)  # a fork does not inherit it
            run_rank(rank)
            os._exit(0)
    sys.exit(any(os.waitpid(process, 0)[1] for process in ranks))


def join_ranks(folder: str, rank: int, num_ranks: int) -> None:
    """Start the process group of all ranks, which find each other in a folder."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        timeout=PATIENCE,
        world_size=num_ranks,
        rank=rank,
    )


def do_without_gpus() -> None:
    """Let Megatron Core keep tensors on the CPU."""
    torch.Tensor.cuda = lambda self: self  # type: ignore[assignment, method-assign]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]


def digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]
