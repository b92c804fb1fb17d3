"""Corpora whose making is killed before one of its writes, each followed by a second call.

Run as a process of its own: every call is a fork of it. Prints one JSON line per death.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.killing import death_before, exit_code, fork, kill_process
from tests.trees import all_files
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora import tokenize_corpus as module
from zindex.ingest.records import partitions, read_partitions
from zindex.io import files
from zindex.store.layout import ChunkGrid

#: Before which of its writes a call dies: of some hundred.
DEATHS = {"bin": (2, 9, 14, 16, 17, 18, 19), "zarr": (2, 9, 14, 19, 24)}


def call_in_child(folder: Path, target: Path, to: Any, deadly: int | None) -> tuple[int, int, int]:
    """Make a corpus in a fork; return its exit code, the partitions and how many it encoded."""
    read, write = os.pipe()

    def tokenize() -> None:
        seen = {"partitions": 0, "encoded": 0}
        partitions.PARTITION_NBYTES = 300
        read_partitions.BUFFER_NBYTES = 100
        _count(partitions, "read_partition", seen, "partitions")
        _count(read_partitions, "write_note", seen, "encoded")
        with death_before(deadly, (files, "write_once"), (os, "replace"), die=kill_process):
            module.tokenize_corpus(
                folder / "in",
                target,
                tokenizer=folder / "tokenizer",
                to=to,
                part_nbytes=250,
                client=SerialExecutor(),
                grid=ChunkGrid(64, 256),
            )
        os.write(write, json.dumps(seen).encode())

    child = fork(tokenize)
    os.close(write)
    with os.fdopen(read) as stream:
        said = json.loads(stream.read() or '{"partitions": 0, "encoded": 0}')
    return exit_code(child), said["partitions"], said["encoded"]


def _count(owner: Any, name: str, seen: dict[str, int], key: str) -> None:
    """Count the calls of a function."""
    function = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen[key] += 1
        return function(*args, **kwargs)

    setattr(owner, name, counted)


def main(folder: Path) -> None:
    """Kill calls before writes all over their work."""
    for to, deaths in DEATHS.items():
        golden = folder / f"golden-{to}"
        golden.mkdir()
        code, partitions, _ = call_in_child(folder, golden / "c", to, None)
        assert code == 0
        for deadly in deaths:
            place = folder / f"{to}-{deadly}"
            place.mkdir()
            code, _, _ = call_in_child(folder, place / "c", to, deadly)
            notes = len(list(place.rglob("_zindex/scratch/*[0-9].json")))
            spans = len(list(place.rglob("_zindex/scratch/*-span-*.json")))
            again, _, encoded = call_in_child(folder, place / "c", to, None)
            made, right = (all_files(each, unfinished=False) for each in (place, golden))
            report = {
                "to": to,
                "killed": code == -signal.SIGKILL,
                "same": again == 0 and made == right,
                "partitions": partitions,
                "left": partitions - (notes - spans),
                "encoded": encoded,
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
