"""Builds of a sentence mapping that are killed, again and again, each before one of its writes.

Run as a process of its own: every build is a fork of it. Prints the number of deaths.
"""

import signal
import sys
from functools import partial
from pathlib import Path

from tests.killing import death_before, kill_process, run_in_child
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing.ensure import build_store
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import plan_mapping
from zindex.ingest.length_source import open_source
from zindex.io import create_only
from zindex.store.layout import ChunkGrid


def build(prefix: str, folder: Path, writes: int | None) -> None:
    """Build a mapping with drawn targets; die before one write more than so many."""
    source = SentenceSource(open_source(prefix, require_bin=False))
    plan = plan_mapping(
        source,
        range(source.sentences.reader.num_documents),
        split="train",
        max_sequence_length=50,
        short_sequence_probability=0.3,
        seed=7,
        num_requested=90,
        grid=ChunkGrid(4, 8),
        partition_length=10,
    )
    with death_before(writes, (create_only, "publish"), die=kill_process):
        run_builds(build_store(plan, source, folder, SerialExecutor()))


def main(prefix: str, folder: Path) -> None:
    """Build once undisturbed, and once by many builds that each live a little longer."""
    build(prefix, folder / "whole", None)
    deaths = 0
    while True:
        _, code = run_in_child(partial(build, prefix, folder / "cut", deaths))
        if code != -signal.SIGKILL:
            break
        deaths += 1
    assert code == 0
    print(deaths)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
