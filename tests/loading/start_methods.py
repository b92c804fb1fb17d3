"""Load a run by worker processes of every start method; run by test_start_methods.py.

    python start_methods.py run.yaml num_workers

Prints a line for each start method, before and after this process has read the run itself.
"""

import hashlib
import multiprocessing
import sys
from typing import Any

from tests.conftest import FakeTokenizer
from zindex.loading.loader import loader


def digest(batches: Any) -> str:
    """Return the SHA-256 of all tokens of an epoch."""
    tokens = hashlib.sha256()
    for batch in batches:
        tokens.update(batch["tokens"].numpy().tobytes())
    return tokens.hexdigest()


def main(run_file: str, num_workers: int) -> None:
    threads = loader(run_file, FakeTokenizer(), micro_batch_size=2, num_epochs=None)

    def load(parent: str, *methods: str) -> None:
        for method in methods:
            with loader(
                threads.dataset,
                micro_batch_size=2,
                num_workers=num_workers,
                multiprocessing_context=method,
            ) as workers:
                print(method, parent, digest(workers), flush=True)

    multiprocessing.get_context("forkserver").set_forkserver_preload(["zindex.loading.loader"])
    load("untouched", "fork", "forkserver")
    # After reads, kernels and threads of this process, some of which are still running.
    print("threads", digest(threads), flush=True)
    next(iter(threads))
    load("touched", "fork", "forkserver", "spawn")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
