"""The processes of one run, wherever they were started: found by a mark in their environment."""

import os
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ROOT / "cluster"

_MARK = "ZINDEX_TEST_RUN"
# Launchers look at these, and the tests may themselves run under one.
_FOREIGN = ("SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


@dataclass(frozen=True)
class Listener:
    """A port that a process listens at."""

    command: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.host).is_loopback


@dataclass
class Watched:
    """One run and all its processes."""

    #: Where its machines keep temporary files.
    scratch: Path
    #: Programs found before all others.
    programs: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return an environment whose processes are found again, wherever they end up."""
        places = [str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        own = {
            _MARK: self.mark,
            "PATH": ":".join(places),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.scratch),
        }
        clean = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        return clean | own | variables

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Return the living processes of the run whose command line has this part."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                marked = process.environ().get(_MARK) == self.mark
                if marked and part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def listeners(self, part: str = "") -> list[Listener]:
        """Return where these processes listen."""
        found = []
        for process in self.processes(part):
            with suppress(psutil.Error):
                command = " ".join(process.cmdline()[:4])
                found += [
                    Listener(command, *connection.laddr)
                    for connection in process.net_connections("tcp")
                    if connection.status == psutil.CONN_LISTEN
                ]
        return found

    def check_gone(self, seconds: float = 100) -> None:
        """Fail unless all processes of the run end soon by themselves."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            if time.monotonic() > deadline:
                lines = []
                for process in left:
                    with suppress(psutil.Error):
                        lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
                raise AssertionError("processes are left:\n" + "\n".join(lines))
            time.sleep(0.05)

    def check_end(self) -> None:
        """Fail unless the processes of the run end and leave nothing."""
        self.check_gone()
        assert not list(self.scratch.glob("zindex*"))

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()


@contextmanager
def running(
    command: Sequence[str], environment: dict[str, str], log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a command beside the block; it is killed if it outlives it."""
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(path: Path, log: Path, seconds: float = 200) -> None:
    """Return once a file is there; fail with what the run has said if it does not come."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        said = log.read_text() if log.exists() else ""
        if "Traceback" in said or time.monotonic() > deadline:
            raise AssertionError(f"{path} must have been written\n{said}")
        time.sleep(0.05)


def check_tls(listener: Listener, certificate: Path) -> None:
    """Fail unless a port speaks TLS by the run's certificate, and asks for one in turn."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(certificate)
    where = (listener.host, listener.port)
    with (
        socket.create_connection(where, timeout=60) as plain,
        trusting.wrap_socket(plain) as connection,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        # The handshake may seem to succeed: the other side's refusal comes with its first word.
        connection.recv(1)
