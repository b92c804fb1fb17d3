"""One rank of a run as a separate process: builds blended splits and prints the result.

``python -m tests.datasets.rank_process SETTINGS``, where SETTINGS is JSON: rank, num_ranks, the
init_method of the process group, the builder's configuration, and what goes wrong where. Without
rank and num_ranks it is run by torchrun, or has its variables. Lines of standard output are JSON.
"""

import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch.distributed as dist

from tests.datasets.configs import plain_config
from tests.killing import death_before
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.utils import Split
from zindex.errors import SourceError
from zindex.execution.executor import ThreadExecutor
from zindex.execution.rank_step import RankStep
from zindex.indexing import ensure
from zindex.store import commit

COLLECTIVES = (
    "barrier",
    "monitored_barrier",
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
)
#: What a rank does before which it may die: all ranks, those that wait, and the one that builds.
STEPS = {
    "begin": (RankStep, "__enter__"),
    "agree": (RankStep, "agree"),
    "look": (RankStep, "take_over"),
    "task": (ThreadExecutor, "run"),
    "commit": (commit, "_create_same"),
    "beat": (RankStep, "_send_builder"),
    "end": (RankStep, "_wait_for_all"),
}


def say(**facts: Any) -> None:
    sys.stdout.write(f"{json.dumps(facts)}\n")  # in one call: torchrun's ranks share a pipe
    sys.stdout.flush()


def refuse(*args: Any, **settings: Any) -> None:
    raise AssertionError("a collective was called")


def stop_midway(num_tasks: int) -> None:
    """Stop this process forever before a task."""
    run = ThreadExecutor.run
    left = iter(range(num_tasks))

    async def stand_still(self: Any, *args: Any, **settings: Any) -> Any:
        if next(left, None) is None:
            say(midway=True)
            threading.Event().wait()
        return await run(self, *args, **settings)

    ThreadExecutor.run = stand_still  # type: ignore[method-assign]


def slow_down(seconds: float) -> None:
    """Let every task of a build take longer."""
    run = ThreadExecutor.run

    async def run_slowly(self: Any, *args: Any, **settings: Any) -> Any:
        await asyncio.sleep(seconds)
        return await run(self, *args, **settings)

    ThreadExecutor.run = run_slowly  # type: ignore[method-assign]


def tell_take_over() -> None:
    """Say when this rank becomes the builder in place of another one."""
    take_over = RankStep.take_over

    def tell(self: RankStep) -> bool:
        is_builder = take_over(self)
        if is_builder:
            say(rank=self.rank, took_over=True)
        return is_builder

    RankStep.take_over = tell  # type: ignore[method-assign]


def open_directly(config: Any) -> list[Any]:
    """Return datasets that are made without a builder."""
    datasets = []
    for path in config.blend_per_split[0][0]:
        low_level = GPTDataset.build_low_level_dataset(path, config)
        indices = range(len(low_level))
        datasets.append(GPTDataset(low_level, path, indices, 40, Split.train, config))
    return datasets


class Damaged(GPTDataset):
    """A dataset whose data this process alone finds damaged."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        raise SourceError(f"{dataset_path}.idx must be whole, it is cut short; copy it again")


class Interrupted(GPTDataset):
    """A dataset for which this process alone has no memory."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        raise MemoryError("no memory")


def summarize(datasets: list[Any]) -> list[Any]:
    """Return lengths and digests of every sample of every split."""
    summary: list[Any] = []
    for dataset in datasets:
        if dataset is None:
            summary.append(None)
            continue
        digest = hashlib.sha256()
        for position in range(len(dataset)):
            item = dataset[position]
            digest.update(f"{item.get('dataset_id')} {item['tokens'].tolist()}".encode())
        summary.append([len(dataset), digest.hexdigest()[:16]])
    return summary


def wait_for_all(store: Any, word: str = "joined") -> None:
    """Let no rank go before all have joined the process group, which would fail."""
    store.add(word, 1)
    # The rank that serves the store ends only after it has seen all of them.
    with suppress(dist.DistNetworkError):
        while store.add(word, 0) < dist.get_world_size():
            time.sleep(0.01)


def main(settings: dict[str, Any]) -> None:
    if "rank" in settings:
        rank, num_ranks = settings["rank"], settings["num_ranks"]
        dist.init_process_group(
            "gloo", init_method=settings["init_method"], rank=rank, world_size=num_ranks
        )
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    wait_for_all(store)
    if (death := settings.get("death", {})).get("rank") == rank:
        wait_for_all(store, "gone on")  # the others ask no more, when the store stops
    else:
        with suppress(dist.DistNetworkError):
            store.add("gone on", 1)
    for name in COLLECTIVES:
        setattr(dist, name, refuse)
    RankStep.grace = settings.get("grace", RankStep.grace)
    ensure._LISTEN = 0.1
    if settings.get("stop_on") == rank:
        stop_midway(settings["stop_after"])
    cls = (
        {"damaged": Damaged, "memory": Interrupted}[settings["wrong"]]
        if (settings.get("wrong_on") == rank)
        else GPTDataset
    )
    cls.__name__ = "GPTDataset"
    divergent = settings["divergent"] if settings.get("divergent_on") == rank else {}
    config = plain_config(**settings["config"] | divergent)
    absent = settings.get("absent", [])
    slow_down(settings.get("task_seconds", 0))
    tell_take_over()
    if death.get("rank") == rank:
        die = partial(os.kill, os.getpid(), death["signal"])
        dying = ExitStack()  # never left
        dying.enter_context(death_before(death["number"], STEPS[death["step"]], die=die))
    say(rank=rank, joined=True)
    if settings.get("late_on") == rank:
        time.sleep(settings["late"])
    start = time.monotonic()
    try:
        if settings.get("direct"):
            datasets = open_directly(config)
        else:
            datasets = BlendedMegatronDatasetBuilder(
                cls, settings["sizes"], lambda: rank not in absent, config
            ).build()
    except Exception as error:
        said = {"kind": type(error).__name__, "error": str(error)}
    else:
        said = {"datasets": summarize(datasets)}
    if settings.get("timed"):
        said["seconds"] = time.monotonic() - start
    say(rank=rank, **said)
    # The end of a process group may wait for ranks that are gone.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
