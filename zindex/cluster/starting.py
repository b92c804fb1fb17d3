"""Starting and ending the process that looks after a node, and reaching its scheduler."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from zindex.building.patient_client import connect_client
from zindex.cluster.certificates import make_security
from zindex.cluster.meeting import Meeting
from zindex.cluster.node_settings import NodeSettings
from zindex.cluster.resources import usable_cpus
from zindex.errors import ConfigError

#: The command that runs a node; its settings come as one line of JSON.
NODE_COMMAND = (sys.executable, "-m", "zindex.cluster.node")
# Seconds that a node's processes have to end.
_END_SECONDS = 15.0
# Seconds that a scheduler has to answer.
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.1

Node = subprocess.Popen[bytes]


def start_node(
    settings: NodeSettings, stack: ExitStack, command: Sequence[str] = NODE_COMMAND, **how: Any
) -> Node:
    """Start the process that looks after a node; it ends with the stack, or with this process.

    A local one is handed the processors of the whole job, where this rank is bound to some.
    """
    cpus = usable_cpus()
    # An interrupt from the terminal is for this process, which then ends the node.
    node = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **how)
    with suppress(OSError):
        os.sched_setaffinity(node.pid, cpus)
    stack.callback(_end_node, node)
    send_settings(node, settings)
    return node


def send_settings(node: Node, settings: NodeSettings) -> None:
    """Give a node its settings; the pipe stays open."""
    assert node.stdin is not None
    with suppress(BrokenPipeError):
        node.stdin.write(settings.to_json().encode() + b"\n")
        node.stdin.flush()


def _end_node(node: Node) -> None:
    """Close the pipe that keeps a node alive, and see that it ends."""
    assert node.stdin is not None
    with suppress(OSError):
        node.stdin.close()
    try:
        node.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def check_node(node: Node, meeting: Meeting) -> Callable[[], None]:
    """Return what notices that a node's process ended before it did its work."""

    def check() -> None:
        if node.poll() is not None:
            raise ConfigError(
                f"the process that looks after this node's part of the cluster must run, it ended "
                f"with {node.returncode}{meeting.last_words('scheduler')}; see standard error"
            )

    return check


def connect(meeting: Meeting, seconds: float, stack: ExitStack, *, default: bool = True) -> Any:
    """Return a client of a meeting's scheduler, once it has a worker.

    Raises
    ------
    ConfigError
        If none comes in time.
    """
    client = open_client(meeting, stack, default=default)
    deadline = time.monotonic() + seconds
    while not client.nthreads():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"a worker must have come to {client.scheduler.address} within {seconds:g} s, none "
                f"has{meeting.last_words('worker')}; see the logs in {meeting.folder}"
            )
        time.sleep(_POLL_SECONDS)
    return client


def open_client(
    meeting: Meeting,
    stack: ExitStack,
    *,
    default: bool = True,
    address: str | None = None,
    seconds: float = _ANSWER_SECONDS,
) -> Any:
    """Return a client of the scheduler of a meeting, or of one at an address.

    Raises
    ------
    ConfigError
        If it does not answer.
    """
    if address is None:
        facts = meeting.read()
        if facts is None:
            raise ConfigError(
                f"{meeting.folder} must be the folder of a running cluster, none is there; start "
                "one with zindex cluster up"
            )
        address = facts["address"]
    client = connect_client(
        address,
        security=make_security(meeting.tls_folder),
        timeout=seconds,
        name="zindex",
        set_as_default=default,
    )
    return stack.enter_context(client)
