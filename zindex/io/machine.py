"""What this process may take of its machine: processors and memory."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Where the system shows control groups; another place in tests.
CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def count_cpus(cpus: set[int] | None = None) -> int:
    """Return how many processors this process may use, at least 1.

    Parameters
    ----------
    cpus
        Their numbers, by default those that this process is bound to. A quota of its control
        groups, of a container for example, and the request of its pod allow fewer.
    """
    number = len(os.sched_getaffinity(0) if cpus is None else cpus)
    quotas = [number, *_read_quotas(), *_read_variable("ZINDEX_CPUS")]
    return max(1, math.floor(min(quotas)))


def usable_memory() -> int:
    """Return the bytes of memory that the processes of this job may take on this machine.

    The least of the machine's, of the limits of all control groups around this process, of what
    Slurm gave to the job, and of the request of the pod.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for text in _read_groups("memory", "memory.max", "memory.limit_in_bytes"):
        limits.append(int(text) if text.isdigit() else limits[0])
    limits += [number << 20 for number in _read_variable("SLURM_MEM_PER_NODE")]  # 0 is all
    return min(limits + _read_variable("ZINDEX_MEMORY"))


def _read_variable(name: str) -> list[int]:
    """Return the number that a variable of the environment sets, unless it is 0 or none."""
    text = os.environ.get(name, "")
    return [int(text)] if text.isdigit() and int(text) else []


def _read_quotas() -> Iterator[float]:
    """Yield the processors that each control group around this process may use."""
    for text in _read_groups("cpu", "cpu.max", "cpu.cfs_quota_us cpu.cfs_period_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _read_groups(controller: str, name: str, name_v1: str) -> Iterator[str]:
    """Yield a value of this process's control group, and of those that contain it.

    Parameters
    ----------
    controller
        Of version 1, where each controller has a tree of its own.
    name, name_v1
        Files of version 2, and of version 1; several are joined.
    """
    files = {False: name, True: name_v1}
    for group, tree, is_v1 in _walk_groups(controller):
        # In a container the path may be that of the host: then only the root is there.
        while group.is_relative_to(tree):
            with suppress(OSError):
                yield " ".join((group / item).read_text().strip() for item in files[is_v1].split())
            group = group.parent


def find_own_groups(controller: str) -> list[Path]:
    """Return the directories of this process's control groups of a controller."""
    return [group for group, _, _ in _walk_groups(controller)]


def _walk_groups(controller: str) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the control groups of this process, their trees, and whether those are of version 1."""
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
