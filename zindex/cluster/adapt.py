"""Request extra Slurm nodes while a build needs them, one job per node."""

import logging
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from zindex.cluster.rendezvous import LOGS, Rendezvous
from zindex.cluster.resources import choose_threads
from zindex.cluster.settings import NodeSettings
from zindex.errors import ConfigError, ZindexError
from zindex.wording import count_noun

if TYPE_CHECKING:
    from zindex.config import RunConfig
    from zindex.indexing.run_build import RunBuild

logger = logging.getLogger("zindex.cluster")

#: Default options of ``sbatch``: whole nodes.
WHOLE_NODES = ("--exclusive",)
#: Startup time of a requested node in seconds, if one is idle.
START_SECONDS = 30.0
# Timeout of Slurm commands, in seconds.
_ANSWER_SECONDS = 60.0
_SETTINGS = "adapt.json"


class SlurmNodes:
    """Slurm jobs that each run one worker of a cluster on one node.

    Nodes may differ: each worker uses the CPUs and memory of its job.

    Parameters
    ----------
    rendezvous
        Shared directory of the cluster.
    settings
        Settings of each node; the node chooses name, threads and memory where they are None.
    options
        Options of ``sbatch``, such as ``--partition=cpu``; by default ``--exclusive``.
    maximum
        Maximum number of nodes that `serve` requests.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        settings: NodeSettings,
        options: Sequence[str] = (),
        maximum: int = 0,
    ) -> None:
        self.maximum = maximum
        self._folder = rendezvous.folder.resolve()
        settings.rendezvous = str(self._folder)
        settings.is_tied_to_pipe, settings.ends_with_scheduler = False, True
        self._settings = settings
        self._options = list(options or WHOLE_NODES)
        self._jobs: list[str] = []
        #: Number of nodes requested and not yet released.
        self.number = 0

    def request(self, number: int) -> None:
        """Submit jobs until this many nodes are running or queued.

        Raises
        ------
        ConfigError
            If Slurm is not available, or rejects the request.
        """
        missing = number - self.number
        if missing <= 0:
            return
        settings = self._folder / _SETTINGS
        settings.write_text(f"{self._settings.to_json()}\n")
        node = shlex.join([sys.executable, "-m", "zindex.cluster.node"])
        job = _call(
            "sbatch",
            "--parsable",
            "--job-name=zindex",
            f"--array=1-{missing}",
            "--nodes=1",
            "--ntasks=1",
            f"--output={self._folder / LOGS / 'slurm-%A-%a.log'}",
            *self._options,
            f"--wrap=exec {node} < {shlex.quote(str(settings))}",
        )
        self._jobs.append(job.strip().partition(";")[0])
        self.number = number
        logger.info(
            "asked Slurm for %s to build on, as job %s", count_noun(missing, "node"), self._jobs[-1]
        )

    def serve(self, building: "RunBuild", config: Any, num_own: int) -> None:
        """Request the nodes that a build can use, and release them when it ends.

        Parameters
        ----------
        building
            The running build.
        config
            Its run configuration.
        num_own
            Number of nodes that the cluster already has.
        """

        def run() -> None:
            from zindex.config import as_config

            # The build itself reports errors in its configuration.
            with suppress(ZindexError, OSError):
                number = count_nodes(as_config(config), num_own, num_own + self.maximum)
                self.request(number - num_own)
            building.join()
            self.hand_back()

        threading.Thread(target=run, name="zindex-adapt", daemon=True).start()

    def hand_back(self) -> None:
        """Cancel the jobs; running workers first transfer their results, within 20 s."""
        jobs, self._jobs, self.number = self._jobs, [], 0
        if jobs:
            logger.info("hands the nodes of job %s back to Slurm", ", ".join(jobs))
            try:
                _call("scancel", *jobs)
            except ConfigError as error:  # nodes also end with the scheduler
                logger.warning("%s", error)

    def check(self) -> None:
        """Raise a ConfigError if no job is running or queued."""
        if self._jobs and not _call("squeue", "--noheader", "--jobs", ",".join(self._jobs)).strip():
            raise ConfigError(
                f"a job of Slurm must run a worker, job {', '.join(self._jobs)} has ended; see "
                f"the logs in {self._folder / LOGS}"
            )


def count_nodes(config: "RunConfig", minimum: int, maximum: int) -> int:
    """Return how many nodes like this one the build of a run can use.

    Parameters
    ----------
    config
        The run; indices already built do not count.
    minimum, maximum
        Bounds on the result; extra nodes must save more time than they take to start.
    """
    # Imported late, because the import takes longer than entering a cluster.
    from zindex.forecast.nodes import count_useful_nodes, describe_missing
    from zindex.indexing.run_plan import plan_run

    job = describe_missing(config, plan_run(config))
    if job is None:
        return minimum
    return count_useful_nodes(
        job,
        maximum,
        num_threads=choose_threads(None, 0),
        first=max(1, minimum),
        start_seconds=START_SECONDS,
    )


def _call(program: str, *arguments: str) -> str:
    """Run a Slurm command and return its output."""
    # Inside a job, these variables would apply to its steps instead of the new jobs.
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            [program, *arguments],
            env=own,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"nodes are asked of Slurm by {program}, got {error}; run this where Slurm's commands "
            "work"
        ) from error
    # squeue fails for jobs that it no longer knows.
    if done.returncode and program != "squeue":
        raise ConfigError(f"Slurm refuses {program}: {done.stderr.strip()}; correct the options")
    return done.stdout
