"""Folders for files that can be made again, in the user's cache folder or the temporary one."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_folders(name: str) -> list[Path]:
    """Return the folders of a kind of cached files, in the order in which to try them.

    Parameters
    ----------
    name
        Kind of the files.
    """
    home, caches = os.path.expanduser("~"), os.environ.get("XDG_CACHE_HOME", "")
    folders = [Path(tempfile.gettempdir(), f"zindex-{os.geteuid()}", name)]
    if os.path.isabs(caches) or os.path.isdir(home):
        base = caches if os.path.isabs(caches) else f"{home}/.cache"
        folders.insert(0, Path(base, "zindex", name))
    return folders


def private_folders(name: str) -> list[Path]:
    """Return those of `cache_folders` that only this user can write to, created if missing."""
    found = []
    for folder in cache_folders(name):
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(folder)
            if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
                found.append(folder)
    return found
