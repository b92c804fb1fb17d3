"""A cluster by hand: started on one machine after the other, looked at, and ended."""

import os
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zindex.cluster.certificates import make_certificate
from zindex.cluster.meeting import LOGS, Meeting
from zindex.cluster.network import LOOPBACK, warn_if_open
from zindex.cluster.node_settings import NodeSettings
from zindex.cluster.starting import NODE_COMMAND, check_node, open_client, send_settings
from zindex.errors import ConfigError

_ANSWER_SECONDS = 5.0
# Nodes look once a second whether they are to end, and give their processes two.
_DOWN_SECONDS = 30.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class WorkerState:
    """One worker as its scheduler sees it."""

    name: str
    address: str
    threads: int
    #: Bytes that it holds, and that it may take.
    memory: int
    memory_limit: int
    #: Tasks that it has to do.
    num_tasks: int
    #: Seconds since it was last heard of.
    silence: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)


def start_here(
    folder: str | os.PathLike[str],
    *,
    settings: NodeSettings,
    host: str | None = None,
    encryption: str = "tls",
    start_timeout: float = 60.0,
) -> tuple[str, bool]:
    """Start this machine's part of a cluster; it runs until `stop_all`.

    Parameters
    ----------
    folder
        Where the cluster meets. If one runs there that answers, this machine joins it with a
        worker; otherwise it starts the scheduler too.
    settings
        What this machine runs.
    host
        The address that the scheduler listens at; None means loopback.
    encryption
        ``tls`` or ``none``.
    start_timeout
        Seconds that the scheduler has to start.

    Returns
    -------
    address, joined
        The scheduler's, and whether it was there.

    Raises
    ------
    ConfigError
        If the folder cannot be used, or no scheduler starts in time.
    """
    meeting = Meeting(folder)
    facts = meeting.read()
    joined = facts is not None and _answers(facts["address"])
    if joined:
        meeting.open()
    else:
        meeting.create()
        settings.scheduler_host = host or LOOPBACK
        if encryption == "tls":
            make_certificate().write(meeting.folder)
        warn_if_open(settings.scheduler_host, encryption)
    settings.meeting, settings.lifeline = str(meeting.folder.resolve()), False
    log = meeting.folder / LOGS / f"node-{os.uname().nodename}.log"
    with log.open("ab") as stream:
        node = subprocess.Popen(
            NODE_COMMAND,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    send_settings(node, settings)
    assert node.stdin is not None
    node.stdin.close()
    address: str = meeting.wait(start_timeout, check_node(node, meeting))["address"]
    node.returncode = 0  # it goes on by itself: nobody here waits for its end
    return address, joined


def _answers(address: str) -> bool:
    """Return whether something listens at an address."""
    host, _, port = address.partition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def list_workers(folder: str | os.PathLike[str]) -> tuple[str, list[WorkerState]]:
    """Return the address of a folder's scheduler, and its workers by name.

    Raises
    ------
    ConfigError
        If none runs there, or it does not answer.
    """
    with ExitStack() as stack:
        client = open_client(Meeting(folder), stack, default=False, seconds=_ANSWER_SECONDS)
        info = client.scheduler_info(n_workers=-1)
        tasks = client.processing()
        now = time.time()
        workers = [
            WorkerState(
                str(worker["name"]),
                address,
                worker["nthreads"],
                worker["metrics"].get("memory", 0),
                worker["memory_limit"] or 0,
                len(tasks.get(address, ())),
                max(0.0, now - worker["last_seen"]),
            )
            for address, worker in info["workers"].items()
        ]
        return info["address"], sorted(workers, key=lambda worker: worker.name)


def stop_all(folder: str | os.PathLike[str]) -> list[str]:
    """End the cluster of a folder on all machines.

    Returns
    -------
    left
        Machines, with process ids, that have not ended: they may be down themselves.

    Raises
    ------
    ConfigError
        If no cluster was started there.
    """
    meeting = Meeting(folder)
    if not (Path(folder) / LOGS).is_dir():
        raise ConfigError(
            f"{folder} must be the folder of a cluster, none was started there; give the folder "
            "that zindex cluster up was given"
        )
    meeting.stop()
    deadline = time.monotonic() + _DOWN_SECONDS
    while (left := _living(meeting)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return left


def _living(meeting: Meeting) -> list[str]:
    """Return the nodes that have not ended, without those of this machine that were killed."""
    living = []
    for name in meeting.nodes:
        machine, _, process = name.rpartition("-")
        if machine == os.uname().nodename:
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(process), 0)
                living.append(name)
        else:
            living.append(name)
    return living
