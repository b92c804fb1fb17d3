"""Processors and memory that this process may use on its machine."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zindex.io.system_calls import own_cpus

# Location of control groups; injected by tests.
CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def count_cpus(cpus: set[int] | None = None) -> int:
    """Return how many processors this process may use, at least 1.

    Parameters
    ----------
    cpus
        Their numbers, by default the CPU affinity of this process. A quota of its control groups,
        for example of a container, and the request of its pod allow fewer.
    """
    number = len(own_cpus() if cpus is None else cpus)
    quotas = [number, *_read_quotas(), *_read_variable("ZINDEX_CPUS")]
    return max(1, math.floor(min(quotas)))


def usable_memory() -> int:
    """Return the bytes of memory that the processes of this job may use on this machine.

    The minimum of the machine's memory, the limits of all control groups of this process, the
    allocation by Slurm, and the request of the pod.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for text in _read_groups("memory", "memory.max", "memory.limit_in_bytes"):
        limits.append(int(text) if text.isdigit() else limits[0])
    limits += [number << 20 for number in _read_variable("SLURM_MEM_PER_NODE")]  # 0 is all
    return min(limits + _read_variable("ZINDEX_MEMORY"))


def _read_variable(name: str) -> list[int]:
    """Return the number in an environment variable, unless it is 0 or unset."""
    text = os.environ.get(name, "")
    return [int(text)] if text.isdigit() and int(text) else []


def _read_quotas() -> Iterator[float]:
    """Yield the number of processors that each control group of this process may use."""
    for text in _read_groups("cpu", "cpu.max", "cpu.cfs_quota_us cpu.cfs_period_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _read_groups(controller: str, name: str, name_v1: str) -> Iterator[str]:
    """Yield a value of this process's control group and of its ancestors.

    Parameters
    ----------
    controller
        Controller of version 1, where each has its own hierarchy.
    name, name_v1
        Files of version 2, and of version 1; several are joined.
    """
    files = {False: name, True: name_v1}
    for group, tree, is_v1 in _walk_groups(controller):
        # In a container the path may be that of the host; then only the root exists.
        while group.is_relative_to(tree):
            with suppress(OSError):
                yield " ".join((group / item).read_text().strip() for item in files[is_v1].split())
            group = group.parent


def find_own_groups(controller: str) -> list[Path]:
    """Return the directories of this process's control groups of a controller."""
    return [group for group, _, _ in _walk_groups(controller)]


def _walk_groups(controller: str) -> Iterator[tuple[Path, Path, bool]]:
    """Yield this process's control groups, their hierarchies, and whether of version 1."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = CGROUPS / (controllers and controller)
        yield tree / path.lstrip("/"), tree, bool(controllers)
