"""A private Slurm of three nodes on this machine, as Debian's packages bring it.

The nodes are daemons that share this machine's folders, memory and ports; their names lead nowhere.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cloud.servers import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "munged")

_NODES = ("n1", "n2", "n3")

# The nodes have the processors and GPUs of a training node as far as Slurm knows. ``urgent`` takes
# them from jobs of the other partition, which start again later.
_CONFIG = """\
ClusterName=zindex
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
MessageTimeout=10
KillWait=5
{nodes}
PartitionName=train Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-3] MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


@dataclass(frozen=True)
class Job:
    """A job as Slurm sees it."""

    number: str
    environment: dict[str, str]

    def show(self) -> dict[str, str]:
        """Return the fields that Slurm shows of the job, or of its first component."""
        text = self._control("show", "job", "--oneliner", self.number).splitlines()[0]
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def wait(self, *states: str, seconds: float = 200) -> str:
        """Return the job's state once it is one of these, or the last that a job has."""
        deadline = time.monotonic() + seconds
        last = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        while (state := self.show()["JobState"]) not in {*states, *last}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {self.number} is {state}, not {' or '.join(states)}")
            time.sleep(0.05)
        return state

    def start_now(self) -> None:
        """Let a job that was put back start without the two minutes that Slurm waits."""
        self._control("update", f"JobId={self.number}", "StartTime=now")

    def signal_batch(self, name: str) -> None:
        """Send a signal to the job's script alone, as Slurm does ahead of the job's end."""
        command = ["scancel", "--batch", f"--signal={name}", self.number]
        subprocess.run(command, env=self.environment, check=True)

    def cancel(self) -> None:
        subprocess.run(["scancel", self.number], env=self.environment, check=False)

    def _control(self, *arguments: str) -> str:
        done = subprocess.run(
            ["scontrol", *arguments],
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout


@dataclass(frozen=True)
class Slurm:
    """A running Slurm."""

    config: Path

    def submit(self, *arguments: str, environment: dict[str, str]) -> Job:
        """Submit a job with ``sbatch``; it sees the environment given."""
        environment = environment | {"SLURM_CONF": str(self.config)}
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"sbatch: {done.stderr}")
        return Job(done.stdout.strip(), environment)


@contextmanager
def private_slurm(folder: Path) -> Iterator[Slurm]:
    """Run a Slurm of three nodes until the block is left."""
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} "
        "CPUs=64 RealMemory=4000 Gres=gpu:8 State=UNKNOWN"
        for node in _NODES
    )
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(host=host, port=free_port(), folder=folder, nodes=nodes))
    for number in range(8):  # Slurm wants a file for each
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
    (folder / "state").mkdir()
    environment = os.environ | {"SLURM_CONF": str(config)}

    def call(*command: str) -> None:
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=30)

    with _munge(folder):
        try:
            call(_find("slurmctld"), "-c", "-f", str(config))
            for node in _NODES:
                (folder / f"spool.{node}").mkdir()
                call(_find("slurmd"), "-N", node, "-f", str(config))
            _wait_for_nodes(environment)
            yield Slurm(config)
        finally:
            subprocess.run(["scancel", "--user=root", "--signal=KILL"], env=environment)
            subprocess.run(["scontrol", "shutdown"], env=environment)
            for name in ("slurmctld", *(f"slurmd.{node}" for node in _NODES)):
                _wait_for_end(folder / f"{name}.pid")


@contextmanager
def _munge(folder: Path) -> Iterator[None]:
    """Run the daemon by which Slurm's processes know each other, with a key of its own."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    places = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
    places |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{name}={folder / place}" for name, place in places.items()]
    process = subprocess.Popen(
        [_find("munged"), "--foreground", "--force", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (folder / "munge.socket").exists():
            if process.poll() is not None:
                raise RuntimeError(f"munged: {(folder / 'munge.log').read_text()}")
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def _find(program: str) -> str:
    """Return the path of a daemon, which may lie where only root looks."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found is not None
    return found


def _wait_for_nodes(environment: dict[str, str]) -> None:
    """Return once all nodes take jobs."""
    deadline = time.monotonic() + 30
    while True:
        command = ["sinfo", "--noheader", "--partition=train", "--Node", "--format=%t"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.stdout.split() == ["idle"] * len(_NODES):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the nodes must be idle, they are {done.stdout or done.stderr}")
        time.sleep(0.05)


def _wait_for_end(pid_file: Path) -> None:
    """Return once the daemon that wrote the file has ended; it removes the file."""
    deadline = time.monotonic() + 20
    while pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
