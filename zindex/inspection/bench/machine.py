"""Describe the hardware and software of a measurement."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from zindex.io.machine import count_cpus, usable_memory

_PACKAGES = (
    *("numpy", "numba", "zarr", "dask", "distributed", "torch", "obstore", "megatron-core"),
    *("grain", "litdata", "mosaicml-streaming"),
)


def describe_machine(folder: str | os.PathLike[str] = ".") -> dict[str, Any]:
    """Return the facts of the machine that a measurement depends on.

    Parameters
    ----------
    folder
        Folder of the measured files.

    Returns
    -------
    machine
        ``processor``, ``num_processors`` (that this process may use), ``memory_nbytes``,
        ``file_system`` of the folder, ``system``.
    """
    return {
        "processor": _processor(),
        "num_processors": count_cpus(),
        "memory_nbytes": usable_memory(),
        "file_system": _file_system(Path(folder).resolve()),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that matter."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _read_lines(path: str) -> list[str]:
    """Return the lines of a file of the kernel; none on systems without it."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _processor() -> str:
    for line in _read_lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the file system type of a folder, from the longest matching mount."""
    best = ("", "unknown")
    for line in _read_lines("/proc/self/mounts"):
        _, mount, kind, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if folder.is_relative_to(mount):
            best = max(best, (mount, kind), key=lambda found: len(found[0]))
    return best[1]
