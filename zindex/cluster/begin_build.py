"""Start the build of a run from every rank of a job."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from zindex.cluster.job import JobPlace, find_job
from zindex.config import RunConfig, as_config
from zindex.indexing.coordination import Rank
from zindex.indexing.run_build import RunBuild


def begin_build(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    client: Any = None,
    *,
    progress: bool = False,
    job: JobPlace | None = None,
) -> RunBuild:
    """Start building a run in the background, and return futures of its stores.

    Call this on every rank of a job. Rank 0 builds; the others wait for its commits, and take over
    if its heartbeat stops. Permutations of blends whose sizes are known start before any dataset
    is opened. Those of runs without a blend depend on the lengths of their dataset and start as
    soon as it is checked, while others are.

    Parameters
    ----------
    config
        A ``RunConfig``, its mapping, or the path of a YAML file.
    client
        Where tasks run; see `zindex.build`.
    progress
        Whether to show progress bars on a terminal, or log lines elsewhere.
    job
        Rank and size of the job; None reads them from the variables of torchrun, MPI, Slurm or
        Kubernetes, or assumes a single process without them.

    Returns
    -------
    building
        ``building.futures["train"]["web"]`` is the build of one dataset and split, and
        ``["train"]["blend"]`` that of a blend. Each is a ``concurrent.futures.Future``, also
        awaitable, with a `BuildResult`, or None if nothing is needed. ``building.is_done`` is true
        on every rank once everything is committed; ``building.wait()`` blocks until then.

    Raises
    ------
    ConfigError
        If the configuration cannot be read. Errors of the build are raised by its futures,
        `is_done` and `wait`.
    """
    return start_build(
        config, lambda: client, find_job() if job is None else job, progress=progress
    )


def start_build(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    client: Callable[[], Any],
    job: JobPlace,
    *,
    progress: bool = False,
) -> RunBuild:
    """Start a build that creates its client only when needed; see `begin_build`."""
    # Ranks wait as long as their builder is alive.
    rank = Rank(job.rank, timeout=math.inf)
    return RunBuild(as_config(config), rank, client, progress=progress)
