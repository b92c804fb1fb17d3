"""Rendezvous of a cluster's processes: a private directory with its address and certificate.

On one machine it is temporary. Across machines it is on shared storage, or each node has its own
copy and receives the content through torch's store or a pipe.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from zindex.cluster.certificates import PAIR, Certificate, read_certificate
from zindex.cluster.job import JobPlace
from zindex.errors import ConfigError
from zindex.io.backoff import Backoff, poll_until
from zindex.io.local import local_path
from zindex.io.system_errors import reason_of

_ADDRESS, _STOP, LOGS, _NODES = "cluster.json", "stop", "logs", "nodes"
#: Seconds between polls for a process that starts or ends.
POLL_SECONDS = 0.1
# Seconds without an update after which a node is lost; nodes touch their file every 30 s.
_SILENT_SECONDS = 600.0
# Line of a log in which the supervisor says that a process has ended.
_ENDED = re.compile(r" zindex: the \S+ ended with ")
# Key in torch's store.
_STORE_KEY = "rendezvous"


class Rendezvous:
    """The directory of one cluster.

    Parameters
    ----------
    folder
        The directory; only its owner may enter it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = local_path(folder, "the folder of a cluster")

    @classmethod
    def of_job(cls, folder: str | os.PathLike[str], job_id: str) -> "Rendezvous":
        """Return the directory of a job, below one that several jobs may share."""
        shared = local_path(folder, "the folder of clusters")
        return cls(shared / re.sub(r"[^\w.-]+", "-", job_id)[:100])

    def create(self) -> None:
        """Create the directory, and remove files of earlier attempts except logs; see `open`.

        Also removes the keys of other, killed jobs below the same folder.
        """
        self.open()
        self._unlink(_ADDRESS, _STOP, *PAIR)
        sweep(self.folder.parent)

    def open(self) -> None:
        """Create the directory if it does not exist.

        Raises
        ------
        ConfigError
            If it cannot be created, or belongs to another user.
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
                f"{self.folder} must be a directory that can be made and written, the system says: "
                f"{reason_of(error)}; give a folder on storage that all nodes share"
            ) from error

    @property
    def tls_folder(self) -> Path | None:
        """Directory of the certificate, if there is one."""
        try:
            read_certificate(self.folder)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise
        return self.folder

    def publish(self, facts: dict[str, Any]) -> None:
        """Publish the scheduler address, and other facts that all nodes need."""
        partial = self.folder / f"{_ADDRESS}.{os.getpid()}.partial"
        partial.write_text(json.dumps(facts))
        partial.replace(self.folder / _ADDRESS)

    def read(self) -> dict[str, Any] | None:
        """Return the published facts, or None."""
        try:
            facts = json.loads((self.folder / _ADDRESS).read_text())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) and "address" in facts else None

    def wait(self, seconds: float, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait until the scheduler is published, and return its facts.

        Parameters
        ----------
        seconds
            Timeout.
        check
            Called at each poll; may raise.

        Raises
        ------
        ConfigError
            If nothing is published in time.
        """

        def poll() -> dict[str, Any] | None:
            facts = self.read()
            if facts is None:
                check()
            return facts

        facts = poll_until(poll, Backoff(POLL_SECONDS, timeout=seconds))
        if facts is None:
            raise ConfigError(
                f"a scheduler must have started in {self.folder} within {seconds:g} s, none "
                f"has{self.last_log_line('scheduler')}; see the logs there"
            )
        return facts

    def last_log_line(self, role: str) -> str:
        """Return the last line of the newest log of a role, formatted as the end of a sentence.

        If a process has ended, it is the last line of that, not of the one that was started next.
        """
        try:
            logs = sorted(
                (self.folder / LOGS).glob(f"*{role}*.log"), key=lambda path: path.stat().st_mtime
            )
            lines = logs[-1].read_text(errors="replace").split("\n") if logs else []
        except OSError:
            return ""
        # The supervisor logs when a process has ended.
        ends = [number for number, line in enumerate(lines) if _ENDED.search(line)]
        said = [line.strip() for line in lines[: ends[-1] if ends else None]]
        last = next((line for line in reversed(said) if line and " zindex: " not in line), "")
        return f" (its last words: {last[:300]})" if last else ""

    @property
    def nodes(self) -> list[str]:
        """Running nodes of the cluster, as machine name and process id."""
        try:
            return sorted(path.name for path in (self.folder / _NODES).iterdir())
        except OSError:
            return []

    @contextmanager
    def register_node(self) -> Iterator[Path]:
        """List this process in `nodes` during the block; it must touch the yielded file."""
        entry = self.folder / _NODES / f"{os.uname().nodename}-{os.getpid()}"
        entry.touch()
        try:
            yield entry
        finally:
            with suppress(OSError):
                entry.unlink()

    def find_running(self) -> list[str]:
        """Return the running nodes, excluding those of this machine that were killed."""
        running = []
        for name in self.nodes:
            machine, _, process = name.rpartition("-")
            with suppress(ProcessLookupError, ValueError):
                if machine == os.uname().nodename:
                    os.kill(int(process), 0)
                running.append(name)
        return running

    def sweep(self) -> bool:
        """Remove address and certificate if no node is alive; return whether they were removed."""
        probe = self.folder / f"clock.{os.getpid()}.partial"
        try:
            probe.touch()
            now = probe.stat().st_mtime  # file system time
            probe.unlink()
            # A cluster that is starting has a key before it has nodes.
            signs = [_NODES + "/" + name for name in self.find_running()]
            signs = signs if self.nodes else [PAIR[1]]
            times = [(self.folder / name).stat().st_mtime for name in signs]
        except OSError:
            return False
        is_dead = all(now - time >= _SILENT_SECONDS for time in times)
        if is_dead:
            self.remove_key(self.find_key())
        return is_dead

    def remove_key(self, identity: tuple[int, int] | None) -> None:
        """Remove address and certificate, unless a later cluster has replaced them."""
        if identity is not None and self.find_key() == identity:
            self._unlink(_ADDRESS, *PAIR)

    def _unlink(self, *names: str) -> None:
        """Remove files of the directory; a missing directory is ignored."""
        for name in names:
            with suppress(OSError):
                (self.folder / name).unlink()

    def stop(self) -> None:
        """Ask all processes of the cluster to stop, on every node that shares the directory.

        Removes the address and the certificate, and keeps the logs.
        """
        with suppress(OSError):  # the directory is gone, and so are its readers
            (self.folder / _STOP).touch()
        self._unlink(_ADDRESS, *PAIR)

    def find_stop(self) -> tuple[int, int] | None:
        """Return the identity of the stop request, or None if there is none."""
        return self._identify(_STOP)

    def find_key(self) -> tuple[int, int] | None:
        """Return the identity of the certificate's key, or None if there is none."""
        return self._identify(PAIR[1])

    def _identify(self, name: str) -> tuple[int, int] | None:
        """Return an identity that changes when a file is replaced."""
        try:
            status = (self.folder / name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def pack(self) -> dict[str, Any]:
        """Return the content that a node needs if it does not share the directory."""
        facts = self.read()
        assert facts is not None
        folder = self.tls_folder
        pair = None if folder is None else read_certificate(folder)
        return {"facts": facts, "tls": None if pair is None else [pair.certificate, pair.key]}

    def unpack(self, packed: dict[str, Any]) -> None:
        """Write content packed by another node into this directory."""
        self.create()
        if packed["tls"] is not None:
            Certificate(*packed["tls"]).write(self.folder)
        self.publish(packed["facts"])


def sweep(folder: Path) -> list[Path]:
    """Remove the keys of killed clusters below a shared folder; return their directories.

    Nodes of this machine are checked by process id, others count as lost after ten minutes.
    """
    try:
        found = sorted(path.parent for path in folder.glob(f"*/{PAIR[1]}"))
    except OSError:
        return []
    return [path for path in found if Rendezvous(path).sweep()]


# --- torch's key-value store -------------------------------------------------------------------
#
# Every torch job has one. It is as safe as the job itself: access to the store implies access to
# the ranks.


def send_by_store(job: JobPlace, packed: dict[str, Any], seconds: float) -> None:
    """Send the result of `Rendezvous.pack` to all nodes."""
    _open_store(job, seconds).set(_STORE_KEY, json.dumps(packed))


def receive_by_store(job: JobPlace, seconds: float) -> dict[str, Any]:
    """Wait for the content that rank 0 sends to all nodes.

    Raises
    ------
    ConfigError
        If it does not arrive in time.
    """
    store = _open_store(job, seconds)
    try:
        packed: dict[str, Any] = json.loads(store.get(_STORE_KEY))
    except RuntimeError as error:
        raise ConfigError(
            f"rank 0 must give the cluster's address within {seconds:g} s, it has not: {error}; "
            "see its log"
        ) from error
    return packed


def _open_store(job: JobPlace, seconds: float) -> Any:
    """Connect to the store that the ranks of this job share."""
    import torch

    distributed: Any = torch.distributed
    prefix = f"zindex-cluster/{job.job_id}"
    if distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        return distributed.PrefixStore(prefix, store)
    # torchrun's agent serves the store before any rank starts; otherwise rank 0 does, once
    # torch.distributed is initialized.
    if job.master is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ConfigError(
            "nodes can meet in torch's store under torchrun or once torch.distributed is "
            "initialized, this process has neither; give folder=, a directory that all nodes share"
        )
    try:
        store = distributed.TCPStore(
            *job.master, is_master=False, timeout=timedelta(seconds=seconds)
        )
    except RuntimeError as error:
        raise ConfigError(
            f"torch's store must answer at {job.master[0]}:{job.master[1]}, got {error}; give "
            "folder=, a directory that all nodes share"
        ) from error
    return distributed.PrefixStore(prefix, store)
