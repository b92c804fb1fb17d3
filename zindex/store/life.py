"""Signs of life of a builder, for those who wait: a store's plan is touched now and then.

Whose plan is known only after much work says before that the work has begun.
"""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from zindex.store import files
from zindex.store.commit import PLAN_KEY
from zindex.store.objects import Place

# An object cannot be touched, and writing its plan again might bring back a removed one.
_ALIVE_KEY = "_zindex/alive"


def show_first_life(root: Place) -> None:
    """Say that work has begun on a store that has no plan yet."""
    if isinstance(root, Path):
        alive = root / _ALIVE_KEY
        with suppress(OSError):  # who cannot write here is told so by what follows
            alive.parent.mkdir(parents=True, exist_ok=True)
            alive.touch()
    show_life(root)


def end_first_life(root: Place) -> None:
    """Leave signs of life to the plan, which is there now."""
    if isinstance(root, Path):
        files.remove_file(root / _ALIVE_KEY)


def show_life(root: Place) -> None:
    """Say that a store is being built; one that was removed meanwhile stays removed."""
    if isinstance(root, Path):
        for key in (PLAN_KEY, _ALIVE_KEY):
            with suppress(OSError):
                os.utime(root / key)
        return
    # Random bytes, for stores tell times in seconds only; the name of a version is of its content.
    files.write_once(root / _ALIVE_KEY, [uuid4().bytes], replace=True)


def read_life(root: Place) -> str | None:
    """Return what changes with every sign of life; None before the first."""
    keys = (PLAN_KEY, _ALIVE_KEY) if isinstance(root, Path) else (_ALIVE_KEY,)
    signs = [files.file_version(root / key) for key in keys]
    return " ".join(map(str, signs)) if any(signs) else None
