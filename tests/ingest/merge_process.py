"""Merges that die at one system call after another, until one lives: ``TARGET SOURCE...``.

Each is a fork of this process, which imports once. Prints for each death what a reader sees.
"""

import json
import os
import signal
import sys
from typing import Any

from zindex.errors import SourceError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_idx import read_index
from zindex.ingest.corpora import write_pair
from zindex.ingest.merge import merge

CALLS = ("fsync", "replace", "unlink", "link")


def die_at(number: int) -> None:
    """Have this process killed by its own system call of a number, before it takes place."""
    left = number

    def watched(call: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for name in CALLS:
        setattr(os, name, watched(getattr(os, name)))


def main(target: str, *sources: str) -> None:
    write_pair.SPAN_TOKENS = 16
    number = 0
    while True:
        child = os.fork()
        if child == 0:
            die_at(number)
            try:
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
