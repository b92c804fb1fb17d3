"""The ranks of a job that packs global batches, each a process; they write what they got.

``python -m tests.samples.schedules.packing_process SETTINGS``, where SETTINGS is JSON: the sizes
``dp``, ``cp``, ``tp``, ``pp`` and ``vpp``, the scheduler, the folder for what each rank says, and
``theirs``, a checkout of Megatron-LM whose functions are called instead of ours, or None.
"""

import importlib
import json
import math
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.module_files import import_file
from tests.samples.schedules.rank_processes import (
    PATIENCE,
    digest,
    do_without_gpus,
    join_ranks,
    run_ranks,
)

NUM_STEPS, MULTIPLE = 2, 8
LIMIT = 256


def draw_samples(reader: int, settings: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """Return the samples that a data-parallel rank reads in all steps."""
    generator = np.random.default_rng(reader)
    samples = []
    for _ in range(NUM_STEPS * settings["num_samples"]):
        length = int(generator.integers(1, LIMIT // 2))
        padded = -(-length // MULTIPLE) * MULTIPLE
        tokens = torch.from_numpy(generator.integers(0, 1000, padded))
        samples.append(
            {
                "tokens": tokens,
                "labels": tokens + 1,
                "loss_mask": (torch.arange(padded) < length).float(),
                "position_ids": torch.arange(padded),
                "original_seq_len": torch.tensor([length]),
                "padded_seq_len": torch.tensor([padded]),
            }
        )
    return samples


def summarize(value: Any) -> Any:
    """Return tensors as JSON."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), digest(value)]
    if isinstance(value, dict):
        return {name: summarize(one) for name, one in sorted(value.items())}
    if hasattr(value, "cu_seqlens_q_padded"):
        names = ("cu_seqlens_q", "cu_seqlens_kv_padded", "max_seqlen_q")
        return [summarize(getattr(value, name)) for name in names]
    return value


def main(settings: dict[str, Any]) -> None:
    """Run all ranks."""
    module = find_module(settings["theirs"])
    sizes = [settings[name] for name in ("pp", "dp", "cp", "tp")]
    run_ranks(math.prod(sizes), lambda rank: run_rank(rank, sizes, settings, module))


def find_module(checkout: str | None) -> Any:
    """Return Megatron's module, made to work without GPUs, or ours."""
    if checkout is None:
        sys.modules["megatron"] = None  # type: ignore[assignment]  # importing it takes long
        return importlib.import_module("zindex.datasets.data_schedule")
    do_without_gpus()
    return import_schedules(checkout)


def import_schedules(checkout: str) -> Any:
    """Return the module of a checkout in place of the installed one."""
    package = "megatron.core.datasets"
    importlib.import_module(package)
    for name in ("data_schedule_utils", "data_schedule"):
        path = Path(checkout, *package.split("."), f"{name}.py")
        module = import_file(f"{package}.{name}", path)
    return module


def make_groups(rank: int, sizes: Sequence[int]) -> SimpleNamespace:
    """Return this rank's groups: ranks that differ in some of pp, dp, cp and tp."""
    places = list(product(*map(range, sizes)))
    found = {}
    for name, axes in {"pp": [0], "dp": [1], "cp": [2], "tp": [3], "dp_cp": [1, 2]}.items():
        fixed = [axis for axis in range(4) if axis not in axes]
        members: dict[tuple[int, ...], list[int]] = {}
        for number, place in enumerate(places):
            members.setdefault(tuple(place[axis] for axis in fixed), []).append(number)
        for numbers in members.values():
            group = dist.new_group(numbers, PATIENCE)
            if rank in numbers:
                found[name] = group
    return SimpleNamespace(**found)


def run_rank(rank: int, sizes: Sequence[int], settings: dict[str, Any], module: Any) -> None:
    """Join the others, and write down what this rank gets."""
    join_ranks(settings["folder"], rank, math.prod(sizes))
    groups, vpp = make_groups(rank, sizes), settings["vpp"]
    config = SimpleNamespace(
        max_seqlen_per_dp_cp_rank=LIMIT // sizes[2],
        virtual_pipeline_model_parallel_size=vpp,
        microbatch_group_size_per_vp_stage=sizes[0],
        sequence_packing_scheduler=settings["scheduler"],
    )
    stage, last = groups.pp.rank(), sizes[0] - 1
    is_source = groups.tp.rank() == 0 and stage in (0, last)
    reader: Any = iter(draw_samples(groups.dp.rank(), settings)) if is_source else None
    if vpp and groups.tp.rank() == 0:
        own = 0 if stage == 0 else -1
        readers: list[Any] = [None] * vpp
        readers[own] = reader
        reader = readers
    said = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        data, count, *sums = module.wrap_data_iterator(
            reader, config, settings["num_samples"], groups
        )
        seconds = time.perf_counter() - start
        batches = []
        for number, one in enumerate(data if vpp else [data]):
            for _ in range(count):
                if settings["takes_batches"]:
                    batches.append(
                        module.get_batch_on_this_rank_for_sequence_packing(
                            one, vpp, False, number if vpp else None, groups
                        )
                    )
                elif one is not None:
                    batches.append([next(one)])
        said.append([count, sums, [[summarize(value) for value in batch] for batch in batches]])
        if settings["times"]:
            said[-1] = seconds
    Path(settings["folder"], str(rank)).write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
