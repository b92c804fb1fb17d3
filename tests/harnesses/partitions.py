"""Workers whose network is cut off and healed while a run is built: the index is the same.

``unshare --net python -m tests.harnesses.partitions --trials 50 --seed 0``, as root, with iproute2.

The machine's own network is left alone. Each worker is in a network namespace of its own, behind a
virtual cable to that of the scheduler. Trials cut one cable or
both, for moments or for longer than the scheduler waits for a silent worker, and heal them.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np

import zindex
from tests.harnesses.running import report, run_trials
from tests.trees import all_files
from zindex.cluster.settings import dask_settings
from zindex.execution.executor import SerialExecutor
from zindex.execution.reconnecting_client import connect_client
from zindex.formats.bin_writer import PairWriter

NUM_WORKERS = 2
#: Seconds that the scheduler waits for a silent worker; less than in production.
_TTL = 3.0
#: Seconds of a trial, at most: a worker is lost, its successor starts, and the build ends.
SECONDS = 120.0
_ROUTES = "10.231.77"
#: A worker in the network namespace that its first argument names.
_WORKER = """
import ctypes, sys
from distributed.cli.dask_worker import main
with open(f"/run/netns/{sys.argv.pop(1)}") as network:
    assert ctypes.CDLL(None).setns(network.fileno(), 0) == 0
main()
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A bridge in this network namespace, and one for each worker; a context manager."""

    def __init__(self) -> None:
        self.bridge = f"zp{os.getpid()}"
        self.names = [f"{self.bridge}-{number}" for number in range(NUM_WORKERS)]
        self.address = f"{_ROUTES}.1"

    def __enter__(self) -> "Network":
        _ip("link", "set", "lo", "up")
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            inner = f"{name}i"
            _ip("netns", "add", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", inner, "netns", name)
            _ip("link", "set", name, "master", self.bridge, "up")
            for words in (
                ["addr", "add", f"{_ROUTES}.{10 + number}/24", "dev", inner],
                ["link", "set", inner, "up"],
                ["link", "set", "lo", "up"],
            ):
                _ip("-n", name, *words)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            _ip("netns", "del", name)
        _ip("link", "del", self.bridge)

    def switch(self, number: int, state: str) -> None:
        """Cut the cable of a worker (``down``), or heal it (``up``)."""
        _ip("link", "set", self.names[number], state)


class Workers:
    """A worker in each namespace, started again when it ends; a context manager."""

    def __init__(self, network: Network, address: str, folder: str) -> None:
        self.network, self.address, self.folder = network, address, folder
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * NUM_WORKERS
        self.num_starts = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._keep)

    def __enter__(self) -> "Workers":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        for process in self.processes:
            if process is not None:
                process.kill()
                process.wait()

    def _keep(self) -> None:
        """Start each worker, and its successors as the supervisor of a node does."""
        while not self.ended.wait(0.1):
            for number, process in enumerate(self.processes):
                if process is None or process.poll() is not None:
                    self.processes[number] = self._start(number)
                    self.num_starts += 1

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _WORKER, self.network.names[number], self.address]
        command += ["--no-nanny", "--nthreads", "1", "--no-dashboard"]
        command += ["--local-directory", self.folder, "--death-timeout", "10"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=quiet, stderr=quiet)


class Partitions:
    """A cluster over several networks, and a run that it builds again and again.

    Parameters
    ----------
    folder
        For corpora and indices.
    client, network
        Of the cluster.
    """

    def __init__(self, folder: Path, client: Any, network: Network) -> None:
        self.folder, self.client, self.network = folder, client, network
        self.is_cut = threading.Event()
        names = []
        for number in range(3):
            prefix = folder / f"corpus-{number}"
            lengths = [3 + i * (number + 1) % 29 for i in range(1200)]
            writer = PairWriter(f"{prefix}.bin", np.int32)
            writer.append(np.arange(sum(lengths)), lengths)
            writer.append_document_ends(np.arange(1, len(lengths) + 1))
            writer.finalize(f"{prefix}.idx")
            zindex.convert(str(prefix), f"{prefix}.zarr", client=SerialExecutor())
            names.append({"path": f"{prefix}.zarr", "weight": number + 1.0})
        self.settings: dict[str, Any] = {
            "datasets": names,
            "sequence_length": 16,
            "split": "100,0,0",
            "samples": {"train": 3600},
            "grid": {"chunk_length": 128, "shard_length": 128},
        }
        self.expected: dict[str, dict[str, bytes]] = {}
        for order in ("megatron", "scalable"):
            index = folder / order
            zindex.build(self._config(order, index), client=SerialExecutor())
            self.expected[order] = all_files(index)

    def _config(self, order: str, index: Path) -> dict[str, Any]:
        return self.settings | {"order": order, "index": str(index)}

    def trial(self, rng: random.Random) -> str:
        """Build a run while cables are cut and healed; it must be what one process builds."""
        self.client.wait_for_workers(NUM_WORKERS, timeout=SECONDS)
        order = rng.choice([*self.expected])
        cut = rng.sample(range(NUM_WORKERS), rng.choice((1, 1, NUM_WORKERS)))
        seconds = rng.choice((0.2, 1.0, 2 * _TTL)) * rng.uniform(0.5, 1.5)
        delay = rng.uniform(-0.2, 0.5)  # of some the cable is cut before the build begins
        cutter = threading.Thread(target=self._cut, args=[cut, max(0.0, delay), seconds])
        with tempfile.TemporaryDirectory(dir=self.folder) as index:
            cutter.start()
            try:
                zindex.build(self._config(order, Path(index)), client=self.client)
                is_hit = self.is_cut.is_set()
            finally:
                cutter.join()
            found = all_files(Path(index), unfinished=False)
        assert found == self.expected[order], sorted(set(found) ^ set(self.expected[order]))
        if not is_hit:
            return "over before the cut"
        return f"{'long' if seconds > _TTL else 'short'}, {len(cut)} cut"

    def _cut(self, numbers: list[int], delay: float, seconds: float) -> None:
        self.is_cut.clear()
        time.sleep(delay)
        self.is_cut.set()
        for number in numbers:
            self.network.switch(number, "down")
        time.sleep(seconds)
        for number in numbers:
            self.network.switch(number, "up")


@contextmanager
def open_partitions() -> Iterator[Partitions]:
    """Yield a cluster over several networks."""
    from distributed import LocalCluster

    settings = dask_settings() | {"distributed.scheduler.worker-ttl": f"{_TTL:g}s"}
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(settings),
        Network() as network,
        LocalCluster(
            0, host=network.address, dashboard_address=None, protocol="tcp://", silence_logs=50
        ) as cluster,
        Workers(network, cluster.scheduler_address, folder),
        connect_client(cluster.scheduler_address, timeout=30) as client,
    ):
        yield Partitions(Path(folder), client, network)


def main() -> int:
    """Run trials as the command line says."""
    with open_partitions() as partitions:
        return report(partial(run_trials, partitions.trial, seconds=SECONDS))


if __name__ == "__main__":
    raise SystemExit(main())
