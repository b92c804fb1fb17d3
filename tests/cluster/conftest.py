"""Systems that launch jobs, each private to the tests and on this machine alone."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.systems import slurm as slurm_programs
from tests.cluster.systems import sshd as ssh_programs
from tests.cluster.systems.needs import go_without, need_programs
from tests.cluster.systems.runs import Run, build_alone, write_run
from tests.cluster.systems.slurm import Slurm, private_slurm
from tests.cluster.systems.sshd import SshHosts, private_hosts
from tests.cluster.systems.watched import Watched


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of three nodes."""
    need_programs(slurm_programs.PROGRAMS, "slurm-wlm munge")
    if os.geteuid() != 0:
        go_without("a Slurm of several nodes on one machine needs root")
    with private_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="session")
def mpirun() -> str:
    """Open MPI's launcher."""
    need_programs(["mpirun", "orted"], "openmpi-bin")
    return "mpirun"


@pytest.fixture(scope="session")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Two hosts that ssh leads to."""
    need_programs(ssh_programs.PROGRAMS, "openssh-server openssh-client")
    with private_hosts(tmp_path_factory.mktemp("ssh"), 2) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the command ``zindex`` of the code under test."""
    folder = tmp_path_factory.mktemp("programs")
    command = f'exec {sys.executable} -c "from zindex.cli import main; main()" "$@"'
    (folder / "zindex").write_text(f"#!/bin/sh\n{command}\n")
    (folder / "zindex").chmod(0o755)
    return folder


@pytest.fixture
def watched(tmp_path: Path, programs: Path) -> Iterator[Watched]:
    """A run whose processes are found again, and gone after the test."""
    (tmp_path / "scratch").mkdir()
    found = Watched(tmp_path / "scratch", programs)
    yield found
    found.end()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of which nothing is built."""
    return write_run(tmp_path)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the indices of the run hold, by a build in one process."""
    return build_alone(write_run(tmp_path_factory.mktemp("golden")))
