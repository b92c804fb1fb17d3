"""Imports that are killed at random moments, each followed by a reader and a second import.

Run as a process of its own: it imports once, and every import is a fork of it. Prints one JSON line
per death. With the folder of a tokenizer as last argument, texts are tokenised on the way.
"""

import json
import signal
import sys
from pathlib import Path

import distributed  # noqa: F401  imported once here, not in every fork
import numpy as np

from tests.killing import run_in_child
from tests.trees import all_files, shard_stamps
from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.ingest.keyed.tokenize import tokenize
from zindex.ingest.records.import_records import import_records
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store


def import_in_child(
    source: str, root: Path, kill_after: float | None, tokenizer: str | None
) -> tuple[float, int]:
    """Import in a fork; return the seconds it lived and its exit code, -9 if it was killed."""

    def work() -> None:
        grid = ChunkGrid(256, 1024)
        if tokenizer is None:
            import_records(source, root, part_nbytes=3000, grid=grid)
        else:
            tokenize(source, root, "seq", tokenizer=tokenizer, part_nbytes=3000, grid=grid)

    return run_in_child(work, kill_after)


def seen(root: Path) -> str:
    """What a reader sees."""
    try:
        open_store(root)
    except NotReadyError:
        return "not ready"
    except StoreNotFoundError:
        return "absent"
    return "finished"


def main(source: str, folder: str, num_kills: int, tokenizer: str | None = None) -> None:
    """Kill imports at moments all over their lives."""
    rng = np.random.default_rng(2026)
    golden = Path(folder) / "golden"
    seconds, code = import_in_child(source, golden, None, tokenizer)
    assert code == 0
    for kill in range(num_kills):
        root = Path(folder) / f"kill-{kill}"
        _, code = import_in_child(source, root, rng.uniform(0.3, 1.05) * seconds, tokenizer)
        before = shard_stamps(root)
        report = {"killed": code == -signal.SIGKILL, "seen": seen(root), "finished": len(before)}
        _, report["second"] = import_in_child(source, root, None, tokenizer)
        after = shard_stamps(root)
        report["rewritten"] = sum(after[name] != stamp for name, stamp in before.items())
        made, right = (all_files(folder, unfinished=False) for folder in (root, golden))
        report["same"] = made == right
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
