"""Merges that die at one system call after another, until one lives: ``TARGET SOURCE...``.

Each is a fork of this process, which imports once. Prints for each death what a reader sees.
"""

import json
import os
import signal
import sys
from functools import partial

from tests.killing import death_before, exit_code, fork, kill_process
from zindex.errors import SourceError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_idx import read_index
from zindex.ingest.corpora import write_pair
from zindex.ingest.merge import merge

CALLS = [(os, name) for name in ("fsync", "replace", "unlink", "link")]


def merge_until(number: int, target: str, *sources: str) -> None:
    with death_before(number, *CALLS, die=kill_process):
        merge(sources, target, client=SerialExecutor())


def main(target: str, *sources: str) -> None:
    write_pair.SPAN_TOKENS = 16
    number = 0
    while True:
        code = exit_code(fork(partial(merge_until, number, target, *sources)))
        try:
            seen = str(read_index(target).num_tokens)
        except SourceError:
            seen = "nothing"
        print(json.dumps([code, seen]), flush=True)
        if code != -signal.SIGKILL:
            return
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
