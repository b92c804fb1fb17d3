"""The place of a process in a job: what torchrun, MPI, Slurm or Kubernetes say of it."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zindex.errors import ConfigError

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobPlace:
    """One process among those of a job."""

    #: Who started the processes: torchrun, mpi, slurm, k8s, other, or none for a process alone.
    launcher: str
    #: Tells the jobs apart, and the starts of one job; the same on all ranks.
    job_id: str
    rank: int = 0
    world_size: int = 1
    #: This process among those of its node, and how many those are.
    local_rank: int = 0
    local_world_size: int = 1
    #: Where the ranks of a job find each other; None if the launcher does not say.
    master: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        for number, size, name in (
            (self.rank, self.world_size, "rank"),
            (self.local_rank, self.local_world_size, "local rank"),
        ):
            if not 0 <= number < size:
                raise ConfigError(
                    f"the {name} that {self.launcher} gives must be in [0, {size}), got {number}; "
                    "start all processes by the same launcher"
                )

    @property
    def num_nodes(self) -> int:
        """Nodes of the job, if all of them have as many processes as this one."""
        return -(-self.world_size // self.local_world_size)

    @property
    def is_first_of_node(self) -> bool:
        """Whether this process is the one of its node that looks after the node's worker."""
        return self.local_rank == 0


def _number(environment: Environment, name: str) -> int:
    """Return the whole number that a variable holds."""
    value = environment.get(name)
    try:
        return int(value or "")
    except ValueError:
        raise ConfigError(
            f"{name} must be a whole number in the environment, got {value!r}; start all processes "
            "by the same launcher, or name it"
        ) from None


def _master(environment: Environment) -> tuple[str, int] | None:
    """Return where torch's store answers."""
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return (host, int(port)) if host and port and port.isdigit() else None


def _of_torchrun(environment: Environment) -> JobPlace:
    master = _master(environment)
    run = environment["TORCHELASTIC_RUN_ID"]
    # Every static rendezvous is called "none"; its address tells those of one time apart.
    where = "" if master is None else f"-{master[0]}-{master[1]}"
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return JobPlace(
        "torchrun",
        f"torchrun-{run}{where}-{restart}",
        _number(environment, "RANK"),
        _number(environment, "WORLD_SIZE"),
        _number(environment, "LOCAL_RANK"),
        _number(environment, "LOCAL_WORLD_SIZE"),
        master,
    )


def _of_openmpi(environment: Environment) -> JobPlace:
    job = environment.get("OMPI_MCA_ess_base_jobid") or environment.get("PMIX_NAMESPACE", "0")
    return JobPlace(
        "mpi",
        f"mpi-{job}",
        _number(environment, "OMPI_COMM_WORLD_RANK"),
        _number(environment, "OMPI_COMM_WORLD_SIZE"),
        _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        _master(environment),
    )


def _of_hydra(environment: Environment) -> JobPlace:
    return JobPlace(
        "mpi",
        f"mpi-{environment.get('PMI_ID', '')}{environment.get('PMI_JOBID', '0')}",
        _number(environment, "PMI_RANK"),
        _number(environment, "PMI_SIZE"),
        _number(environment, "MPI_LOCALRANKID"),
        _number(environment, "MPI_LOCALNRANKS"),
        _master(environment),
    )


def _of_slurm(environment: Environment) -> JobPlace:
    counts = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    node = _number(environment, "SLURM_NODEID")
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    return JobPlace(
        "slurm",
        "-".join(["slurm", *(environment.get(name, "0") for name in names)]),
        _number(environment, "SLURM_PROCID"),
        sum(counts),
        _number(environment, "SLURM_LOCALID"),
        counts[node] if node < len(counts) else 0,
        _master(environment),
    )


def expand_counts(text: str) -> list[int]:
    """Return the numbers of tasks per node that Slurm writes in short.

    Examples
    --------
    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ConfigError(
                f"SLURM_STEP_TASKS_PER_NODE must be like 2(x3),1, got {text!r}; start the "
                "processes by srun"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _of_kubernetes(environment: Environment) -> JobPlace:
    return JobPlace(
        "k8s",
        f"k8s-{environment.get('ZINDEX_JOB_ID', '0')}",
        _number(environment, "JOB_COMPLETION_INDEX"),
        _number(environment, "ZINDEX_NUM_NODES"),
        master=_master(environment),
    )


def _of_other(environment: Environment) -> JobPlace:
    master = _master(environment)
    where = "0" if master is None else f"{master[0]}-{master[1]}"
    return JobPlace(
        "other",
        f"other-{where}",
        _number(environment, "RANK"),
        _number(environment, "WORLD_SIZE"),
        _number(environment, "LOCAL_RANK"),
        _number(environment, "LOCAL_WORLD_SIZE"),
        master,
    )


#: Name -> the variables that tell of a launcher, and what reads them; the innermost comes first.
#: Slurm sets SLURM_PROCID and SLURM_NTASKS in batch scripts too, where one process runs.
_LAUNCHERS: dict[str, list[tuple[tuple[str, ...], Callable[[Environment], JobPlace]]]] = {
    "torchrun": [(("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK"), _of_torchrun)],
    "mpi": [(("OMPI_COMM_WORLD_RANK",), _of_openmpi), (("PMI_RANK", "MPI_LOCALRANKID"), _of_hydra)],
    "slurm": [(("SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID"), _of_slurm)],
    "k8s": [(("JOB_COMPLETION_INDEX", "ZINDEX_NUM_NODES"), _of_kubernetes)],
    "other": [(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), _of_other)],
}
_HINTS = {
    "torchrun": "run it as torchrun ... -m zindex build ...",
    "mpi": "run it under mpirun",
    "slurm": "run it under srun, one task per node",
    "k8s": "set ZINDEX_NUM_NODES in the pods of an indexed Job",
    "other": "set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
}


def find_job(environment: Environment | None = None, launcher: str | None = None) -> JobPlace:
    """Return this process's place in its job.

    Parameters
    ----------
    environment
        Variables; None means those of this process.
    launcher
        Who must have started the process: ``torchrun``, ``mpi``, ``slurm``, ``k8s`` or ``other``;
        None takes the innermost that left its variables, and a process alone if there is none.

    Raises
    ------
    ConfigError
        If the launcher's variables are not there, or do not fit together.
    """
    found = os.environ if environment is None else environment
    if launcher is not None and launcher not in _LAUNCHERS:
        raise ConfigError(
            f"a launcher must be one of {', '.join(_LAUNCHERS)}, got {launcher!r}; choose one"
        )
    for name in _LAUNCHERS if launcher is None else (launcher,):
        for variables, read in _LAUNCHERS[name]:
            if all(found.get(variable) for variable in variables):
                return read(found)
    if launcher is None:
        return JobPlace("none", f"alone-{os.getpid()}")
    wanted = " or ".join(", ".join(variables) for variables, _ in _LAUNCHERS[launcher])
    raise ConfigError(
        f"a process that {launcher} started must have {wanted} in its environment, this one has "
        f"not; {_HINTS[launcher]}"
    )
