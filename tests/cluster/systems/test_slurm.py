"""``cluster/slurm``: jobs of two nodes, with nodes that only build, and put back midway."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cloud.servers import free_port
from tests.cluster.systems.runs import Run
from tests.cluster.systems.slurm import Job, Slurm
from tests.cluster.systems.watched import FOLDERS, Watched, running, wait_for

SCRIPTS = FOLDERS / "slurm"

Submit = Callable[..., Job]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where jobs write what they say."""
    return tmp_path / "job.log"


@pytest.fixture
def submit(slurm: Slurm, watched: Watched, log: Path) -> Iterator[Submit]:
    """Submit jobs that are cancelled at the end of a test, whatever happens."""
    jobs = []

    def submit_one(*arguments: str) -> Job:
        environment = watched.environment(
            RANKS_PER_NODE="1",
            MASTER_PORT=str(free_port()),
            CLUSTER_FOLDER=str(log.parent / "cluster"),
        )
        jobs.append(slurm.submit(f"--output={log}", *arguments, environment=environment))
        return jobs[-1]

    yield submit_one
    for job in jobs:
        job.cancel()


def check_end(job: Job, log: Path, watched: Watched) -> None:
    """Fail unless a job ends well, and nothing of it is left."""
    assert job.wait() == "COMPLETED", log.read_text()
    assert "Warning" not in log.read_text()
    watched.check_end()


@pytest.mark.slow
def test_ranks_scheduler_and_workers_in_one_job(
    run: Run, golden: dict[str, str], watched: Watched, submit: Submit, log: Path
) -> None:
    job = submit(str(SCRIPTS / "train.sbatch"), *run.train())
    check_end(job, log, watched)
    run.check(golden, 2, "torchrun")


def test_a_requeued_job_is_otherwise_that_of_train_sbatch() -> None:
    def commands(name: str) -> list[str]:
        text = (SCRIPTS / name).read_text().replace("\\\n", "")
        lines = (line.partition(" #")[0].strip() for line in text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    start, *plain, step = commands("train.sbatch")
    assert commands("requeue.sbatch") == [
        *(start, *plain),
        "trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1",
        *(f"{step} &", "wait $!"),
    ]


def test_nodes_without_ranks_build_too(
    run: Run, golden: dict[str, str], watched: Watched, submit: Submit, log: Path
) -> None:
    job = submit(
        *("--nodes=2", ":", "--nodes=1", str(SCRIPTS / "het.sbatch")), *run.train("--num-workers=3")
    )
    check_end(job, log, watched)
    run.check(golden, 2, "torchrun")


def test_a_preempted_job_goes_on_from_its_finished_shards(
    run: Run, golden: dict[str, str], watched: Watched, submit: Submit, log: Path
) -> None:
    options = ["--no-folder", "--num-workers=2", "--stand-still-after=12"]
    job = submit("--nodes=2", str(SCRIPTS / "requeue.sbatch"), *run.train(*options))
    wait_for(run.folder / "midway", log)
    # The nodes are on one machine: nobody else reaches what zindex has started.
    listeners = watched.listeners("zindex.cluster")
    assert len(listeners) == 3, listeners
    assert all(listener.is_loopback for listener in listeners)
    before = run.stamps()
    assert before
    urgent = submit("--partition=urgent", "--nodes=3", "--exclusive", "--wrap=true")
    assert urgent.wait() == "COMPLETED"
    assert job.wait("PENDING") == "PENDING"
    assert run.digests() != golden
    job.start_now()
    check_end(job, log, watched)
    assert job.show()["Restarts"] == "1"
    run.check(golden, 2, "torchrun")
    after = run.stamps()
    assert {name: after[name] for name in before} == before
    assert not (run.folder / "cluster").exists()


@pytest.mark.slow
def test_a_job_whose_time_is_over_puts_itself_back(
    run: Run, golden: dict[str, str], watched: Watched, submit: Submit, log: Path
) -> None:
    job = submit(
        *("--nodes=2", str(SCRIPTS / "requeue.sbatch")), *run.train("--stand-still-after=12")
    )
    wait_for(run.folder / "midway", log)
    job.signal_batch("USR1")
    assert job.wait("PENDING") == "PENDING"
    job.start_now()
    check_end(job, log, watched)
    assert job.show()["Restarts"] == "1"
    run.check(golden, 2, "torchrun")


@pytest.mark.slow
def test_a_build_ahead_of_a_job(
    run: Run, golden: dict[str, str], watched: Watched, submit: Submit, log: Path
) -> None:
    job = submit(
        "--nodes=3", str(SCRIPTS / "build.sbatch"), str(run.file), "--threads=1", "--nice=0"
    )
    check_end(job, log, watched)
    assert run.digests() == golden


def test_nodes_are_asked_for_by_the_build_itself(
    run: Run, golden: dict[str, str], slurm: Slurm, watched: Watched, log: Path
) -> None:
    environment = watched.environment(SLURM_CONF=str(slurm.config))
    command = [*("zindex", "build", str(run.file), "--cluster", "slurm", "--adapt", "2:3")]
    options = [
        "--slurm-options=--cpus-per-task=1 --mem=1000",
        "--cluster-host=127.0.0.1",
        "--nice=0",
    ]
    with running([*command, *options], environment, log) as process:
        assert process.wait(200) == 0, log.read_text()
    assert "asked Slurm for 2 nodes" in log.read_text()
    watched.check_end()
    assert run.digests() == golden
    [workers] = (run.index / "_cluster").glob("*/logs")
    said = [path.read_text() for path in workers.glob("worker-*.log")]
    assert len(said) == 2
    assert all("the worker has" in text for text in said)


@pytest.mark.slow
def test_a_build_that_is_terminated_leaves_no_job(
    run: Run, slurm: Slurm, watched: Watched, log: Path
) -> None:
    environment = watched.environment(SLURM_CONF=str(slurm.config))
    command = [*("zindex", "build", str(run.file), "--cluster", "slurm", "--adapt", "1")]
    options = ["--slurm-options=--cpus-per-task=1 --partition=urgent --hold"]
    with running([*command, *options, "--cluster-host=127.0.0.1"], environment, log) as process:
        deadline = time.monotonic() + 100
        while "asked Slurm" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        number = log.read_text().partition("as job ")[2].split()[0]
        process.terminate()
        assert process.wait(60) == 143
    job = Job(number, environment)
    assert job.wait() == "CANCELLED"
    watched.check_end()


@pytest.mark.slow
def test_a_job_has_more_nodes_until_its_first_step(
    run: Run, golden: dict[str, str], slurm: Slurm, watched: Watched, log: Path
) -> None:
    environment = watched.environment(SLURM_CONF=str(slurm.config))
    script = f"""
import time
from zindex.cluster import alongside
with alongside({str(run.folder / "cluster")!r}, threads=1, nice=0) as cluster:
    cluster.adapt(2, 3, options=["--cpus-per-task=1", "--mem=1000"])
    cluster.client.wait_for_workers(3, timeout=180)
    building = cluster.begin_build({str(run.file)!r})
    building.wait()
    cluster.step()
    while len(cluster.client.nthreads()) > 1:
        time.sleep(0.1)
"""
    with running([sys.executable, "-c", script], environment, log) as process:
        assert process.wait(280) == 0, log.read_text()
    watched.check_end()
    assert run.digests() == golden
