"""``zindex cluster up|status|down``, and the cluster options of builds."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from zindex.cli.options import choice, json_option
from zindex.errors import ConfigError

_folder = click.argument("folder", type=click.Path(file_okay=False), metavar="FOLDER")


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the resources of a worker."""
    for option in (
        click.option("--scratch", metavar="DIR", help="Temporary files of each machine."),
        click.option("--nice", type=click.IntRange(0, 19), default=10, show_default=True),
        click.option(
            "--memory",
            metavar="SIZE",
            help="Memory of a worker. [default: a quarter]",
        ),
        click.option(
            "--threads",
            type=click.IntRange(1),
            help="Of a worker. [default: all but two]",
        ),
    ):
        command = option(command)
    return command


@click.group()
def cluster() -> None:
    """Start, show and stop a Dask cluster by hand."""


@cluster.command()
@_folder
@click.option(
    "--host", metavar="ADDRESS", help="Address on which the scheduler listens. [default: loopback]"
)
@choice(
    "--encryption",
    ["tls", "none"],
    default="tls",
    help="With none, anyone who reaches the scheduler can run code.",
)
@click.option("--dashboard", type=int, metavar="PORT", help="Serve Dask's dashboard on loopback.")
@worker_options
def up(
    folder: str,
    host: str | None,
    encryption: str,
    dashboard: int | None,
    threads: int | None,
    memory: str | None,
    nice: int,
    scratch: str | None,
) -> None:
    """Start this machine's part of a cluster.

    The first machine starts the scheduler and a worker; further machines with the same FOLDER
    start a worker each. FOLDER must be shared by all machines; it holds address, certificate and
    logs. The processes run until "zindex cluster down".
    """
    from zindex.cluster.manual import start_here
    from zindex.cluster.settings import NodeSettings

    settings = NodeSettings(
        threads=threads,
        memory=memory,
        nice=nice,
        scratch=scratch,
        dashboard=dashboard,
        num_ranks=1,
    )
    address, joined = start_here(folder, settings=settings, host=host, encryption=encryption)
    verb = "joins the cluster" if joined else "runs a scheduler and a worker"
    click.echo(f"this machine {verb} at {address}")
    click.echo(f"build with: zindex build --cluster {address} --cluster-folder {folder} RUN.yaml")


@cluster.command()
@_folder
@json_option
def status(folder: str, as_json: bool) -> None:
    """Show the scheduler and the workers of FOLDER."""
    from zindex.cluster.manual import list_workers

    address, workers = list_workers(folder)
    if as_json:
        rows = [worker.to_json() for worker in workers]
        click.echo(json.dumps({"address": address, "workers": rows}, indent=2))
        return
    click.echo(f"scheduler {address}, {len(workers)} workers")
    for worker in workers:
        click.echo(
            f"{worker.name}: {worker.threads} threads, {worker.memory / 1e9:.1f} of "
            f"{worker.memory_limit / 1e9:.1f} GB, {worker.num_tasks} tasks, heartbeat "
            f"{worker.silence:.0f} s ago, {worker.address}"
        )


@cluster.command()
@_folder
@click.pass_context
def down(context: click.Context, folder: str) -> None:
    """End the cluster of FOLDER on all machines."""
    from zindex.cluster.manual import stop_all

    left = stop_all(folder)
    for node in left:
        click.echo(f"{node} has not ended", err=True)
    context.exit(1 if left else 0)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the cluster of a build."""
    for option in (
        click.option(
            "--remote-python",
            metavar="PATH",
            default="python3",
            show_default=True,
            help="Python of the hosts, with zindex installed.",
        ),
        click.option("--ssh", metavar="COMMAND", help="The ssh command with its options."),
        click.option("--hosts", metavar="A,B", help="For ssh: host, user@host or user@host:port."),
        click.option(
            "--cluster-host",
            metavar="ADDRESS",
            help="Address of this machine for the workers, if it is not found automatically.",
        ),
        click.option(
            "--cluster-folder",
            metavar="DIR",
            help="Shared directory for the rendezvous of the nodes. [default: in the index folder]",
        ),
        click.option(
            "--cluster",
            "cluster",
            metavar="NAME",
            help="torchrun, slurm, mpi or k8s, with this command in every process; ssh; or the "
            "address of a scheduler.",
        ),
        worker_options,
    ):
        command = option(command)
    return command


@contextmanager
def open_build_cluster(
    name: str,
    index: str,
    *,
    cluster_folder: str | None,
    cluster_host: str | None,
    hosts: str | None,
    ssh: str | None,
    remote_python: str,
    threads: int | None,
    memory: str | None,
    nice: int,
    scratch: str | None,
) -> Iterator[Any]:
    """Yield a client of the cluster of a build; None in processes that only serve as workers."""
    from zindex.cluster.launch import LAUNCHERS, open_cluster
    from zindex.cluster.settings import NodeSettings

    folder = cluster_folder
    if folder is None and name in LAUNCHERS:
        if "://" in index:
            raise ConfigError(
                f"nodes need a shared directory to meet, and the indices go to {index}; name one "
                "by --cluster-folder"
            )
        folder = os.path.join(index, "_cluster")
    with open_cluster(
        name,
        folder=folder,
        host=cluster_host,
        hosts=[] if hosts is None else hosts.split(","),
        remote_python=remote_python,
        worker=NodeSettings(
            name="worker", threads=threads, memory=memory, nice=nice, scratch=scratch
        ),
        ssh=ssh,
    ) as client:
        yield client


@contextmanager
def open_client(
    scheduler: str | None, cluster: str | None, index: str, options: dict[str, Any]
) -> Iterator[tuple[bool, Any]]:
    """Yield whether this process builds, and the client or address to build with.

    Under a launcher every node runs the command, and one process builds.
    """
    if cluster is None:
        yield True, scheduler
        return
    if scheduler is not None:
        raise ConfigError("--scheduler and --cluster both say where to build; give one of them")
    with open_build_cluster(cluster, index, **options) as client:
        yield client is not None, client
