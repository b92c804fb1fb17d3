"""Choose CPUs, memory and scratch directories for the worker of a node."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zindex.cluster.isolation import find_gpu_cpus
from zindex.errors import ConfigError
from zindex.io.machine import count_cpus, usable_memory
from zindex.io.system_errors import reason_of

# Reserved per training process, for a loader worker and the threads of GPU libraries.
_CPUS_PER_RANK = 2
# Training pins memory and caches pages, and workers hold chunks rather than whole corpora.
_MEMORY_SHARE = 0.25
# An idle worker uses 0.3 GB, and pauses near its limit.
_LEAST_MEMORY = 1 << 29
# Prefix of scratch directories, and name of the lock file in each.
_PREFIX, _LOCK = "zindex-node-", "lock"
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def usable_cpus() -> set[int]:
    """Return the CPUs that the job may use on this machine.

    Launchers bind each rank to some of them; the launcher process itself may use all.
    """
    cpus = os.sched_getaffinity(0)
    try:
        return cpus | os.sched_getaffinity(os.getppid())
    except OSError:
        return cpus


def choose_cpus(threads: int) -> set[int]:
    """Choose the CPUs of a worker: away from the NUMA nodes of GPUs, if enough others exist."""
    cpus = usable_cpus()
    away = cpus - find_gpu_cpus()
    return away if count_cpus(away) >= threads and away else cpus


def choose_threads(threads: int | None, num_ranks: int) -> int:
    """Choose the number of threads of a node's worker.

    Parameters
    ----------
    threads
        The number; None leaves two CPUs to each training process, and, if other CPUs exist, those
        on the NUMA nodes of GPUs.
    num_ranks
        Training processes on this machine.
    """
    if threads is None:
        cpus = usable_cpus()
        away = cpus - find_gpu_cpus()
        left = count_cpus(cpus) - _CPUS_PER_RANK * num_ranks
        return max(1, min(left, count_cpus(away)) if away else left)
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}; give None to let zindex say")
    return threads


def choose_memory(memory: int | str | float | None) -> int:
    """Choose the memory limit of a node's worker, in bytes.

    Parameters
    ----------
    memory
        Bytes, a string such as ``"16GiB"``, a fraction of the machine's memory below 1.0, or None
        for a quarter of it, at least 512 MiB.

    Raises
    ------
    ConfigError
        If the value is invalid or below 512 MiB.
    """
    if memory is None:
        return max(_LEAST_MEMORY, int(_MEMORY_SHARE * usable_memory()))
    if isinstance(memory, float) and 0 < memory <= 1:
        return int(memory * usable_memory())
    nbytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if not isinstance(nbytes, int) or nbytes < _LEAST_MEMORY:
        raise ConfigError(
            f"memory must be at least 512 MiB in bytes, a text such as '16GiB', or a share of the "
            f"machine's such as 0.25, got {memory!r}"
        )
    return nbytes


def parse_bytes(text: str) -> int | None:
    """Parse a size in bytes; None if the text is not a size.

    Examples
    --------
    >>> parse_bytes("1.5GiB")
    1610612736
    """
    value = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = _UNITS.get(value[-1:], 1)
    try:
        return int(float(value[:-1] if unit > 1 else value) * unit)
    except ValueError:
        return None


def choose_scratch(scratch: str | os.PathLike[str] | None) -> str:
    """Return a local directory for temporary files."""
    folder = Path(scratch or os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"scratch (--scratch) must be a directory of this machine that can be written, got "
            f"{folder}: {reason_of(error)}"
        ) from error
    return str(folder)


@contextmanager
def open_scratch(base: Path) -> Iterator[Path]:
    """Yield a private directory, after removing those that killed nodes of this user left."""
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    # The system releases the lock when this process ends for any reason. Children do not inherit
    # Python's file descriptors, so they do not hold it.
    with (folder / f"{_LOCK}.new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # it never exists unlocked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove the directories of dead nodes, which may contain the key of their run."""
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():
                continue
            with (folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
