"""``zindex cluster up|status|down``, and the cluster options of builds."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from zindex.cli import options
from zindex.errors import ConfigError
from zindex.wording import count_noun

_folder = click.argument("folder", type=click.Path(file_okay=False), metavar="FOLDER")
# Resources of a worker.
_worker_options = options.join(
    options.value("--threads", type=click.IntRange(1), help="Per worker. [default: all but two]"),
    options.value("--memory", metavar="SIZE", help="Per worker. [default: a quarter]"),
    options.value(
        "--nice", type=click.IntRange(0, 19), default=19, help="Niceness of workers; 19 is lowest."
    ),
    options.value("--scratch", metavar="DIR", help="Local folder for temporary files."),
)
#: Where a build runs; the arguments of `open_client`.
cluster_options = options.join(
    options.scheduler,
    _worker_options,
    options.value(
        "--cluster",
        metavar="NAME",
        help="torchrun, slurm, mpi or k8s, where every process runs this command; ssh; or the "
        "address of a scheduler.",
    ),
    options.value(
        "--cluster-folder",
        "folder",
        metavar="DIR",
        help="Shared directory for the rendezvous of the nodes. [default: in the index folder]",
    ),
    options.value(
        "--cluster-host",
        "host",
        metavar="ADDRESS",
        help="Address of this machine for the workers, if it is not detected.",
    ),
    options.parsed(
        "--hosts",
        parse=lambda text, flag: text.split(","),
        metavar="A,B",
        help="For ssh, each as host, user@host or user@host:port.",
    ),
    options.value("--ssh", metavar="COMMAND", help="The ssh command with its options."),
    options.value(
        "--remote-python",
        metavar="PATH",
        default="python3",
        help="Python on the hosts, with zindex installed.",
    ),
)


def _parse_adapt(text: str, flag: str) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes in ``MIN:MAX`` or ``MAX``."""
    least, _, most = text.rpartition(":")
    try:
        bounds = int(least or 1), int(most)
    except ValueError:
        bounds = 0, 0
    if not 1 <= bounds[0] <= bounds[1]:
        raise ConfigError(f"{flag} must be MAX or MIN:MAX nodes, such as 1:16, got {text!r}")
    return bounds


#: Nodes that a build requests.
adapt_options = options.join(
    options.parsed(
        "--adapt",
        parse=_parse_adapt,
        metavar="MIN:MAX",
        help="With --cluster slurm, outside of srun: ask for as many nodes as the forecast of the "
        "build makes use of, and hand them back at its end.",
    ),
    options.parsed(
        "--slurm-options",
        parse=lambda text, flag: shlex.split(text),
        metavar="TEXT",
        help="Options of sbatch for --adapt, such as '--partition=cpu'. [default: --exclusive]",
    ),
)


@click.group()
def cluster() -> None:
    """Start, inspect and stop a Dask cluster manually."""


@cluster.command()
@_folder
@options.value(
    "--host", metavar="ADDRESS", help="Address on which the scheduler listens. [default: loopback]"
)
@options.first_choice(
    "--encryption", ["tls", "none"], "With none, anyone who can connect can execute code."
)
@options.value("--dashboard", type=int, metavar="PORT", help="Serve Dask's dashboard on loopback.")
@_worker_options
def up(folder: str, host: str | None, encryption: str, **settings: Any) -> None:
    """Start this machine's part of a cluster.

    The first machine starts the scheduler and a worker; further machines with the same FOLDER
    start a worker each. FOLDER must be shared by all machines; it holds address, certificate and
    logs. The processes run until "zindex cluster down".
    """
    from zindex.cluster.manual import start_here
    from zindex.cluster.settings import NodeSettings

    node = NodeSettings(num_ranks=1, **settings)
    address, joined = start_here(folder, settings=node, host=host, encryption=encryption)
    verb = "joins the cluster" if joined else "runs a scheduler and a worker"
    click.echo(f"this machine {verb} at {address}")
    click.echo(f"build with: zindex build --cluster {address} --cluster-folder {folder} RUN.yaml")


@cluster.command()
@_folder
@options.summary()
def status(folder: str) -> tuple[dict[str, Any], str]:
    """Show the scheduler and the workers of FOLDER."""
    from zindex.cluster.manual import list_workers

    address, workers = list_workers(folder)
    lines = [f"scheduler {address}, {count_noun(len(workers), 'worker')}"]
    lines += [
        f"{worker.name}: {count_noun(worker.threads, 'thread')}, {worker.memory / 1e9:.1f} of "
        f"{worker.memory_limit / 1e9:.1f} GB, {count_noun(worker.num_tasks, 'task')}, heartbeat "
        f"{worker.silence:.0f} s ago, {worker.address}"
        for worker in workers
    ]
    facts = {"address": address, "workers": list(map(asdict, workers))}
    return facts, "\n".join(lines)


@cluster.command()
@_folder
@click.pass_context
def down(context: click.Context, folder: str) -> None:
    """Stop the cluster of FOLDER on all machines."""
    from zindex.cluster.manual import stop_all

    left = stop_all(folder)
    for node in left:
        click.echo(f"{node} has not stopped", err=True)
    context.exit(1 if left else 0)


@contextmanager
def open_client(
    index: str,
    *,
    client: str | None,
    cluster: str | None,
    folder: str | None,
    num_nodes: int | None = None,
    slurm_options: Sequence[str] | None = None,
    **settings: Any,
) -> Iterator[tuple[bool, Any]]:
    """Yield whether this process builds, and the client or address to build with.

    Under a launcher every node runs the command, and one process builds.
    """
    if num_nodes is not None:
        settings |= {"num_nodes": num_nodes, "slurm_options": slurm_options or ()}
    elif slurm_options is not None:
        raise ConfigError("--slurm-options are those of --adapt, which is missing; give both")
    if cluster is None:
        if num_nodes is not None:
            raise ConfigError("--adapt asks Slurm for nodes; give --cluster slurm, too")
        yield True, client
        return
    if client is not None:
        raise ConfigError("--scheduler and --cluster both say where to build; give one of them")
    from zindex.cluster.open_cluster import LAUNCHERS, open_cluster

    if folder is None and cluster in LAUNCHERS:
        if "://" in index:
            raise ConfigError(
                f"nodes need a shared directory to meet, and the indices go to {index}; name one "
                "by --cluster-folder"
            )
        folder = os.path.join(index, "_cluster")
    with open_cluster(cluster, folder=folder, **settings) as connected:
        yield connected is not None, connected
