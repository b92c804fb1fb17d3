"""Open the cluster that a build names: of a launcher, of hosts by ssh, or at an address."""

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zindex.cluster.alongside import alongside
from zindex.cluster.job import find_job
from zindex.cluster.network import LOOPBACK, address_towards, is_loopback, resolve
from zindex.cluster.rendezvous import Rendezvous
from zindex.cluster.resources import choose_scratch, open_scratch
from zindex.cluster.settings import RESOURCES, NodeSettings
from zindex.cluster.starting import (
    connect,
    open_client,
    prepare_scheduler,
    start_and_wait,
    start_node,
)
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
    hosts: Sequence[str] | None = None,
    ssh: str | None = None,
    remote_python: str = "python3",
    worker: NodeSettings | None = None,
    host: str | None = None,
    start_timeout: float = 120.0,
) -> Iterator[Any]:
    """Yield a client of the named cluster; None in processes that only run a part of it.

    Parameters
    ----------
    name
        ``torchrun``, ``slurm``, ``mpi`` or ``k8s``: this process is one of those that the launcher
        started. ``ssh``: a scheduler here and a worker on each host. Otherwise the address of a
        scheduler.
    folder
        Directory that all nodes of a launcher share, for their rendezvous; for an address that
        begins with ``tls://``, the directory of its certificate.
    hosts
        For ``ssh``: ``host``, ``user@host`` or ``user@host:port``.
    ssh
        The command that reaches hosts, with its options; None runs ssh without prompts.
    remote_python
        The Python interpreter of the hosts, with zindex installed.
    worker
        Threads, memory, nice and scratch of each worker.
    host
        Address at which workers reach this machine.
    start_timeout
        Seconds that a scheduler and one worker have to start.

    Raises
    ------
    ConfigError
        If the name is none of these, or no scheduler or worker starts in time.
    """
    worker = worker or NodeSettings(name="worker")
    if name in LAUNCHERS:
        common = {setting: getattr(worker, setting) for setting in RESOURCES}
        common |= {"start_timeout": start_timeout, "job": find_job(launcher=name)}
        with alongside(folder, host=host, **common) as cluster:
            yield cluster.client
            if cluster.client is None:
                cluster.wait_until_ended()
        return
    with ExitStack() as stack:
        if name == "ssh":
            command = shlex.split(ssh or _SSH)
            yield _open_by_ssh(stack, hosts, command, remote_python, worker, host, start_timeout)
        elif "://" in name:
            if name.startswith("tls://") and folder is None:
                raise ConfigError(
                    f"a scheduler at {name} needs its certificate, got no folder; give the folder "
                    "that its cluster was started with"
                )
            rendezvous = Rendezvous(folder or os.devnull)
            yield open_client(rendezvous, stack, address=name, default=False, seconds=start_timeout)
        else:
            raise ConfigError(
                "a cluster must be torchrun, slurm, mpi, k8s, ssh or the address of a scheduler "
                f"such as tls://10.0.0.1:8786, got {name!r}"
            )


def _open_by_ssh(
    stack: ExitStack,
    hosts: Sequence[str] | None,
    ssh: list[str],
    remote_python: str,
    worker: NodeSettings,
    host: str | None,
    start_timeout: float,
) -> Any:
    """Start a scheduler here and a worker on each host; return a client of them.

    All of them end with this process. Each host's node receives the address and the certificate
    through its ssh connection, and ends with that connection.
    """
    if not hosts:
        raise ConfigError("a cluster by ssh needs hosts, got none; name them, such as node1,node2")
    targets = [split_host(text) for text in hosts]
    if host is None:
        # The first one that is not this machine; names that only ssh knows do not resolve.
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
    folder = stack.enter_context(open_scratch(Path(choose_scratch(None))))
    rendezvous = Rendezvous(folder)
    leader = NodeSettings(
        name="leader", threads=0, start_timeout=start_timeout, num_nodes=len(hosts)
    )
    prepare_scheduler(rendezvous, leader, host)
    start_and_wait(rendezvous, leader, stack)
    packed = rendezvous.pack()
    worker = replace(worker, rendezvous=None, packed=packed, start_timeout=start_timeout)
    for number, (target, port) in enumerate(targets):
        settings = replace(
            worker, name=f"{target.rpartition('@')[2]}-{number}", num_nodes=len(hosts)
        )
        command = [*ssh, *(["-p", port] if port else []), target]
        start_node(settings, stack, [*command, f"{remote_python} -m zindex.cluster.node"])
    logger.info("a scheduler is at %s, for workers by ssh on %s", host, ", ".join(hosts))
    return connect(rendezvous, start_timeout, stack, default=False)


def split_host(text: str) -> tuple[str, str]:
    """Return the target for ssh, and the port or an empty string.

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
