"""Many Dask workers in one process: ``python -m tests.benchmarks.stub_workers ADDRESS NUMBER``.

They hold tasks, send heartbeats and results as workers of nodes do, but do not monitor the system,
and compute in one thread for all of them.
"""

import asyncio
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import dask
from distributed import Worker

from zindex.cluster.settings import dask_settings
from zindex.execution.executor import without_pages

NUM_THREADS = 16


async def run(address: str, number: int) -> None:
    """Run workers until this process is terminated."""
    executor = ThreadPoolExecutor(1)
    make = without_pages(Worker)
    settings = {"nthreads": NUM_THREADS, "executor": {"default": executor}, "memory_limit": 0}
    workers = [make(address, **settings) for _ in range(number)]
    await asyncio.gather(*workers)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await asyncio.gather(*(worker.close(timeout=1, executor_wait=False) for worker in workers))


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # of connections that end with the scheduler
    # Each node reads its load twice a second, which takes a process all its time for 500 nodes.
    monitor = {"distributed.admin.system-monitor.interval": "60s"}
    dask.config.set(dask_settings() | monitor)
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
