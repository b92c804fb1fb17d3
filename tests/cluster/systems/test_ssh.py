"""``cluster/ssh``: a build on hosts that ssh leads to."""

import sys

from tests.cluster.systems.runs import Run
from tests.cluster.systems.sshd import SshHosts
from tests.cluster.systems.watched import FOLDERS, Watched, running


def test_a_build_on_two_hosts(
    run: Run, golden: dict[str, str], watched: Watched, ssh_hosts: SshHosts
) -> None:
    hosts = run.folder / "hosts"
    hosts.write_text("".join(f"{name}\n" for name in ssh_hosts.names))
    environment = watched.environment(HOSTS=str(hosts))
    environment["PATH"] = f"{ssh_hosts.programs}:{environment['PATH']}"
    log = run.folder / "ssh.log"
    options = [f"--remote-python={sys.executable}", "--threads=1"]
    command = [str(FOLDERS / "ssh" / "build.sh"), str(run.file), *options]
    with running(command, environment, log) as process:
        assert process.wait(120) == 0, log.read_text()
        watched.check_gone()
    assert run.digests() == golden
