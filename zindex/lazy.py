"""Names and libraries that are imported on first use."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from zindex.errors import ConfigError


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of a package with lazy names.

    The names are those that the package imports for type checkers, where it writes ``from module
    import name as name``.

    Parameters
    ----------
    package, file
        Its ``__name__`` and ``__file__``.

    Examples
    --------
    >>> from zindex import lazy
    >>> find, _, names = lazy_names("zindex", lazy.__file__.replace("lazy", "__init__"))
    >>> names[:2], find("RunConfig").__module__
    (['RunConfig', 'begin_build'], 'zindex.config')
    """
    with open(file, "rb") as source:
        nodes = ast.walk(ast.parse(source.read()))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    homes = {item.asname: str(node.module) for node in imports for item in node.names}
    names = sorted(filter(None, homes))

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, names.copy, names


def need(library: str, what: str, install: str = "") -> Any:
    """Import an optional library.

    Parameters
    ----------
    library
        Name of the module.
    what
        What requires it, for the error.
    install
        What to install; by default its package.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    package = library.partition(".")[0]
    try:
        return import_module(library)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the library {package}, which is not installed; install "
            f"{install or package}"
        ) from error
