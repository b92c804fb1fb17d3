"""A cluster started by hand: start it machine by machine, list its workers, stop it."""

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
# Nodes poll once a second for a stop request, and give their processes two to end.
_STOP_SECONDS = 30.0


def start_here(
    folder: str | os.PathLike[str],
    *,
    settings: NodeSettings,
    host: str | None = None,
    encryption: str = "tls",
) -> tuple[str, bool]:
    """Start this machine's part of a cluster; it runs until `stop_all`.

    Parameters
    ----------
    folder
        Directory of the rendezvous. If a scheduler there answers, this machine joins it with a
        worker; otherwise it starts the scheduler too.
    settings
        What this machine runs.
    host
        Address at which the scheduler listens; None means loopback.
    encryption
        ``tls`` or ``none``.

    Returns
    -------
    address, joined
        The address of the scheduler, and whether it was running.

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
    """Return the address of a folder's scheduler, and its workers by name.

    Raises
    ------
    ConfigError
        If none runs there, or it does not answer.
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
        Seconds to wait for the nodes.

    Returns
    -------
    left
        Machines, with process ids, that have not ended: they may be down themselves.

    Raises
    ------
    ConfigError
        If no cluster was started there.
    """
    rendezvous = Rendezvous(folder)
    if not (Path(folder) / LOGS).is_dir():
        if sweep(Path(folder)):  # a folder of many jobs
            return []
        raise ConfigError(
            f"{folder} must be the folder of a cluster, none was started there; give the folder "
            "that zindex cluster up was given"
        )
    rendezvous.stop()
    poll_until(lambda: not rendezvous.find_running(), Backoff(POLL_SECONDS, timeout=timeout))
    return rendezvous.find_running()
