"""Limit how much a worker slows down training: priorities, control groups and throttling."""

import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

from zindex.cluster.settings import IDLE
from zindex.io.machine import find_own_groups

# Linux: the ioprio_set system call, and the idle I/O class.
_SET_IO_PRIORITY = {"x86_64": 251, "aarch64": 30}
_IO_IDLE = 3 << 13
_PCI_DRIVERS = Path("/sys/bus/pci/drivers")
_GPU_DRIVERS = ("nvidia", "amdgpu")
#: Prefix of the names of control groups.
GROUP_PREFIX = "zindex-"
# The minimum weight of a control group, by cgroup version.
_WEIGHTS = {"cpu.idle": "1", "cpu.weight": "1", "cpu.shares": "2"}
# Throttle period in seconds, and the time after which a share that is not renewed expires,
# because training may have ended.
_PERIOD, _EXPIRES_AFTER = 0.1, 120.0
#: Minimum share: Dask would treat a worker that never runs as lost.
LEAST_SHARE = 0.05
# Steps per round, rounds until the next comparison with a paused worker, and the rise of the
# median step that counts as a slowdown.
_STEPS, _ROUNDS, _RISE = 8, 16, 0.005


def lower_priority(nice: int, groups: Sequence[str] = ()) -> None:
    """Lower the priority of this process.

    Parameters
    ----------
    nice
        Niceness. `IDLE` also sets the idle scheduling and I/O classes.
    groups
        Files that list the processes of control groups, which this process joins. It must have
        one thread, because resource control lists threads.
    """
    for group in groups:
        with suppress(OSError):
            Path(group).write_text(str(os.getpid()))
    os.nice(nice)
    if os.getsid(0) == os.getppid():  # the session of its supervisor
        # With autogrouping, sessions share the CPUs equally, regardless of the niceness of their
        # processes.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
    if nice < IDLE:
        return
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = _SET_IO_PRIORITY.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IO_IDLE)


def find_gpu_cpus() -> set[int]:
    """Return the CPUs of the NUMA nodes that GPUs are attached to."""
    found = set[int]()
    for driver in _GPU_DRIVERS:
        for path in (_PCI_DRIVERS / driver).glob("*:*/local_cpulist"):
            with suppress(OSError, ValueError):
                found |= parse_cpus(path.read_text())
    return found


def parse_cpus(text: str) -> set[int]:
    """Parse a CPU list in the format of Linux.

    Examples
    --------
    >>> sorted(parse_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    found = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@contextmanager
def least_weight_group(name: str) -> Iterator[Path | None]:
    """Yield a new control group with minimum CPU weight, inside that of this process.

    None if this process may not create one. Groups of killed supervisors are removed.

    Parameters
    ----------
    name
        Name of the group, unique on this machine.
    """
    group = None
    with ExitStack() as stack:
        for parent in find_own_groups("cpu"):
            for left in parent.glob(f"{GROUP_PREFIX}*"):
                # One that is held, or still has processes, stays.
                with suppress(OSError), _held(left):
                    left.rmdir()
            group = _make_group(parent / f"{GROUP_PREFIX}{name}")
            if group is not None:
                with suppress(OSError):  # without locks, it may be removed before it has processes
                    stack.enter_context(_held(group))
                break
        try:
            yield group
        finally:
            if group is not None:
                with suppress(OSError):
                    group.rmdir()


@contextmanager
def _held(group: Path) -> Iterator[None]:
    """Hold a group, so that no other supervisor removes it; OSError if one holds it."""
    descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _make_group(group: Path) -> Path | None:
    """Create a group with minimum weight, or return None if that is not permitted."""
    try:
        group.mkdir()
    except OSError:
        return None
    has_weight = False
    for file, value in _WEIGHTS.items():
        with suppress(OSError):
            if (group / file).exists():
                (group / file).write_text(value)
                has_weight = True
    if not has_weight:
        with suppress(OSError):
            group.rmdir()
        return None
    return group


class Throttle:
    """Limit a process to a share of the time by stopping it in every period.

    The thread exists only while the share is below 1.
    """

    def __init__(self) -> None:
        self._share, self._expires = 1.0, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def share(self) -> float:
        """Share of the time that the process may run, from `LEAST_SHARE` to 1."""
        return self._share

    @share.setter
    def share(self, value: float) -> None:
        with self._changed:
            self._share = min(1.0, max(LEAST_SHARE, value))
            self._expires = time.monotonic() + _EXPIRES_AFTER
            if self._share < 1 and self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Start throttling this process."""
        with self._changed:
            self._process = process

    def _work(self) -> None:
        with self._changed:
            while (share := self._share) < 1:
                if time.monotonic() > self._expires:
                    self._share = 1.0
                    break
                self._send(signal.SIGSTOP)
                self._changed.wait(_PERIOD * (1 - share))
                self._send(signal.SIGCONT)
                self._changed.wait(_PERIOD * share)
            self._thread = None

    def _send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class StepFeedback:
    """Choose the worker's share of the time from its effect on training steps.

    Rounds of 8 steps with the worker almost paused measure the baseline; other rounds are
    compared with it. The share is halved if the median step slows down by more than its own
    variation explains, and otherwise grows slowly.

    Attributes
    ----------
    share
        Current share, from `LEAST_SHARE` to 1.
    """

    def __init__(self) -> None:
        self.share = LEAST_SHARE
        self._next = 1.0  # the share for rounds that do not measure the baseline
        self._limit = 0.0
        self._last: float | None = None
        self._steps: list[float] = []
        self._num_rounds = 0

    def step(self, now: float | None = None) -> None:
        """Record the end of a step, at ``now`` in seconds."""
        now = time.monotonic() if now is None else now
        last, self._last = self._last, now
        if last is None:
            return
        self._steps.append(now - last)
        if len(self._steps) <= _STEPS:
            return
        # Skip the first step, which partly belongs to the previous round.
        steps = self._steps[1:]
        self._steps = []
        typical = median(steps)
        if self._num_rounds == 0:
            deviation = 1.4826 * median(abs(step - typical) for step in steps)
            # Two standard errors of the medians, for normal values.
            error = 2 * 1.25 * deviation * (2 / len(steps)) ** 0.5
            self._limit = typical + max(_RISE * typical, error)
        elif typical > self._limit:
            self._next = max(LEAST_SHARE, self._next / 2)
        else:
            self._next = min(1.0, self._next + 0.1)
        self._num_rounds = (self._num_rounds + 1) % _ROUNDS
        self.share = LEAST_SHARE if self._num_rounds == 0 else self._next
