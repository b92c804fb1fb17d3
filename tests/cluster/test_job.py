"""The place of a process in its job, from the variables that real launchers set."""

import itertools

import pytest

from zindex.cluster.job import JobPlace, expand_counts, find_job
from zindex.errors import ConfigError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "4",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
}
OPENMPI = {
    "OMPI_MCA_ess_base_jobid": "123",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
INTEL_MPI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "ZINDEX_NUM_NODES": "3", "ZINDEX_JOB_ID": "run-7"}


@pytest.mark.parametrize(
    ("environment", "place", "num_nodes"),
    [
        (
            TORCHRUN,
            JobPlace("torchrun", "torchrun-none-10.0.0.1-29500-2", 5, 8, 1, 4, ("10.0.0.1", 29500)),
            2,
        ),
        (SLURM, JobPlace("slurm", "slurm-77-3-1", 4, 5, 0, 1), 5),
        (OPENMPI, JobPlace("mpi", "mpi-123", 3, 4, 1, 2), 2),
        (INTEL_MPI, JobPlace("mpi", "mpi-0", 1, 2, 0, 1), 2),
        (KUBERNETES, JobPlace("k8s", "k8s-run-7", 1, 3), 3),
    ],
)
def test_launchers_are_told_by_their_variables(
    environment: dict[str, str], place: JobPlace, num_nodes: int
) -> None:
    assert find_job(environment) == place
    assert find_job(environment, place.launcher) == place
    assert place.num_nodes == num_nodes


def test_the_innermost_launcher_counts() -> None:
    assert find_job(SLURM | TORCHRUN).launcher == "torchrun"
    assert find_job(SLURM | TORCHRUN, "slurm").launcher == "slurm"


def test_a_batch_script_of_many_tasks_is_one_process() -> None:
    batch = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}
    assert find_job(batch).world_size == 1
    with pytest.raises(ConfigError, match="run it under srun, one task per node"):
        find_job(batch, "slurm")


def test_without_a_launcher_a_process_is_alone() -> None:
    place = find_job({})
    assert (place.launcher, place.rank, place.world_size, place.num_nodes) == ("none", 0, 1, 1)
    assert place.is_first_of_node


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["one", "-1"])
def test_numbers_that_are_none_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        find_job(TORCHRUN | {name: value})


def test_a_launcher_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="a launcher must be one of torchrun, mpi, slurm"):
        find_job({}, "pbs")


@pytest.mark.parametrize("text", ["", "2(x)", "a", "2(x2"])
def test_counts_of_tasks_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE"):
        expand_counts(text)


def test_counts_of_tasks_in_short() -> None:
    for counts in itertools.product((1, 2), repeat=4):
        runs = [(count, len(list(same))) for count, same in itertools.groupby(counts)]
        text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
        assert expand_counts(text) == list(counts)
