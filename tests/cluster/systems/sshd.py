"""Private ssh servers on this machine: each a host with a port and a key of its own."""

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cloud.servers import free_port, wait_for_port

PROGRAMS = ("sshd", "ssh", "ssh-keygen")

# ``StrictModes``: the folders of tests are not those of a home.
_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/{name}.key
AuthorizedKeysFile {folder}/user.key.pub
PidFile {folder}/{name}.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
AcceptEnv ZINDEX_* PYTHONPATH TMPDIR NUMBA_CACHE_DIR
"""

_CLIENT = """\
Host *
    User {user}
    IdentityFile {folder}/user.key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    SendEnv ZINDEX_* PYTHONPATH TMPDIR NUMBA_CACHE_DIR
"""


@dataclass(frozen=True)
class SshHosts:
    """Hosts that ssh leads to."""

    #: Each as HOST:PORT.
    names: tuple[str, ...]
    #: Has an ``ssh`` that knows the hosts, to be put first on the path.
    programs: Path


@contextmanager
def private_hosts(folder: Path, num_hosts: int) -> Iterator[SshHosts]:
    """Run servers until the block is left."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert server is not None
    if os.geteuid() == 0:  # where the server parts with its rights; packages leave this to init
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    _make_key(folder / "user.key")
    known, hosts = [], []
    with ExitStack() as stack:
        for name in (f"host-{number}" for number in range(num_hosts)):
            _make_key(folder / f"{name}.key")
            port = free_port()
            settings = folder / f"{name}.conf"
            settings.write_text(_SERVER.format(folder=folder, name=name, port=port))
            command = [server, "-D", "-e", "-f", str(settings)]
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            wait_for_port(port, process)
            known.append(f"[127.0.0.1]:{port} {(folder / f'{name}.key.pub').read_text()}")
            hosts.append(f"127.0.0.1:{port}")
        (folder / "known_hosts").write_text("".join(known))
        config = _CLIENT.format(user=getpass.getuser(), folder=folder)
        (folder / "ssh_config").write_text(config)
        yield SshHosts(tuple(hosts), _write_program(folder))


def _write_program(folder: Path) -> Path:
    """Write an ``ssh`` that reads our configuration: its own it finds without asking ``HOME``."""
    programs = folder / "programs"
    programs.mkdir()
    found = shutil.which("ssh")
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {found} -F "{folder}/ssh_config" "$@"\n')
    (programs / "ssh").chmod(0o755)
    return programs


def _make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdout=sys.stderr)
