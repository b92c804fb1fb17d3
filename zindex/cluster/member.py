"""Process of a scheduler or worker: ``python -m zindex.cluster.member ROLE``.

The node supervisor starts it, sends its settings as one line of JSON, and ends it.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask

from zindex.cluster.certificates import make_security
from zindex.cluster.isolation import lower_priority
from zindex.cluster.network import LOOPBACK, address_towards, is_loopback
from zindex.cluster.rendezvous import Rendezvous
from zindex.cluster.settings import RETIRE_SECONDS, dask_settings
from zindex.execution.executor import without_pages
from zindex.execution.worker_tasks import die_with

_CONNECT_SECONDS = 30
# Heartbeat interval in seconds.
_ALIVE_SECONDS = 1.0


async def run_scheduler(settings: dict[str, Any]) -> None:
    """Run a scheduler until it is closed, and publish its address."""
    from distributed import Scheduler

    rendezvous = Rendezvous(settings["rendezvous"])
    tls = rendezvous.tls_folder
    dashboard = settings["dashboard"]
    earlier = rendezvous.read()
    port = 0 if earlier is None else int(earlier["address"].rpartition(":")[2])
    kind: Any = Scheduler if dashboard is not None else without_pages(Scheduler)
    scheduler = kind(
        host=settings["scheduler_host"],
        port=port,
        protocol="tcp://" if tls is None else "tls://",
        security=make_security(tls),
        dashboard=dashboard is not None,
        dashboard_address=None if dashboard is None else f"{LOOPBACK}:{dashboard}",
    )
    async with scheduler:
        rendezvous.publish({"address": scheduler.address, "num_nodes": settings["num_nodes"]})
        print(f"scheduler at {scheduler.address}", flush=True)
        await scheduler.finished()


async def run_worker(settings: dict[str, Any]) -> None:
    """Run a worker until the scheduler closes it or is lost."""
    from distributed import Worker

    rendezvous = Rendezvous(settings["rendezvous"])
    facts = rendezvous.wait(settings["start_timeout"])
    peer = facts["address"].partition("://")[2].rpartition(":")[0].strip("[]")
    worker = without_pages(Worker)(
        facts["address"],
        nthreads=settings["threads"],
        memory_limit=settings["memory"],
        name=settings["name"],
        resources={"index": settings["threads"]},
        host=LOOPBACK if is_loopback(peer) else address_towards(peer),
        security=make_security(rendezvous.tls_folder),
        # The address may belong to an earlier cluster: after this timeout the process restarts and
        # reads it again.
        death_timeout=_CONNECT_SECONDS,
    )
    async with worker:
        print(f"worker {worker.name} at {worker.address}", flush=True)
        retiring: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: retiring.append(asyncio.create_task(retire(worker)))
        )
        await worker.finished()


async def retire(worker: Any) -> None:
    """Transfer the results of a worker to others and close it, before its node is released."""
    print(f"worker {worker.name} retires: results move, other workers take its tasks", flush=True)
    # The scheduler may end at the same time: heartbeats then fail. What matters is printed below.
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)
    end = time.monotonic() + RETIRE_SECONDS
    request = worker.scheduler.retire_workers(workers=[worker.address])
    try:
        if not await asyncio.wait_for(request, RETIRE_SECONDS):
            raise RuntimeError("no other worker can take them")
        waits = {"timeout": end - time.monotonic()}  # for running tasks
    except Exception as error:  # the scheduler may be gone, too
        print(f"results of worker {worker.name} are lost: {error!r}", flush=True)
        waits = {"timeout": 1.0, "executor_wait": False}
    # The scheduler sets the status of a worker that it cannot retire back to running. While the
    # worker closes, Dask would close it a second time, and could block both for their timeouts.
    worker.stream_handlers["worker-status-change"] = lambda **change: None
    await worker.close(**waits)


async def run_alive(role: Coroutine[Any, Any, None], file: Path) -> None:
    """Run a role, touching a heartbeat file for its supervisor."""

    async def touch() -> None:
        while True:
            file.touch()
            await asyncio.sleep(_ALIVE_SECONDS)

    touching = asyncio.create_task(touch())
    try:
        await role
    finally:
        touching.cancel()


def main() -> None:
    """Run the role named on the command line."""
    settings = json.loads(sys.stdin.readline())
    die_with(settings["supervisor"])
    if sys.argv[1] == "worker":
        lower_priority(settings["nice"], settings["groups"])
        with suppress(OSError):
            os.sched_setaffinity(0, settings["cpus"])
    dask.config.set(dask_settings() | {"temporary-directory": settings["scratch"]})
    # It logs a traceback for a message to a peer that has ended.
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    role = {"scheduler": run_scheduler, "worker": run_worker}[sys.argv[1]]
    # A worker retires only after it has started, through the scheduler, which the supervisor ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL if sys.argv[1] == "worker" else signal.SIG_IGN)
    try:
        asyncio.run(run_alive(role(settings), Path(settings["alive"])))
    except Exception as error:
        traceback.print_exc()
        # Dask raises a startup failure; the supervisor shows the last line, the root cause.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        sys.exit(f"{type(cause).__name__}: {cause}")


if __name__ == "__main__":
    main()
