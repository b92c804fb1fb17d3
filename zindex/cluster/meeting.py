"""Where the processes of one cluster meet: a private directory with its address and certificate.

On one machine it is temporary. Across machines it lies on storage that all nodes share, or each
node has its own and gets the content through torch's store or a pipe.
"""

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zindex.cluster.certificates import PAIR, Certificate, read_certificate
from zindex.errors import ConfigError

_ADDRESS, _STOP, LOGS, _NODES = "cluster.json", "stop", "logs", "nodes"
_POLL_SECONDS = 0.1


class Meeting:
    """The directory of one cluster.

    Parameters
    ----------
    folder
        The directory; nobody but its owner may enter it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @classmethod
    def of_job(cls, folder: str | os.PathLike[str], job_id: str) -> "Meeting":
        """Return the directory of a job below one that several jobs may use."""
        return cls(Path(folder) / re.sub(r"[^\w.-]+", "-", job_id)[:100])

    def create(self) -> None:
        """Make the directory, empty but for the logs of earlier attempts; errors as of `open`."""
        self.open()
        for name in (_ADDRESS, _STOP):
            (self.folder / name).unlink(missing_ok=True)

    def open(self) -> None:
        """Make the directory if it is not there.

        Raises
        ------
        ConfigError
            If it cannot be made, or belongs to somebody else.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
            if status.st_uid != os.geteuid():
                raise ConfigError(
                    f"{self.folder} must belong to the user who runs the job, it belongs to user "
                    f"{status.st_uid}; give another folder"
                )
            if stat.S_IMODE(status.st_mode) & 0o077:
                self.folder.chmod(0o700)
            for name in (LOGS, _NODES):
                (self.folder / name).mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.folder} must be a directory that can be made and written, got {error}; "
                "give a folder on storage that all nodes share"
            ) from error

    @property
    def tls_folder(self) -> Path | None:
        """Where the certificate lies, if there is one."""
        try:
            read_certificate(self.folder)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise
        return self.folder

    def publish(self, facts: dict[str, Any]) -> None:
        """Let others find the scheduler: its address, and what else they must know."""
        partial = self.folder / f"{_ADDRESS}.{os.getpid()}.partial"
        partial.write_text(json.dumps(facts))
        partial.replace(self.folder / _ADDRESS)

    def read(self) -> dict[str, Any] | None:
        """Return what was published, or None."""
        try:
            facts = json.loads((self.folder / _ADDRESS).read_text())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) and "address" in facts else None

    def wait(self, seconds: float, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Return what is published, once it is.

        Parameters
        ----------
        seconds
            How long to wait at most.
        check
            Called again and again; may raise.

        Raises
        ------
        ConfigError
            If nothing is published in time.
        """
        deadline = time.monotonic() + seconds
        while (facts := self.read()) is None:
            check()
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"a scheduler must have started in {self.folder} within {seconds:g} s, none "
                    f"has{self.last_words('scheduler')}; see the logs there"
                )
            time.sleep(_POLL_SECONDS)
        return facts

    def last_words(self, role: str) -> str:
        """Return the last line of the newest log of a role, as the end of a sentence."""
        try:
            logs = sorted(
                (self.folder / LOGS).glob(f"*{role}*.log"), key=lambda path: path.stat().st_mtime
            )
            lines = logs[-1].read_text(errors="replace").split("\n") if logs else []
        except OSError:
            return ""
        # The supervisor only says that it starts the process again.
        words = [line.strip() for line in lines if line.strip() and " zindex: " not in line]
        last = words[-1] if words else ""
        return f" (its last words: {last[:300]})" if last else ""

    @property
    def nodes(self) -> list[str]:
        """The machines, with process ids, that keep parts of the cluster running."""
        try:
            return sorted(path.name for path in (self.folder / _NODES).iterdir())
        except OSError:
            return []

    @contextmanager
    def attend(self) -> Iterator[None]:
        """Be one of `nodes` while the block runs."""
        place = self.folder / _NODES / f"{os.uname().nodename}-{os.getpid()}"
        place.touch()
        try:
            yield
        finally:
            with suppress(OSError):
                place.unlink()

    def stop(self) -> None:
        """Let every process of the cluster end, on all nodes that share the directory."""
        with suppress(OSError):  # nobody is left to read it
            (self.folder / _STOP).touch()
        self.forget()

    def forget(self) -> None:
        """Remove the address and the certificate; the logs stay."""
        for name in (_ADDRESS, *PAIR):
            with suppress(OSError):
                (self.folder / name).unlink()

    def find_stop(self) -> tuple[int, int] | None:
        """Return what tells one wish to end from another, or None if there is none."""
        try:
            status = (self.folder / _STOP).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def pack(self) -> dict[str, Any]:
        """Return all that a node needs that does not share the directory."""
        facts = self.read()
        assert facts is not None
        folder = self.tls_folder
        pair = None if folder is None else read_certificate(folder)
        return {"facts": facts, "tls": None if pair is None else [pair.certificate, pair.key]}

    def unpack(self, packed: dict[str, Any]) -> None:
        """Write what another node's directory holds into this one."""
        self.create()
        if packed["tls"] is not None:
            Certificate(*packed["tls"]).write(self.folder)
        self.publish(packed["facts"])
