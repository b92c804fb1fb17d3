"""Public names of packages that are imported on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package with lazy names.

    Parameters
    ----------
    package
        Its ``__name__``.
    homes
        Each public name and the module, below the package ``zindex``, that defines it.

    Examples
    --------
    >>> find, _ = lazy_names("zindex", {"RunConfig": "config"})
    >>> find("RunConfig").__module__
    'zindex.config'
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"zindex.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(homes)
