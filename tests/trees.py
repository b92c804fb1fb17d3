"""What the files below a folder are and hold."""

import os
from contextlib import suppress
from pathlib import Path


def all_files(folder: Path, *, unfinished: bool = True) -> dict[str, bytes]:
    """Return every file by its relative path, with or without what killed writers have left."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [path for path in paths if unfinished or path.suffix != ".partial"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def shard_stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of every shard that has its final name."""
    paths = [path for path in folder.rglob("c/**/*") if path.is_file() and not path.suffix]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def num_descriptors(folder: Path) -> int:
    """Return how many files below a folder this process holds open."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith(f"{folder}/") for link in links)
