"""A Dask cluster of real processes that tests kill, stop and start again.

``python -m tests.cluster.dask_processes ROLE SETTINGS`` is one of the processes; it ends with the
pipe to the one that started it.
"""

import asyncio
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask

from tests.cloud.servers import free_port
from tests.forked import Forked
from zindex.cluster.settings import dask_settings
from zindex.errors import ConfigError
from zindex.execution.reconnecting_client import connect_client


@contextmanager
def local_processes(num_workers: int) -> Iterator[Any]:
    """Give a client of Dask's own cluster of worker processes of one thread each."""
    from distributed import Client, LocalCluster

    with (
        patch.dict(os.environ),  # which its nannies change
        LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


class DaskProcesses:
    """A scheduler and workers, each started again when it ends; a context manager.

    Parameters
    ----------
    folder
        Where logs and what workers spill go.
    num_workers
        Worker processes, of one thread each.
    settings
        Of Dask, beside those of builds.
    """

    def __init__(self, folder: Path, num_workers: int = 2, **settings: Any) -> None:
        self.folder = folder
        self.settings = settings
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.workers = [f"worker-{number}" for number in range(num_workers)]
        self.build: dict[str, Any] | None = None
        self.writes = folder / "writes"
        self._lock = threading.Lock()
        self._processes: dict[str, Forked] = {}
        self._down: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor")

    def __enter__(self) -> "DaskProcesses":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        for name in [*self._processes]:
            self._clear(name)

    def _supervise(self) -> None:
        while not self._ended.wait(0.05):
            with self._lock:
                rank = self._processes.get("rank")
                if rank is not None and rank.returncode not in (None, -signal.SIGKILL):
                    self._down.add("rank")  # done, or failed
                for name in ["scheduler", *self.workers, *(["rank"] if self.build else [])]:
                    process = self._processes.get(name)
                    is_there = process is not None and process.returncode is None
                    if not is_there and name not in self._down:
                        self._start(name)

    def _start(self, name: str) -> None:
        self._clear(name)
        facts = {
            "port": self.port,
            "name": name,
            "folder": str(self.folder),
            "writes": str(self.writes),
            "dask": self.settings,
            "build": self.build,
        }
        role = name.partition("-")[0]
        command = ["-m", "tests.cluster.dask_processes", role, json.dumps(facts)]
        self._processes[name] = Forked(*command)

    def _clear(self, name: str) -> None:
        """Forget a process, and end it if it is there."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.__exit__()

    def signal(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a process, and return its id."""
        with self._lock:
            process = self._processes[name]
            process.send_signal(number)
            return process.pid

    def take_down(self, name: str) -> None:
        """Kill a process that is not started again before `bring_up`."""
        with self._lock:
            self._down.add(name)
            if name in self._processes:
                self._processes[name].kill()
                self._processes[name].wait()

    def bring_up(self, name: str) -> None:
        """Let a process be started again."""
        with self._lock:
            self._down.discard(name)

    def start_build(self, config: dict[str, Any]) -> None:
        """Build a run in a process of its own, which is started again when it is killed."""
        with self._lock:
            self.build = config
            self._clear("rank")
            self._down.discard("rank")

    def poll_build(self) -> int | None:
        """Return how the build ended, or None while it runs."""
        with self._lock:
            return self._processes["rank"].returncode if "rank" in self._down else None

    def list_writes(self) -> list[dict[str, Any]]:
        """Return what workers have written, in order."""
        lines = self.writes.read_text().splitlines() if self.writes.exists() else []
        return [json.loads(line) for line in lines]

    def connect(self, **settings: Any) -> Any:
        """Return a client once all workers are there."""
        # Beside other tests a scheduler may take longer to start than Dask's own client waits, and
        # one that is being killed may still take the connection.
        deadline = time.monotonic() + 60
        while True:
            try:
                client = connect_client(self.address, timeout=60, **settings)
            except ConfigError:
                if time.monotonic() > deadline:
                    raise
                continue
            client.wait_for_workers(len(self.workers), timeout=60)
            return client


async def run_scheduler(facts: dict[str, Any]) -> None:
    from distributed import Scheduler

    kind: Any = without_pages(Scheduler)
    async with kind(host="127.0.0.1", port=facts["port"], dashboard=False) as scheduler:
        await scheduler.finished()


async def run_worker(facts: dict[str, Any]) -> None:
    from distributed import Worker

    kind: Any = without_pages(Worker)
    async with kind(
        f"tcp://127.0.0.1:{facts['port']}",
        nthreads=1,
        name=facts["name"],
        memory_limit=0,
        host="127.0.0.1",
        local_directory=facts["folder"],
        death_timeout=60,
    ) as worker:
        await worker.finished()


async def run_rank(facts: dict[str, Any]) -> None:
    import zindex

    address = f"tcp://127.0.0.1:{facts['port']}"
    await asyncio.to_thread(zindex.build, facts["build"], client=address)


def without_pages(node: Any) -> Any:
    return type(node.__name__, (node,), {"start_http_server": lambda *args, **kwargs: None})


def log_writes(path: str) -> None:
    """Append a line to a file whenever this process has computed a shard and writes it."""
    from zindex.io import files

    write_once = files.write_once

    def write_and_log(place: Any, *args: Any, **settings: Any) -> bool:
        is_new: bool = write_once(place, *args, **settings)
        line = json.dumps({"path": str(place), "time": time.time(), "is_new": is_new})
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
        return is_new

    files.write_once = write_and_log


def end_with_pipe() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    role, facts = sys.argv[1], json.loads(sys.argv[2])
    with open(f"{facts['folder']}/{facts['name']}.log", "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    threading.Thread(target=end_with_pipe, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    dask.config.set(dask_settings() | facts["dask"])
    if role == "worker":
        log_writes(facts["writes"])
    roles = {"scheduler": run_scheduler, "worker": run_worker, "rank": run_rank}
    asyncio.run(roles[role](facts))


if __name__ == "__main__":
    main()
