"""The version of Megatron Core that scripts of this process import."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# Where a checkout and a wheel have it.
_FILE = Path("core", "package_info.py")


@cache
def find_megatron_version() -> tuple[int, int] | None:
    """Return the major and minor version of the installed Megatron Core; None if there is none.

    Its file is read, because importing it takes seconds.
    """
    try:
        spec = find_spec("megatron")
    except ValueError:  # a module that a program made itself
        return None
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / _FILE
        if path.is_file():
            found = dict(re.findall(r"^(MAJOR|MINOR) = (\d+)", path.read_text(), re.MULTILINE))
            if len(found) == 2:
                return int(found["MAJOR"]), int(found["MINOR"])
    return None
