"""Builds that are killed at random moments, each followed by a reader and a second build.

Run as a process of its own: it compiles and imports once, and every build is a fork of it, so that
hundreds of deaths take a minute. Prints one JSON line per death.
"""

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import distributed  # noqa: F401  imported once here, not in every fork
import numpy as np

import zindex
from tests.killing import run_in_child
from tests.trees import shard_stamps
from zindex.config import RunConfig
from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.run_plan import plan_run
from zindex.store.open import open_store


def read(root: Path, golden: list[np.ndarray]) -> str:
    """Return what a reader sees: "absent", "not ready" or "exact"; anything else is an error."""
    try:
        store = open_store(root)
    except NotReadyError as error:
        return "not ready" if error.num_done == len(shard_stamps(root)) else f"wrong: {error}"
    except StoreNotFoundError:
        return "absent"
    for array, expected in zip(open_index_arrays(store), golden, strict=True):
        np.testing.assert_array_equal(np.asarray(array), expected)
    return "exact"


def kill_once(config: RunConfig, kill_after: float, golden: list[np.ndarray]) -> dict[str, Any]:
    """Kill one build, read, build again, and report."""
    (item,) = plan_run(config).indices
    root = item.plan.store_plan(config.index).root
    _, code = run_in_child(lambda: zindex.build(config), kill_after)
    seen = read(root, golden)
    before = shard_stamps(root)
    _, second = run_in_child(lambda: zindex.build(config))
    after = shard_stamps(root)
    return {
        "killed": code == -signal.SIGKILL,
        "seen": seen,
        "finished": len(before),
        "rewritten": sum(after[name] != stamp for name, stamp in before.items()),
        "second": second,
        "final": read(root, golden),
    }


def main(prefix: str, folder: str, num_kills: int) -> None:
    """Kill builds of both orders in turn."""
    rng = np.random.default_rng(2026)
    configs = []
    for order in ("megatron", "scalable"):
        settings = {
            "datasets": [prefix],
            "sequence_length": 16,
            "split": "100,0,0",
            "order": order,
            "index": f"{folder}/golden-{order}",
            "grid": {"chunk_length": 64, "shard_length": 128},
        }
        zindex.build(settings, client=SerialExecutor())  # compiles; starts no thread that stays
        config = RunConfig.from_json(settings)
        (item,) = plan_run(config).indices
        store = open_store(item.plan.store_plan(config.index).root)
        golden = [np.asarray(array) for array in open_index_arrays(store)]
        probe = RunConfig.from_json(settings | {"index": f"{folder}/probe-{order}"})
        seconds, code = run_in_child(partial(zindex.build, probe))
        assert code == 0
        configs.append((settings, golden, seconds))
    for kill in range(num_kills):
        settings, golden, seconds = configs[kill % 2]
        config = RunConfig.from_json(settings | {"index": f"{folder}/kill-{kill}"})
        report = kill_once(config, rng.uniform(0, 1.1 * seconds), golden)
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
