"""``cluster/ssh``: builds on hosts that ssh leads to."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.systems.runs import Run
from tests.cluster.systems.sshd import SshHosts
from tests.cluster.systems.watched import FOLDERS, Watched, running

#: Gives the process of a build, as a context.
Build = Callable[[], Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where builds write what they say."""
    return tmp_path / "ssh.log"


@pytest.fixture
def build(run: Run, watched: Watched, ssh_hosts: SshHosts, log: Path) -> Build:
    """Begin a build on two hosts."""
    hosts = run.folder / "hosts"
    hosts.write_text("".join(f"{name}\n" for name in ssh_hosts.names))
    environment = watched.environment(HOSTS=str(hosts))
    environment["PATH"] = f"{ssh_hosts.programs}:{environment['PATH']}"
    options = [f"--remote-python={sys.executable}", "--threads=1", "--nice=0"]
    command = [str(FOLDERS / "ssh" / "build.sh"), str(run.file), *options]
    return lambda: running(command, environment, log)


def test_a_build_on_two_hosts(
    run: Run, golden: dict[str, str], watched: Watched, build: Build, log: Path
) -> None:
    with build() as process:
        assert process.wait(200) == 0, log.read_text()
        watched.check_end()
    assert run.digests() == golden


@pytest.mark.slow
def test_workers_end_with_a_build_that_is_killed(
    run: Run, golden: dict[str, str], watched: Watched, build: Build, log: Path
) -> None:
    with build() as process:
        deadline = time.monotonic() + 60
        while not watched.processes("zindex.cluster.member worker"):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        process.kill()
        watched.check_gone()
    with build() as process:
        assert process.wait(200) == 0, log.read_text()
    assert run.digests() == golden
