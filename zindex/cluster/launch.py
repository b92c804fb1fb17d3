"""The cluster that a build names: that of a launcher, of hosts by ssh, or one at an address."""

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zindex.cluster.alongside import alongside
from zindex.cluster.certificates import make_certificate
from zindex.cluster.job import find_job
from zindex.cluster.meeting import Meeting
from zindex.cluster.network import LOOPBACK, address_towards, is_loopback, resolve
from zindex.cluster.node_settings import NodeSettings
from zindex.cluster.resources import choose_scratch
from zindex.cluster.scratch import open_scratch
from zindex.cluster.starting import check_node, connect, open_client, start_node
from zindex.errors import ConfigError

logger = logging.getLogger("zindex.cluster")

#: Launchers whose processes all run the same command.
LAUNCHERS = ("torchrun", "slurm", "mpi", "k8s")
_SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15"


@contextmanager
def open_cluster(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    hosts: Sequence[str] = (),
    ssh: str | None = None,
    remote_python: str = "python3",
    worker: NodeSettings | None = None,
    host: str | None = None,
    start_timeout: float = 120.0,
) -> Iterator[Any]:
    """Give a client of the cluster that a name stands for; None in processes that only help.

    Parameters
    ----------
    name
        ``torchrun``, ``slurm``, ``mpi`` or ``k8s``: this process is one of those that the launcher
        started. ``ssh``: a scheduler here and a worker on each host. Otherwise the address of a
        scheduler.
    folder
        Directory that all nodes share, where those of a launcher meet; for an address that begins
        with ``tls://``, where its certificate lies.
    hosts
        For ``ssh``: ``host``, ``user@host`` or ``user@host:port``.
    ssh
        The command that reaches hosts, with its options; None asks no questions.
    remote_python
        The Python of the hosts, which has zindex.
    worker
        Threads, memory, nice and scratch of each worker.
    host
        The address of this machine that workers reach.
    start_timeout
        Seconds until a scheduler and one worker must be there.

    Raises
    ------
    ConfigError
        If the name is none of these, or no scheduler or worker comes in time.
    """
    worker = worker or NodeSettings(None, "worker")
    if name in LAUNCHERS:
        with alongside(
            folder,
            threads=worker.threads,
            memory=worker.memory,
            nice=worker.nice,
            scratch=worker.scratch,
            host=host,
            start_timeout=start_timeout,
            job=find_job(launcher=name),
        ) as cluster:
            yield cluster.client
            if cluster.client is None:
                cluster.wait_until_ended()
    elif name == "ssh":
        with _by_ssh(
            hosts, shlex.split(ssh or _SSH), remote_python, worker, host, start_timeout
        ) as client:
            yield client
    elif "://" in name:
        if name.startswith("tls://") and folder is None:
            raise ConfigError(
                f"a scheduler at {name} needs its certificate, got no folder; give the folder that "
                "its cluster was started with"
            )
        with ExitStack() as stack:
            meeting = Meeting(folder or os.devnull)
            yield open_client(meeting, stack, address=name, default=False, seconds=start_timeout)
    else:
        raise ConfigError(
            f"a cluster must be torchrun, slurm, mpi, k8s, ssh or the address of a scheduler such "
            f"as tls://10.0.0.1:8786, got {name!r}"
        )


@contextmanager
def _by_ssh(
    hosts: Sequence[str],
    ssh: list[str],
    remote_python: str,
    worker: NodeSettings,
    host: str | None,
    start_timeout: float,
) -> Iterator[Any]:
    """Start a scheduler here and a worker on each host; nothing of them outlives this process.

    A host's node ends when its connection does, and gets address and certificate through it.
    """
    if not hosts:
        raise ConfigError("a cluster by ssh needs hosts, got none; name them, such as node1,node2")
    targets = [split_host(text) for text in hosts]
    if host is None:
        # The first one that is not this machine; names that only ssh knows say nothing.
        addresses = []
        for target, _ in targets:
            with suppress(ConfigError):
                addresses.append(resolve(target.rpartition("@")[2]))
        if not addresses:
            raise ConfigError(
                f"one of the hosts {', '.join(hosts)} must have an address, none has; say by "
                "--cluster-host under which address they reach this machine"
            )
        outside = [address for address in addresses if not is_loopback(address)]
        host = address_towards(outside[0]) if outside else LOOPBACK
    with ExitStack() as stack:
        folder = stack.enter_context(open_scratch(Path(choose_scratch(None))))
        meeting = Meeting(folder)
        meeting.create()
        make_certificate().write(folder)
        leader = NodeSettings(
            str(folder), "leader", threads=0, scheduler_host=host, num_nodes=len(hosts)
        )
        node = start_node(leader, stack)
        meeting.wait(start_timeout, check_node(node, meeting))
        packed = meeting.pack()
        for number, (target, port) in enumerate(targets):
            settings = replace(
                worker,
                meeting=None,
                name=f"{target.rpartition('@')[2]}-{number}",
                packed=packed,
                patience=start_timeout,
                num_nodes=len(hosts),
            )
            command = [*ssh, *(["-p", port] if port else []), target]
            start_node(settings, stack, [*command, f"{remote_python} -m zindex.cluster.node"])
        logger.info("a scheduler is at %s, for workers by ssh on %s", host, ", ".join(hosts))
        yield connect(meeting, start_timeout, stack, default=False)


def split_host(text: str) -> tuple[str, str]:
    """Return where ssh is to go, and the port, or nothing.

    Examples
    --------
    >>> split_host("root@node1:2222")
    ('root@node1', '2222')
    """
    target, colon, port = text.partition(":")
    if not target or target.startswith("-") or (colon and not port.isdigit()):
        raise ConfigError(
            f"a host must be like node1, user@node1 or user@node1:2222, got {text!r}; correct it"
        )
    return target, port
