"""Start a cluster manually, machine by machine; list its workers and stop it."""

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from zindex.cluster.network import LOOPBACK
from zindex.cluster.rendezvous import LOGS, POLL_SECONDS, Rendezvous, sweep
from zindex.cluster.settings import NodeSettings
from zindex.cluster.starting import open_client, prepare_scheduler, start_and_wait
from zindex.cluster.watchdog import ClusterView, WorkerView, view_cluster
from zindex.errors import ConfigError
from zindex.io.backoff import Backoff, poll_until

_ANSWER_SECONDS = 5.0
# Nodes poll for a stop request every second, and give their processes two seconds to end.
_STOP_SECONDS = 30.0


def start_here(
    folder: str | os.PathLike[str],
    *,
    settings: NodeSettings,
    host: str | None = None,
    encryption: str = "tls",
) -> tuple[str, bool]:
    """Start this machine's part of a cluster, which runs until `stop_all`.

    Parameters
    ----------
    folder
        Directory of the rendezvous. If its scheduler responds, this machine joins with a worker;
        otherwise it also starts the scheduler.
    settings
        Settings of this machine's node.
    host
        Address at which the scheduler listens; None means loopback.
    encryption
        ``tls`` or ``none``.

    Returns
    -------
    address, joined
        The address of the scheduler, and whether it was already running.

    Raises
    ------
    ConfigError
        If the folder cannot be used, or no scheduler starts in time.
    """
    rendezvous = Rendezvous(folder)
    facts = rendezvous.read()
    joined = facts is not None and _answers(facts["address"])
    if joined:
        rendezvous.open()
        settings.rendezvous = str(rendezvous.folder.resolve())
        # A client of a network file system may still see that of an earlier cluster.
        settings.earlier_stop = rendezvous.find_stop()
    else:
        prepare_scheduler(rendezvous, settings, host or LOOPBACK, encryption)
    log = rendezvous.folder / LOGS / f"node-{os.uname().nodename}.log"
    address: str = start_and_wait(rendezvous, settings, None, log)["address"]
    return address, joined


def _answers(address: str) -> bool:
    """Return whether a server listens at an address."""
    host, _, port = address.partition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def list_workers(folder: str | os.PathLike[str]) -> tuple[str, list[WorkerView]]:
    """Return the scheduler address of a folder, and its workers by name.

    Raises
    ------
    ConfigError
        If no scheduler runs there, or it does not respond.
    """
    with ExitStack() as stack:
        client = open_client(Rendezvous(folder), stack, default=False)
        view: ClusterView = client.run_on_scheduler(view_cluster)
        workers = sorted(view.workers, key=lambda worker: worker.name)
        return client.scheduler.address, workers


def stop_all(folder: str | os.PathLike[str], timeout: float = _STOP_SECONDS) -> list[str]:
    """Stop the cluster of a folder on all machines.

    Parameters
    ----------
    folder
        Directory of the rendezvous.
    timeout
        Timeout in seconds.

    Returns
    -------
    left
        Machines, with process ids, that have not stopped; they may be down.

    Raises
    ------
    ConfigError
        If the folder has no cluster.
    """
    rendezvous = Rendezvous(folder)
    if not (Path(folder) / LOGS).is_dir():
        if sweep(Path(folder)):  # a folder shared by several jobs
            return []
        raise ConfigError(
            f"{folder} must be the folder of a cluster, none was started there; give the folder "
            "that zindex cluster up was given"
        )
    rendezvous.stop()
    poll_until(lambda: not rendezvous.find_running(), Backoff(POLL_SECONDS, timeout=timeout))
    return rendezvous.find_running()
