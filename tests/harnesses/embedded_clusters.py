"""Embedded clusters in one process: memory, descriptors and threads must not grow with them.

``python -m tests.harnesses.embedded_clusters --trials 300`` prints all three as the trials go on.
"""

import argparse
import gc
import os
import threading
import time

from zindex.execution.executor import embedded_client

_WARM_UP = 20


def measure() -> tuple[float, int, int]:
    """Return the resident memory in MB, open descriptors and threads of this process."""
    gc.collect()
    with open("/proc/self/statm") as stream:
        pages = int(stream.read().split()[1])
    nbytes = pages * os.sysconf("SC_PAGESIZE")
    return nbytes / 1e6, len(os.listdir("/proc/self/fd")), threading.active_count()


def main() -> None:
    """Start and end clusters; print what the process holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    trials, start = parser.parse_args().trials, time.perf_counter()
    for trial in range(trials + 1):
        if trial % max(1, trials // 10) == 0 or trial == _WARM_UP:
            held = "{:.1f} MB, {} descriptors, {} threads".format(*measure())
            print(f"{trial} clusters, {time.perf_counter() - start:.0f} s: {held}", flush=True)
        with embedded_client(1) as client:
            assert client.submit(sum, range(9), pure=False).result() == 36


if __name__ == "__main__":
    main()
