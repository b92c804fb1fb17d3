"""Finding the processes of a cluster, and waiting until they are gone."""

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

_DEADLINE = 200.0
# Names of forks, of which the command line is not their own; see tests/forked.py.
_ROLES = {"node": "node", "member schedule": "scheduler", "member worker": "worker"}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds, and fail if it never does."""
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {_DEADLINE:g} s"
        time.sleep(0.05)


def find_role(process: psutil.Process) -> str | None:
    """Return what a process of a cluster is: node, scheduler or worker."""
    line = process.cmdline()
    if "zindex.cluster.member" in line:
        return line[-1]
    return "node" if "zindex.cluster.node" in line else _ROLES.get(process.name())


def find_nodes() -> set[psutil.Process]:
    """Return the running nodes that this process started."""
    found = set()
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if find_role(process) == "node" and not is_gone(process):
                found.add(process)
    return found


def find_members(root: int | None = None) -> dict[str, psutil.Process]:
    """Return the node, scheduler and worker among the descendants of a process, by role."""
    found = {}
    for process in psutil.Process(root or os.getpid()).children(recursive=True):
        with suppress(psutil.Error):
            if role := find_role(process):
                found[role] = process
    return found


def is_gone(process: psutil.Process) -> bool:
    """Return whether a process has ended."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: dict[str, psutil.Process]) -> None:
    """Wait until processes have ended."""
    for role, process in processes.items():
        wait_for(lambda process=process: is_gone(process), f"the {role} ends")
