"""Start and end the process of a node, and connect to its scheduler."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from zindex.cluster.certificates import make_certificate, make_security
from zindex.cluster.network import warn_if_open
from zindex.cluster.rendezvous import POLL_SECONDS, Rendezvous
from zindex.cluster.resources import usable_cpus
from zindex.cluster.settings import RETIRE_SECONDS, NodeSettings
from zindex.errors import ConfigError
from zindex.execution.reconnecting_client import connect_client
from zindex.io.backoff import Backoff, poll_until

logger = logging.getLogger("zindex.cluster")

#: Command that runs a node; its settings are sent as one line of JSON.
NODE_COMMAND = (sys.executable, "-m", "zindex.cluster.node")
# Initial and maximum restart backoff of a node, in seconds.
_RESTART_SECONDS = 0.2, 30.0
# Seconds that a node's processes have to end.
_END_SECONDS = 15.0
#: Response timeout of a scheduler, in seconds.
ANSWER_SECONDS = 30.0

Node = subprocess.Popen[bytes]


def start_node(
    settings: NodeSettings,
    stack: ExitStack | None,
    command: Sequence[str] = NODE_COMMAND,
    log: Path | None = None,
) -> Node:
    """Start the process of a node.

    A local node gets the CPUs of the whole job, even if this rank is bound to some of them.

    Parameters
    ----------
    settings
        Settings of the node.
    stack
        Ends the node when it is closed or this process ends; None starts a daemon.
    command
        Command to start; it reads the settings from standard input.
    log
        Log file for its output; None means the output of this process.
    """
    cpus = usable_cpus()
    settings.is_tied_to_pipe = stack is not None
    with ExitStack() as opened:
        output = None if log is None else opened.enter_context(log.open("ab"))
        # This process receives the terminal's interrupts, and then ends the node.
        node = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    with suppress(OSError):
        os.sched_setaffinity(node.pid, cpus)
    if stack is not None:
        stack.push(partial(_leave_node, node, settings.scheduler_host is None))
    assert node.stdin is not None
    with suppress(BrokenPipeError):
        node.stdin.write(settings.to_json().encode() + b"\n")
        node.stdin.flush()
        if stack is None:
            node.stdin.close()
    return node


class NodeKeeper:
    """Restart a node whenever its process is killed, and send it commands.

    Parameters
    ----------
    node
        Process from `start_node`.
    settings
        Settings of the node.
    """

    def __init__(self, node: Node, settings: NodeSettings) -> None:
        self._node = node
        self._settings = settings

    def keep(self, ended: threading.Event) -> None:
        """Keep the node running until it ends by itself or the event is set."""
        backoff = Backoff(*_RESTART_SECONDS)
        with ExitStack() as stack:
            while not ended.wait(POLL_SECONDS) and self._node.poll() != 0:
                if self._node.returncode is None:
                    continue
                logger.warning(
                    "the process that looks after this node's part of the cluster ended with %d; "
                    "it is started again",
                    self._node.returncode,
                )
                if not ended.wait(backoff.next_pause()):
                    self._node = start_node(self._settings, stack)

    def close(self) -> None:
        """End the node before this process is terminated; its worker may transfer its results."""
        _end_node(self._node, retires=self._settings.scheduler_host is None)

    def set_share(self, share: float) -> None:
        """Set the share of the time that the node's worker may run, up to 1."""
        assert self._node.stdin is not None
        # A node that is gone, or does not read, must not block training.
        with suppress(OSError, ValueError):
            file = self._node.stdin.fileno()
            os.set_blocking(file, False)
            os.write(file, bytes([round(255 * share)]))


def start_and_wait(
    rendezvous: Rendezvous, settings: NodeSettings, stack: ExitStack | None, log: Path | None = None
) -> dict[str, Any]:
    """Start a node with `start_node`, and return the facts that the scheduler publishes.

    Raises
    ------
    ConfigError
        If the node ends, or no scheduler is published in time.
    """
    node = start_node(settings, stack, log=log)
    facts = wait_for_scheduler(rendezvous, settings, node)
    if stack is None:
        node.returncode = 0  # a daemon: this process does not wait for it
    return facts


def wait_for_scheduler(
    rendezvous: Rendezvous, settings: NodeSettings, node: Node
) -> dict[str, Any]:
    """Return the facts that a node's scheduler publishes; raises like `start_and_wait`."""

    def check() -> None:
        if node.poll() is not None:
            raise ConfigError(
                f"the process that looks after this node's part of the cluster must run, it ended "
                f"with {node.returncode}{rendezvous.last_log_line('scheduler')}; see standard error"
            )

    return rendezvous.wait(settings.start_timeout, check)


def prepare_scheduler(
    rendezvous: Rendezvous, settings: NodeSettings, host: str, encryption: str = "tls"
) -> None:
    """Prepare a rendezvous for a new cluster, and set the node to start the scheduler.

    Parameters
    ----------
    rendezvous, settings
        Rendezvous of the cluster, and settings of the node.
    host
        Address at which the scheduler listens.
    encryption
        ``tls`` creates a certificate; ``none`` warns if other machines can reach the scheduler.
    """
    rendezvous.create()
    if encryption == "tls":
        make_certificate().write(rendezvous.folder)
    warn_if_open(host, encryption)
    settings.rendezvous, settings.scheduler_host = str(rendezvous.folder.resolve()), host


def _leave_node(node: Node, retires: bool, kind: object, error: object, _: object) -> None:
    """End a node at the end of its block; it may retire if SIGTERM was raised there."""
    is_terminated = isinstance(error, KeyboardInterrupt) and signal.SIGTERM in error.args
    _end_node(node, retires=retires and is_terminated)


def _end_node(node: Node, *, retires: bool) -> None:
    """Close the pipe that keeps a node alive, and wait until it ends.

    With ``retires`` its worker first transfers its results to others; the scheduler continues.
    """
    assert node.stdin is not None
    if retires:
        node.terminate()
    else:
        with suppress(OSError):
            node.stdin.close()
    try:
        node.wait(_END_SECONDS + (RETIRE_SECONDS if retires else 0))
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
    with suppress(OSError):
        node.stdin.close()


def connect(
    rendezvous: Rendezvous, seconds: float, stack: ExitStack, *, default: bool = True
) -> Any:
    """Connect to the scheduler of a rendezvous once it has a worker.

    Raises
    ------
    ConfigError
        If no worker connects in time.
    """
    client = open_client(rendezvous, stack, default=default)
    if not poll_until(client.nthreads, Backoff(POLL_SECONDS, timeout=seconds)):
        raise ConfigError(
            f"a worker must have come to {client.scheduler.address} within {seconds:g} s, none "
            f"has{rendezvous.last_log_line('worker')}; see the logs in {rendezvous.folder}"
        )
    return client


def open_client(
    rendezvous: Rendezvous,
    stack: ExitStack,
    *,
    default: bool = True,
    address: str | None = None,
    seconds: float = ANSWER_SECONDS,
) -> Any:
    """Connect to the scheduler of a rendezvous, or at an address.

    Raises
    ------
    ConfigError
        If the scheduler does not respond.
    """
    if address is None:
        facts = rendezvous.read()
        if facts is None:
            raise ConfigError(
                f"{rendezvous.folder} must be the folder of a running cluster, none is there; "
                "start one with zindex cluster up"
            )
        address = facts["address"]
    security = make_security(rendezvous.tls_folder)
    client = connect_client(
        address, security=security, timeout=seconds, name="zindex", set_as_default=default
    )
    # The default cluster of a process runs alongside a job, which must survive without it.
    client.is_dispensable = default
    return stack.enter_context(client)
