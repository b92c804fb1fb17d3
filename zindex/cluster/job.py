"""Read rank and size of a job from the variables of torchrun, MPI, Slurm or Kubernetes."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zindex.errors import ConfigError

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Rank and size of one process in its job."""

    #: Launcher: torchrun, mpi, slurm, k8s, other, or none for a single process.
    launcher: str
    #: Identifies the job and its restart; equal on all ranks.
    job_id: str
    rank: int = 0
    world_size: int = 1
    #: Rank of this process on its node, and processes on the node.
    local_rank: int = 0
    local_world_size: int = 1
    #: Host and port of the job's master; None if the launcher does not set them.
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
        """Number of nodes, assuming that all of them have as many processes as this one."""
        return -(-self.world_size // self.local_world_size)

    @property
    def is_first_of_node(self) -> bool:
        """Whether this process is the first on its node, which starts the worker."""
        return self.local_rank == 0


def _number(environment: Environment, name: str) -> int:
    """Return the value of a variable that must be an integer."""
    value = environment.get(name)
    try:
        return int(value or "")
    except ValueError:
        raise ConfigError(
            f"{name} must be a whole number in the environment, got {value!r}; start all processes "
            "by the same launcher, or name it"
        ) from None


def _master(environment: Environment) -> tuple[str, int] | None:
    """Return host and port of torch's store."""
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return (host, int(port)) if host and port and port.isdigit() else None


def _slurm_ranks(environment: Environment) -> tuple[int, int, int, int]:
    counts = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    node = _number(environment, "SLURM_NODEID")
    rank, local_rank = (_number(environment, f"SLURM_{name}") for name in ("PROCID", "LOCALID"))
    return rank, sum(counts), local_rank, counts[node] if node < len(counts) else 0


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's compressed list of tasks per node.

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


class _Launcher(NamedTuple):
    """The variables in which a launcher describes a job."""

    name: str
    #: Variables that only this launcher sets.
    signature: tuple[str, ...]
    #: Variables that together identify the job; some may be unset.
    identity: tuple[str, ...]
    #: Variables of rank, size, local rank and local size, the last two optional; or a function that
    #: returns the four numbers.
    ranks: tuple[str, ...] | Callable[[Environment], tuple[int, ...]]

    def read(self, environment: Environment) -> JobPlace:
        """Return the job place of a process with these variables."""
        if callable(self.ranks):
            numbers = self.ranks(environment)
        else:
            numbers = tuple(_number(environment, name) for name in self.ranks)
        values = [environment[name] for name in self.identity if environment.get(name)]
        job_id = "-".join([self.name, *(values or ["0"])])
        names = ("rank", "world_size", "local_rank", "local_world_size")
        ranks = dict(zip(names, numbers, strict=False))
        return JobPlace(self.name, job_id, master=_master(environment), **ranks)


_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_TORCH_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI_RANKS = tuple(
    f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)
# Innermost launcher first. Slurm also sets SLURM_PROCID and SLURM_NTASKS in batch scripts,
# which run as one process.
_LAUNCHERS = (
    _Launcher(
        "torchrun",
        ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK"),
        # Every static rendezvous has the id "none"; the address distinguishes concurrent ones.
        ("TORCHELASTIC_RUN_ID", *_MASTER, "TORCHELASTIC_RESTART_COUNT"),
        _TORCH_RANKS,
    ),
    _Launcher(
        "mpi", _OPENMPI_RANKS[:1], ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"), _OPENMPI_RANKS
    ),
    _Launcher(
        "mpi",
        ("PMI_RANK", "MPI_LOCALRANKID"),
        ("PMI_ID", "PMI_JOBID"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ),
    _Launcher(
        "slurm",
        ("SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        _slurm_ranks,
    ),
    _Launcher(
        "k8s",
        ("JOB_COMPLETION_INDEX", "ZINDEX_NUM_NODES"),
        ("ZINDEX_JOB_ID",),
        ("JOB_COMPLETION_INDEX", "ZINDEX_NUM_NODES"),
    ),
    _Launcher("other", _TORCH_RANKS, _MASTER, _TORCH_RANKS),
)
_HINTS = {
    "torchrun": "run it as torchrun ... -m zindex build ...",
    "mpi": "run it under mpirun",
    "slurm": "run it under srun, one task per node",
    "k8s": "set ZINDEX_NUM_NODES in the pods of an indexed Job",
    "other": "set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
}


def find_job(environment: Environment | None = None, launcher: str | None = None) -> JobPlace:
    """Return the place of this process in its job.

    Parameters
    ----------
    environment
        Environment variables; None means those of this process.
    launcher
        Expected launcher: ``torchrun``, ``mpi``, ``slurm``, ``k8s`` or ``other``. None uses the
        innermost launcher whose variables are set, or a single process if there is none.

    Raises
    ------
    ConfigError
        If the launcher's variables are missing or inconsistent.
    """
    found = os.environ if environment is None else environment
    wanted = [item for item in _LAUNCHERS if launcher in (None, item.name)]
    if not wanted:
        raise ConfigError(
            f"a launcher must be one of {', '.join(_HINTS)}, got {launcher!r}; choose one"
        )
    for item in wanted:
        if all(found.get(variable) for variable in item.signature):
            return item.read(found)
    if launcher is None:
        return JobPlace("none", f"alone-{os.getpid()}")
    needed = " or ".join(", ".join(item.signature) for item in wanted)
    raise ConfigError(
        f"a process that {launcher} started must have {needed} in its environment, this one has "
        f"not; {_HINTS[launcher]}"
    )
