"""Open the cluster for a build: from a launcher, on hosts by ssh, or at an address."""

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zindex.cluster import starting
from zindex.cluster.adapt import SlurmNodes
from zindex.cluster.certificates import read_certificate
from zindex.cluster.job import find_job
from zindex.cluster.launch import alongside
from zindex.cluster.network import LOOPBACK, address_towards, is_loopback, own_address, resolve
from zindex.cluster.rendezvous import POLL_SECONDS, Rendezvous
from zindex.cluster.resources import choose_scratch, open_scratch
from zindex.cluster.settings import NodeSettings
from zindex.errors import ConfigError
from zindex.io.backoff import Backoff, poll_until

logger = logging.getLogger("zindex.cluster")

#: Launchers whose processes all run the same command.
LAUNCHERS = ("torchrun", "slurm", "mpi", "k8s")
# Seconds between polls of the Slurm queue.
_QUEUE_SECONDS = 10.0
_SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15"


@contextmanager
def open_cluster(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    hosts: Sequence[str] | None = None,
    ssh: str | None = None,
    remote_python: str = "python3",
    host: str | None = None,
    start_timeout: float = 120.0,
    num_nodes: int | None = None,
    slurm_options: Sequence[str] = (),
    **resources: Any,
) -> Iterator[Any]:
    """Yield a client of the named cluster, or None in processes that only run part of it.

    Parameters
    ----------
    name
        ``torchrun``, ``slurm``, ``mpi`` or ``k8s``: this process is one of those started by the
        launcher. ``ssh``: run a scheduler here and a worker on each host. Else the address of a
        scheduler.
    folder
        Directory shared by all nodes of a launcher, for their rendezvous; for an address that
        begins with ``tls://``, the directory of its certificate.
    hosts
        For ``ssh``: ``host``, ``user@host`` or ``user@host:port``.
    ssh
        Command to reach the hosts, with its options; None runs ssh without prompts.
    remote_python
        Python interpreter on the hosts, with zindex installed.
    host
        Address at which workers can reach this machine.
    start_timeout
        Timeout for starting the scheduler and one worker, in seconds; 30 for a given address.
    num_nodes, slurm_options
        For ``slurm``, outside of a job step: start a scheduler here, and request this many nodes
        with these options of ``sbatch``; by default ``--exclusive``.
    resources
        ``threads``, ``memory``, ``nice`` and ``scratch`` of each worker, as in `alongside`.

    Raises
    ------
    ConfigError
        If the name is none of these, or no scheduler or worker starts in time.
    """
    if num_nodes is not None:
        if name != "slurm" or folder is None:
            raise ConfigError(
                f"only Slurm is asked for nodes, with a folder that they share, got {name!r} and "
                f"{folder!r}; leave --adapt out, or give --cluster slurm"
            )
        node = NodeSettings(start_timeout=start_timeout, num_nodes=num_nodes, **resources)
        with ExitStack() as stack:
            yield _open_by_slurm(stack, folder, node, host, slurm_options)
        return
    if name in LAUNCHERS:
        resources |= {"start_timeout": start_timeout, "job": find_job(launcher=name)}
        with alongside(folder, host=host, bandwidth=None, **resources) as cluster:  # no training
            yield cluster.client
            if cluster.client is None:
                cluster.wait_until_ended()
        return
    with ExitStack() as stack:
        if name == "ssh":
            command = shlex.split(ssh or _SSH)
            worker = NodeSettings(start_timeout=start_timeout, **resources)
            yield _open_by_ssh(stack, hosts, command, remote_python, worker, host)
        elif "://" in name:
            if name.startswith("tls://") and folder is None:
                raise ConfigError(
                    f"a scheduler at {name} needs its certificate, got no folder; give the folder "
                    "that its cluster was started with"
                )
            rendezvous = Rendezvous(folder or os.devnull)
            if name.startswith("tls://"):
                read_certificate(rendezvous.folder)
            seconds = min(start_timeout, starting.ANSWER_SECONDS)
            yield starting.open_client(
                rendezvous, stack, address=name, default=False, seconds=seconds
            )
        else:
            raise ConfigError(
                "a cluster must be torchrun, slurm, mpi, k8s, ssh or the address of a scheduler "
                f"such as tls://10.0.0.1:8786, got {name!r}"
            )


def _open_by_slurm(
    stack: ExitStack,
    folder: str | os.PathLike[str],
    node: NodeSettings,
    host: str | None,
    options: Sequence[str],
) -> Any:
    """Start a scheduler here, request worker nodes from Slurm, and return a client.

    The nodes are released when the stack is closed, and end if this process dies.
    """
    name = f"{os.uname().nodename}-{os.getpid()}"
    rendezvous = Rendezvous.of_job(folder, f"adapt-{name}")
    leader = replace(node, name=f"leader-{name}", threads=0)
    starting.prepare_scheduler(rendezvous, leader, host or own_address(None))
    stack.callback(rendezvous.stop)
    starting.start_and_wait(rendezvous, leader, stack)
    nodes = SlurmNodes(rendezvous, node, options)
    stack.callback(nodes.hand_back)
    nodes.request(node.num_nodes)
    client = starting.open_client(rendezvous, stack, default=False)
    # Jobs may queue for hours; any other job error ends the wait.
    while not poll_until(client.nthreads, Backoff(POLL_SECONDS, timeout=_QUEUE_SECONDS)):
        nodes.check()
    return client


def _open_by_ssh(
    stack: ExitStack,
    hosts: Sequence[str] | None,
    ssh: list[str],
    remote_python: str,
    worker: NodeSettings,
    host: str | None,
) -> Any:
    """Start a scheduler here and a worker on each host, and return a client.

    All of them end with this process. Each host's node receives the address and the certificate
    over its ssh connection, and ends when the connection closes.
    """
    if not hosts:
        raise ConfigError("a cluster by ssh needs hosts, got none; name them, such as node1,node2")
    targets = [split_host(text) for text in hosts]
    if host is None:
        # Use the first host that is not this machine; aliases known only to ssh do not resolve.
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
    timeout, num_nodes = worker.start_timeout, len(hosts)
    leader = NodeSettings(name="leader", threads=0, start_timeout=timeout, num_nodes=num_nodes)
    starting.prepare_scheduler(rendezvous, leader, host)
    starting.start_and_wait(rendezvous, leader, stack)
    worker = replace(worker, packed=rendezvous.pack(), num_nodes=num_nodes)
    for number, (target, port) in enumerate(targets):
        settings = replace(worker, name=f"{target.rpartition('@')[2]}-{number}")
        command = [*ssh, *(["-p", port] if port else []), target]
        starting.start_node(settings, stack, [*command, f"{remote_python} -m zindex.cluster.node"])
    logger.info("a scheduler is at %s, for workers by ssh on %s", host, ", ".join(hosts))
    return starting.connect(rendezvous, timeout, stack, default=False)


def split_host(text: str) -> tuple[str, str]:
    """Split an ssh target into host and port; the port may be empty.

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
