"""The ranks of a run, each a process of its own: they share batches and say what they got.

``python -m tests.samples.schedules.schedule_process SETTINGS``, where SETTINGS is JSON: num_ranks,
context_size, max_length, whose wrapper it is, and the folder for what each rank says.
"""

import hashlib
import importlib
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

NUM_BATCHES = 3

# Seconds that a rank waits for another one, and after which each process ends, whatever happens.
_PATIENCE, _LIFETIME = 30, 60


def draw_batch(reader: int, number: int) -> list[dict[str, Any]]:
    """Return the packed samples that a data-parallel rank reads at a step."""
    generator = np.random.default_rng([reader, number])
    batch: list[dict[str, Any]] = []
    for _ in range(generator.integers(1, 4)):
        lengths = generator.integers(0, 17, generator.integers(1, 6))
        bounds = np.cumsum([0, *lengths])
        bounds[-1] = max(bounds[-1], 1)
        total = int(bounds[-1])
        tokens = torch.from_numpy(generator.integers(0, 1000, total))
        batch.append(
            {
                "tokens": tokens,
                "loss_mask": (tokens % 2).float(),
                "pairs": torch.stack([tokens, -tokens], dim=1).to(torch.int32),
                "cu_seqlens": torch.from_numpy(np.append(bounds, [total] * 2)).to(torch.int32),
                "max_seqlen": torch.tensor(17),
            }
        )
    return batch


def summarize(samples: dict[int, dict[str, torch.Tensor]]) -> list[Any]:
    """Return the sub-samples that a rank got as JSON."""
    return [
        [int(number), name, str(value.dtype), list(value.shape), digest(value)]
        for number, sample in sorted(samples.items())
        for name, value in sample.items()
    ]


def digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]


def main(settings: dict[str, Any]) -> None:
    """Run all ranks, forked from this process: importing torch takes most of the time."""
    wrapper = find_wrapper(theirs=settings["theirs"])
    signal.alarm(_LIFETIME)
    ranks = []
    for rank in range(settings["num_ranks"]):
        ranks.append(os.fork())
        if not ranks[-1]:
            signal.alarm(_LIFETIME)  # a fork does not inherit it
            run_rank(rank, settings, wrapper)
            os._exit(0)
    sys.exit(any(os.waitpid(process, 0)[1] for process in ranks))


def find_wrapper(*, theirs: bool) -> Any:
    """Return Megatron Core's class, made to work without GPUs, or ours."""
    if theirs:
        torch.Tensor.cuda = lambda self: self  # type: ignore[assignment, method-assign]
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
        return importlib.import_module(
            "megatron.core.datasets.data_schedule"
        ).HybridCPDataLoaderWrapper
    sys.modules["megatron"] = None  # type: ignore[assignment]  # importing it takes long
    return importlib.import_module("zindex.datasets.data_schedule").HybridCPDataLoaderWrapper


def run_rank(rank: int, settings: dict[str, Any], wrapper: Any) -> None:
    """Join the others, and write down what this rank gets."""
    num_ranks, context = settings["num_ranks"], settings["context_size"]
    patience = timedelta(seconds=_PATIENCE)
    meeting = f"file://{settings['folder']}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, timeout=patience, world_size=num_ranks, rank=rank
    )
    same_share = [
        dist.new_group(list(range(i, num_ranks, context)), patience) for i in range(context)
    ]
    alone = [dist.new_group([i], patience) for i in range(num_ranks)]
    groups = SimpleNamespace(dp_cp=dist.group.WORLD, dp=same_share[rank % context], tp=alone[rank])
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=settings["max_length"])
    batches = [draw_batch(rank // context, number) for number in range(NUM_BATCHES)]
    for sample in (sample for batch in batches for sample in batch):
        for name in settings["left_out"]:
            del sample[name]
    steps = [[summarize(got), ids] for got, ids in wrapper(iter(batches), config, groups)]
    Path(settings["folder"], str(rank)).write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
