"""How Dask is set up for builds: to notice what is lost within seconds, and to cost little."""

from typing import Any

#: Seconds without a sign of life after which a worker's tasks go to others.
WORKER_TTL = 15.0


def dask_settings() -> dict[str, Any]:
    """Return Dask's settings for schedulers and workers of builds.

    Each of these processes sets them before anything else of Dask: ``dask.config.set(...)``. What
    encrypts a cluster is not here: it has the folder of a run in it. Clients connect by
    `connect_client`.

    Notes
    -----
    A worker that hangs is looked for once in `WORKER_TTL`, so after at most twice this time its
    tasks run elsewhere and what others were fetching from it is made again. With hundreds of
    workers Dask takes ten of its heartbeats instead, which grow with their number.
    """
    return {
        "distributed.scheduler.worker-ttl": f"{WORKER_TTL:g}s",
        # A worker that is lost has its queue with it, which costs nothing: the tasks are small
        # descriptions. A worker that waits for the scheduler after each task costs time.
        "distributed.scheduler.worker-saturation": "inf",
        # Preemption kills workers that are not at fault; a task that is, ends after six of them.
        "distributed.scheduler.allowed-failures": 5,
        # Workers come back: a task waits for them, and so does the scheduler.
        "distributed.scheduler.no-workers-timeout": None,
        "distributed.scheduler.idle-timeout": None,
        # Dask pauses between attempts to connect for up to the time that it has tried already, at
        # most this one: a worker must not miss a scheduler that is started again.
        "distributed.comm.timeouts.connect": "10s",
        # A machine that is gone closes no connection.
        "distributed.comm.timeouts.tcp": "15s",
        # Nothing that costs the training processor time, or touches its GPUs.
        "distributed.worker.profile.enabled": False,
        "distributed.diagnostics.nvml": False,
        "distributed.diagnostics.cudf": False,
        # Where a dashboard is asked for, without a way from it to other machines.
        "distributed.scheduler.http.routes": [
            f"distributed.http.{name}"
            for name in ("scheduler.prometheus", "scheduler.info", "scheduler.json")
        ]
        + ["distributed.http.health", "distributed.http.statics"],
        "distributed.worker.http.routes": [],
        # Warnings that a process answered late: beside a training run it does.
        "distributed.admin.tick.limit": "1h",
    }
