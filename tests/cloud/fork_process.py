"""A process that reads a store, or does not, and then starts children that do.

``python -m tests.cloud.fork_process METHOD TOUCHED URL NUM_CHILDREN`` prints what each child got.
"""

import json
import multiprocessing
import sys
from typing import Any

import numpy as np

from zindex.store.open import open_store


def read(url: str) -> str:
    """Return the sum of an array, or the error, as a child sees it."""
    try:
        return str(int(np.asarray(open_store(url)["one"]).sum()))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def send(url: str, pipe: Any) -> None:
    pipe.send([read(url), read(url)])


def main(method: str, touched: str, url: str, num_children: int) -> None:
    if touched == "touched":
        print(json.dumps(read(url)), flush=True)
    context = multiprocessing.get_context(method)
    children = []
    for _ in range(num_children):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=send, args=(url, there))
        child.start()
        children.append((child, here))
    for child, pipe in children:
        print(json.dumps(pipe.recv()), flush=True)
        child.join()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
