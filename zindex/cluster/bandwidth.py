"""Limit the memory bandwidth of a worker, so that builds leave enough of it to training."""

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zindex.cluster.isolation import GROUP_PREFIX
from zindex.errors import ConfigError

#: Directory of Linux's resource control, for Intel and AMD processors.
RESCTRL = Path("/sys/fs/resctrl")
# Without a limit, its values are 100 percent of each core (Intel), the largest number of MiB/s
# (Intel, mounted with mba_MBps), or something between, in units of 1/8 GB/s (AMD).
_MAX_PERCENT, _UNLIMITED_MIB = 100, 2**32 - 1
_MIB, _AMD_UNIT = 1 << 20, 1e9 / 8
# Seconds per measurement.
_SECONDS = 0.1


@dataclass(frozen=True)
class Traffic:
    """Memory traffic, in bytes read and written per second."""

    #: Of as many copying threads as the worker may have.
    all_threads: float
    #: Of one copying thread, the maximum.
    copying_thread: float
    #: Of one thread that reads at random, as the most demanding kernels do.
    gathering_thread: float


@dataclass(frozen=True)
class Guard:
    """How the memory bandwidth of a worker is limited."""

    #: Threads of the worker.
    threads: int
    #: What the log says.
    sentence: str
    #: Resource control group that the worker joins; None if there is none.
    group: Path | None = None


def check_bandwidth(share: float | None) -> float | None:
    """Return a share of the memory bandwidth.

    Raises
    ------
    ConfigError
        If it is not above 0 and at most 1.
    """
    if share is not None and not 0 < share <= 1:
        raise ConfigError(
            f"bandwidth must be a share of the memory bandwidth above 0 and at most 1, got "
            f"{share}; give None for no limit"
        )
    return share


def measure_traffic(threads: int) -> Traffic:
    """Measure the memory traffic of this machine, which takes about a second."""
    # Imported late: most supervisors need no numpy.
    from zindex.io.memory_traffic import LINE_NBYTES, measure_copies, measure_gathers

    return Traffic(
        2 * measure_copies(threads, _SECONDS),
        2 * measure_copies(1, _SECONDS),
        LINE_NBYTES * measure_gathers(1, _SECONDS),
    )


@contextmanager
def guard_bandwidth(
    share: float | None,
    threads: int,
    *,
    is_fixed: bool = False,
    resctrl: Path = RESCTRL,
    measure: Callable[[int], Traffic] = measure_traffic,
) -> Iterator[Guard]:
    """Limit a worker to a share of the memory bandwidth of its machine.

    The processor throttles it, if it supports that and this user may set it. Otherwise the worker
    gets only as many threads as use the share when all of them run the most demanding kernel.

    Parameters
    ----------
    share
        Share above 0 and at most 1; None sets no limit.
    threads
        Maximum number of threads of the worker.
    is_fixed
        Whether the user has chosen this number, so that it must not be reduced.
    resctrl
        Directory of Linux's resource control.
    measure
        Measures the memory traffic of this machine, for a number of threads.

    Notes
    -----
    Source: resctrl in the kernel's documentation, "Memory bandwidth Allocation and monitoring".
    """
    if share is None:
        yield Guard(threads, "the memory bandwidth of the worker is not limited")
        return
    group = _make_group(resctrl)
    try:
        yield _choose_guard(group, share, threads, is_fixed, measure)
    finally:
        if group is not None:
            with suppress(OSError):
                group.rmdir()


def _choose_guard(
    group: Path | None,
    share: float,
    threads: int,
    is_fixed: bool,
    measure: Callable[[int], Traffic],
) -> Guard:
    """Throttle a resource control group, or else choose a number of threads."""
    cannot_reduce = is_fixed or threads == 1
    if group is not None or not cannot_reduce:
        traffic = measure(threads)
        limit = f"{share:.0%} of {_format_rate(traffic.all_threads)} memory bandwidth"
        throttles = None if group is None else _throttle(group, share, threads, traffic)
        if group is not None and throttles is not None:
            return Guard(threads, f"resctrl limits the worker to {limit}: {throttles}", group)
    if cannot_reduce:
        reason = "its number of threads is given" if is_fixed else "it has one thread"
        return Guard(
            threads,
            "the memory bandwidth of the worker is not limited: resctrl cannot be used, and "
            f"{reason}",
        )
    most = max(1, math.floor(share * traffic.all_threads / traffic.gathering_thread))
    return Guard(
        min(most, threads),
        f"the worker runs {min(most, threads)} of {threads} threads, which take up to "
        f"{_format_rate(traffic.gathering_thread)} each, because of a limit of {limit}",
    )


def _format_rate(nbytes_per_second: float) -> str:
    return f"{nbytes_per_second / 1e9:.1f} GB/s"


def _make_group(resctrl: Path) -> Path | None:
    """Create the resource control group of this supervisor; None if that is not possible.

    Groups of killed supervisors are removed: processors support only a few.
    """
    for left in resctrl.glob(f"{GROUP_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(GROUP_PREFIX)).exists():
            with suppress(OSError):
                left.rmdir()
    group = resctrl / f"{GROUP_PREFIX}{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return None
    return group


def _throttle(group: Path, share: float, threads: int, traffic: Traffic) -> str | None:
    """Throttle a group, and return its new limits; None if that is not possible."""
    try:
        (line,) = re.findall(r"^\s*MB:(.*)$", (group / "schemata").read_text(), re.MULTILINE)
        current = {domain: int(value) for domain, value in _split(line)}
        info = group.parent / "info" / "MB"
        least, step = (
            int((info / name).read_text()) for name in ("min_bandwidth", "bandwidth_gran")
        )
        wanted = share * traffic.all_threads
        highest = max(current.values())
        if highest <= _MAX_PERCENT:
            # A share of each core, not of all together.
            value = min(_MAX_PERCENT, _MAX_PERCENT * wanted / (threads * traffic.copying_thread))
        else:
            unit = _MIB if highest >= _UNLIMITED_MIB else _AMD_UNIT
            value = wanted / len(current) / unit
        limit = least + max(0, math.floor((value - least) / step)) * step
        limits = "MB:" + ";".join(f"{domain}={limit}" for domain in current)
        (group / "schemata").write_text(f"{limits}\n")
    except (OSError, ValueError):
        return None
    return limits


def _split(line: str) -> Iterator[tuple[str, str]]:
    """Split the values of cache domains, as in ``0=100;1=100``."""
    for part in line.split(";"):
        domain, _, value = part.strip().partition("=")
        yield domain, value
