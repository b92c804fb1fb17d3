"""Begin the build of a run in every rank of a job."""

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
    """Begin to build a run in the background, and return futures of its stores.

    Every rank of a job calls this. Rank 0 builds; the others wait for its commits, and take over
    when its heartbeat stops. Permutations of blends whose sizes are known start before any dataset
    is opened; those of other runs before all other work on their datasets.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    client
        Where tasks run, as of `zindex.build`.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.
    job
        This rank's place in the job; None finds it in the variables of torchrun, MPI, Slurm or
        Kubernetes, and a single process without them.

    Returns
    -------
    building
        ``building.futures["train"]["web"]`` is the build of one dataset and split, and
        ``["train"]["blend"]`` that of a blend: a ``concurrent.futures.Future`` that can also be
        awaited, with `BuildResult` or, where nothing is needed, None. ``building.is_done`` is true
        on every rank once everything is committed, and ``building.wait()`` waits for that.

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
    """Begin a build whose client is asked for where it is needed; see `begin_build`."""
    # Ranks wait as long as their builder lives.
    rank = Rank(job.rank, timeout=math.inf)
    return RunBuild(as_config(config), rank, client, progress=progress)
