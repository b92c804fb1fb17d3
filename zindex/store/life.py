"""Signs of life of a builder, for those who wait: a store's plan is touched now and then."""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from zindex.store import files
from zindex.store.commit import PLAN_KEY
from zindex.store.objects import Place

# An object cannot be touched, and writing its plan again might bring back a removed one.
_ALIVE_KEY = "_zindex/alive"


def show_life(root: Place) -> None:
    """Say that a store is being built; one that was removed meanwhile stays removed."""
    if isinstance(root, Path):
        with suppress(OSError):
            os.utime(root / PLAN_KEY)
        return
    # Random bytes, for stores tell times in seconds only; the name of a version is of its content.
    files.write_once(root / _ALIVE_KEY, [uuid4().bytes], replace=True)


def read_life(root: Place) -> str | None:
    """Return what changes with every sign of life; None before the first."""
    return files.file_version(root / (PLAN_KEY if isinstance(root, Path) else _ALIVE_KEY))
