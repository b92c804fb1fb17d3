"""How Dask is set up for builds."""

from typing import Any


def dask_settings() -> dict[str, Any]:
    """Return Dask's settings for schedulers and workers of builds.

    A worker that says nothing for 15 s is given up, and its tasks go to others.
    """
    return {
        "distributed.scheduler.worker-ttl": "15s",
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.admin.tick.limit": "1h",
    }
