"""The ranks of a run, each a process of its own: they share batches and say what they got.

``python -m tests.samples.schedules.schedule_process SETTINGS``, where SETTINGS is JSON: num_ranks,
context_size, max_length, whose wrapper it is, and the folder for what each rank says.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.samples.schedules.rank_processes import (
    PATIENCE,
    digest,
    do_without_gpus,
    join_ranks,
    run_ranks,
)

NUM_BATCHES = 3


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


def main(settings: dict[str, Any]) -> None:
    """Run all ranks."""
    wrapper = find_wrapper(theirs=settings["theirs"])
    run_ranks(settings["num_ranks"], lambda rank: run_rank(rank, settings, wrapper))


def find_wrapper(*, theirs: bool) -> Any:
    """Return Megatron Core's class, made to work without GPUs, or ours."""
    if theirs:
        do_without_gpus()
        return importlib.import_module(
            "megatron.core.datasets.data_schedule"
        ).HybridCPDataLoaderWrapper
    sys.modules["megatron"] = None  # type: ignore[assignment]  # importing it takes long
    return importlib.import_module("zindex.datasets.data_schedule").HybridCPDataLoaderWrapper


def run_rank(rank: int, settings: dict[str, Any], wrapper: Any) -> None:
    """Join the others, and write down what this rank gets."""
    num_ranks, context = settings["num_ranks"], settings["context_size"]
    join_ranks(settings["folder"], rank, num_ranks)
    same_share = [
        dist.new_group(list(range(i, num_ranks, context)), PATIENCE) for i in range(context)
    ]
    alone = [dist.new_group([i], PATIENCE) for i in range(num_ranks)]
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
