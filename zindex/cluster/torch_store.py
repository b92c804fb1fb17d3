"""A cluster's address and certificate by way of torch's key-value store.

Every job of torch has one, where its ranks meet. It is as safe as the job itself: who can read the
store can speak to the ranks.
"""

import json
import os
from datetime import timedelta
from typing import Any

from zindex.cluster.job import JobPlace
from zindex.errors import ConfigError


def _open_store(job: JobPlace, seconds: float) -> Any:
    """Return the store where the ranks of this job meet."""
    import torch

    distributed: Any = torch.distributed
    prefix = f"zindex-cluster/{job.job_id}"
    if distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        return distributed.PrefixStore(prefix, store)
    # torchrun's agent serves the store before any rank is there; without it rank 0 itself does,
    # once torch.distributed is initialized.
    if job.master is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ConfigError(
            "nodes can meet in torch's store under torchrun or once torch.distributed is "
            "initialized, this process has neither; give folder=, a directory that all nodes share"
        )
    try:
        store = distributed.TCPStore(
            *job.master, is_master=False, timeout=timedelta(seconds=seconds)
        )
    except RuntimeError as error:
        raise ConfigError(
            f"torch's store must answer at {job.master[0]}:{job.master[1]}, got {error}; give "
            "folder=, a directory that all nodes share"
        ) from error
    return distributed.PrefixStore(prefix, store)


def publish_by_store(job: JobPlace, packed: dict[str, Any], seconds: float) -> None:
    """Give all nodes what `Meeting.pack` returns."""
    _open_store(job, seconds).set("meeting", json.dumps(packed))


def receive_by_store(job: JobPlace, seconds: float) -> dict[str, Any]:
    """Return what rank 0 gives all nodes, once it does.

    Raises
    ------
    ConfigError
        If it does not in time.
    """
    store = _open_store(job, seconds)
    try:
        packed: dict[str, Any] = json.loads(store.get("meeting"))
    except RuntimeError as error:
        raise ConfigError(
            f"rank 0 must give the cluster's address within {seconds:g} s, it has not: {error}; "
            "see its log"
        ) from error
    return packed
