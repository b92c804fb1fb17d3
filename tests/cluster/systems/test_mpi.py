"""``cluster/mpi``: two ranks under Open MPI."""

from tests.cloud.servers import free_port
from tests.cluster.systems.runs import Run
from tests.cluster.systems.watched import FOLDERS, Watched, running


def test_a_job_of_two_ranks(
    run: Run, golden: dict[str, str], watched: Watched, mpirun: str
) -> None:
    hostfile = run.folder / "hostfile"
    hostfile.write_text("localhost slots=2\n")
    environment = watched.environment(
        HOSTFILE=str(hostfile),
        MASTER_PORT=str(free_port()),
        # The tests may run as root.
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    log = run.folder / "mpi.log"
    command = [str(FOLDERS / "mpi" / "launch.sh"), *run.train()]
    with running(command, environment, log) as process:
        assert process.wait(200) == 0, log.read_text()
        watched.check_end()
    run.check(golden, 2, "mpi")
