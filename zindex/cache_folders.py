"""Folders for files that can be made again, in the user's cache folder or the temporary one."""

import os
import tempfile
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
