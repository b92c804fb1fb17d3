"""Settings of a cluster's processes: what a node runs, and how Dask is configured for builds."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

#: Niceness of workers that run only when no other process wants their processor.
IDLE = 19
#: Seconds that a worker has to move its results when its node is taken away; Slurm and Kubernetes
#: kill after 30.
RETIRE_SECONDS = 20.0
#: Seconds without a heartbeat after which a worker's tasks are rescheduled.
WORKER_TTL = 15.0


@dataclass
class NodeSettings:
    """What one node runs; its supervisor reads it as one line of JSON."""

    #: Directory of the rendezvous; None where only its content is sent.
    rendezvous: str | None = None
    #: Name of the worker in the cluster; empty lets the node choose.
    name: str = ""
    #: Threads of the worker; None lets the node choose, 0 runs no worker there.
    threads: int | None = None
    #: Memory of the worker, as of `choose_memory`.
    memory: int | str | float | None = None
    nice: int = IDLE
    #: Directory of the node for temporary files; None lets the node choose.
    scratch: str | None = None
    #: Training processes of the node.
    num_ranks: int = 0
    #: Seconds that a worker waits for a scheduler before it restarts, and rank 0 for both.
    start_timeout: float = 60.0
    #: Address at which the scheduler listens; None runs no scheduler here.
    scheduler_host: str | None = None
    #: Port of the dashboard, on loopback; None serves no page.
    dashboard: int | None = None
    #: Nodes that are expected.
    num_nodes: int = 1
    #: Seconds without a sign of life after which a process of the node is replaced.
    silent_seconds: float = 2 * WORKER_TTL
    #: Whether this node ends when the pipe closes through which its settings arrived.
    is_tied_to_pipe: bool = True
    #: Whether this node ends once no scheduler is published for ``start_timeout`` seconds.
    ends_with_scheduler: bool = False
    #: Content of a rendezvous that this node does not share.
    packed: dict[str, Any] | None = field(default=None, repr=False)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))


def dask_settings() -> dict[str, Any]:
    """Return Dask's settings for schedulers and workers of builds.

    Lost workers are noticed within seconds, and training loses little processor time. Each of these
    processes sets them before anything else of Dask: ``dask.config.set(...)``. Encryption is not
    here: it depends on the folder of a run. Clients connect by `connect_client`.

    Notes
    -----
    Dask checks a hanging worker once in `WORKER_TTL`, so after at most twice this time its tasks
    run elsewhere and the data that others were fetching from it are recomputed. With hundreds of
    workers Dask allows ten of its heartbeats instead, whose interval grows with their number.
    """
    return {
        "distributed.scheduler.worker-ttl": f"{WORKER_TTL:g}s",
        # Losing a worker loses its queue too, which costs nothing: the tasks are small
        # descriptions. A worker that waits for the scheduler after each task costs time.
        "distributed.scheduler.worker-saturation": "inf",
        # Preemption kills workers that are not at fault; a task that is at fault fails after six.
        "distributed.scheduler.allowed-failures": 5,
        # Workers restart: a task waits for them, and so does the scheduler.
        "distributed.scheduler.no-workers-timeout": None,
        "distributed.scheduler.idle-timeout": None,
        # Dask pauses between attempts to connect for up to the time that it has tried already, at
        # most this one: a worker must not miss a scheduler that restarts.
        "distributed.comm.timeouts.connect": "10s",
        # A machine that is gone closes no connection.
        "distributed.comm.timeouts.tcp": "15s",
        # Nothing that costs the training processor time, or touches its GPUs.
        "distributed.worker.profile.enabled": False,
        "distributed.diagnostics.nvml": False,
        "distributed.diagnostics.cudf": False,
        # The pages of a dashboard, without the proxy to other machines.
        "distributed.scheduler.http.routes": [
            f"distributed.http.{name}"
            for name in ("scheduler.prometheus", "scheduler.info", "scheduler.json")
        ]
        + ["distributed.http.health", "distributed.http.statics"],
        "distributed.worker.http.routes": [],
        # Warnings that a process answered late, which is normal during training.
        "distributed.admin.tick.limit": "1h",
    }
