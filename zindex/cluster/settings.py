"""Settings of a cluster's nodes, and Dask configuration for builds."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: Niceness of workers that run only on otherwise idle CPUs.
IDLE = 19
#: Seconds that a worker has to transfer its results when its node is released; Slurm and
#: Kubernetes kill after 30.
RETIRE_SECONDS = 20.0
#: Seconds without a heartbeat after which a worker's tasks are rescheduled.
WORKER_TTL = 15.0


@dataclass
class NodeSettings:
    """Settings of one node; its supervisor reads them as one line of JSON."""

    #: Directory of the rendezvous; None if only its content is sent.
    rendezvous: str | None = None
    #: Name of the worker in the cluster; if empty, the node chooses one.
    name: str = ""
    #: Threads of the worker; None lets the node choose, 0 runs no worker.
    threads: int | None = None
    #: Memory limit of the worker; see `choose_memory`.
    memory: int | str | float | None = None
    nice: int = IDLE
    #: Maximum share of the machine's memory bandwidth for the worker; None sets no limit.
    bandwidth: float | None = None
    #: Local directory for temporary files; None lets the node choose.
    scratch: str | None = None
    #: Number of training processes on the node.
    num_ranks: int = 0
    #: Seconds that a worker waits for a scheduler before it restarts, and rank 0 for both.
    start_timeout: float = 60.0
    #: Address at which the scheduler listens; None runs no scheduler here.
    scheduler_host: str | None = None
    #: Port of the dashboard, on loopback; None disables it.
    dashboard: int | None = None
    #: Expected number of nodes.
    num_nodes: int = 1
    #: Heartbeat timeout in seconds, after which a process of the node is replaced.
    silent_seconds: float = 2 * WORKER_TTL
    #: Whether this node ends when the pipe that delivered its settings closes.
    is_tied_to_pipe: bool = True
    #: Whether this node ends if no scheduler is published for ``start_timeout`` seconds.
    ends_with_scheduler: bool = False
    #: Request to stop that an earlier cluster may have left; see `Rendezvous.find_stop`.
    earlier_stop: Sequence[int] | None = None
    #: Content of a rendezvous directory that this node does not share.
    packed: dict[str, Any] | None = field(default=None, repr=False)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))


def dask_settings() -> dict[str, Any]:
    """Return Dask's configuration for schedulers and workers of builds.

    It detects lost workers within seconds, and takes little CPU time from training. Each process
    applies it before any other use of Dask: ``dask.config.set(...)``. Encryption is not included,
    because it depends on the folder of a run. Clients connect with `connect_client`.

    Notes
    -----
    Dask checks for hanging workers once per `WORKER_TTL`. After at most twice this time, their
    tasks run elsewhere, and data that others were fetching from them are recomputed. With hundreds
    of workers, it allows ten heartbeats instead, at an interval that grows with their number.
    """
    return {
        "distributed.scheduler.worker-ttl": f"{WORKER_TTL:g}s",
        # Losing a queue costs nothing, because tasks are small descriptions; waiting for the
        # scheduler after each task would cost time.
        "distributed.scheduler.worker-saturation": "inf",
        # Preemption kills workers that are not at fault; a faulty task fails after six attempts.
        "distributed.scheduler.allowed-failures": 5,
        # Workers restart: tasks and the scheduler wait for them.
        "distributed.scheduler.no-workers-timeout": None,
        "distributed.scheduler.idle-timeout": None,
        # Dask backs off between connection attempts for up to the time already spent, at
        # most this value: a worker must not miss a scheduler that restarts.
        "distributed.comm.timeouts.connect": "10s",
        # A machine that fails closes no connection.
        "distributed.comm.timeouts.tcp": "15s",
        # Disable what costs training CPU time or touches its GPUs.
        "distributed.worker.profile.enabled": False,
        "distributed.diagnostics.nvml": False,
        "distributed.diagnostics.cudf": False,
        # Dashboard pages, without the proxy to other machines.
        "distributed.scheduler.http.routes": [
            f"distributed.http.{name}"
            for name in ("scheduler.prometheus", "scheduler.info", "scheduler.json")
        ]
        + ["distributed.http.health", "distributed.http.statics"],
        "distributed.worker.http.routes": [],
        # Warnings about late responses, which are normal during training.
        "distributed.admin.tick.limit": "1h",
    }
