"""The version of Megatron Core that scripts of this process import, and the rules that it has."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

Rules = TypeVar("Rules", bound=str)
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


def find_rules(first_versions: Mapping[Rules, tuple[int, int]]) -> Rules:
    """Return the rules that the installed Megatron Core has, or the latest ones if there is none.

    Parameters
    ----------
    first_versions
        The rules of a dataset, oldest first, and the major and minor version since which each
        applies; (0, 0) for the oldest.
    """
    version = find_megatron_version()
    applicable = (
        rules for rules, first in first_versions.items() if version is None or first <= version
    )
    return [*applicable][-1]
