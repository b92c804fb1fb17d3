"""Merges that die at one system call after another, until one lives: ``TARGET SOURCE...``.

Each is a fork of this process, which imports once. Prints for each death what a reader sees.
"""

import json
import os
import signal
import sys

from tests.killing import death_before, kill_process
from zindex.errors import SourceError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_idx import read_index
from zindex.ingest.corpora import write_pair
from zindex.ingest.merge import merge

CALLS = [(os, name) for name in ("fsync", "replace", "unlink", "link")]


def main(target: str, *sources: str) -> None:
    write_pair.SPAN_TOKENS = 16
    number = 0
    while True:
        child = os.fork()
        if child == 0:
            try:
                with death_before(number, *CALLS, die=kill_process):
                    merge(sources, target, client=SerialExecutor())
                os._exit(0)
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
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
