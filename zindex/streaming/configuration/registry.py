"""Resolve ``target`` names of YAML files: a closed list, and objects registered by the program."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from zindex.errors import ConfigError, ZindexError, check_list, suggest
from zindex.streaming.configuration.yaml_tree import Place

MadeT = TypeVar("MadeT", bound=Callable[..., Any])

_PACKAGE = "zindex.streaming"
# Modules of cogdata that define the names; files may name its package or these modules.
_UPSTREAM = {
    "ImageJsonlDataset": "image_jsonl_dataset",
    "ImageJsonlProcessFnBuilder": "processfns",
    "ImageTextPairProcessFnBuilder": "processfns",
    "JsonlIterableDataset": "jsonl_dataset",
    "MergedDataset": "merged_dataset",
    "MetaDistributedWebDataset": "web_dataset",
    "SimpleDistributedWebDataset": "web_dataset",
    "TextJonslProcessFnBuilder": "processfns",
}
_OWN = (
    *("AudioClips", "ImageRecords", "ImageTextPairs", "RecordDataset", "RecordIterableDataset"),
    *("TextPacking", "VideoFrames", "ZarrText", "open_keyed_dataset", "open_run_split"),
)
#: Names of `zindex.streaming` that a file may use, with or without the package.
OFFERED = tuple(sorted((*_UPSTREAM, *_OWN)))
_BUILT_IN = (
    {name: name for name in OFFERED}
    | {f"{_PACKAGE}.{name}": name for name in OFFERED}
    | {f"cogdata.streaming.{name}": name for name in _UPSTREAM}
    | {f"cogdata.streaming.{module}.{name}": name for name, module in _UPSTREAM.items()}
)
# One or more public names; names with a leading underscore do not match.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)*", re.ASCII)

_registered: dict[str, Any] = {}


def register(name: str) -> Callable[[MadeT], MadeT]:
    """Return a decorator that registers a class or a function for YAML files of this process.

    Parameters
    ----------
    name
        Target name: letters, digits and underscores, joined by dots.

    Raises
    ------
    ConfigError
        If the name has another form, belongs to zindex or cogdata, or is already registered.

    Examples
    --------
    >>> @register("my.CountTo")
    ... def count_to(stop):
    ...     return list(range(stop))
    """
    check_name(name)
    if name in _BUILT_IN or name.split(".")[0] in {"zindex", "cogdata"}:
        raise ConfigError(
            f"a registered name must not be one of zindex or cogdata, got {name!r}; choose another"
        )

    def add(target: MadeT) -> MadeT:
        known = _registered.setdefault(name, target)
        # Reloading a module defines the same objects again.
        if known is not target and _identify(known) != _identify(target):
            raise ConfigError(
                f"a name must be registered once, {name!r} names {known!r} already and should now "
                f"name {target!r}; choose another name"
            )
        _registered[name] = target
        return target

    return add


def check_name(name: Any, refuse: Callable[[str], ConfigError] = ConfigError) -> None:
    """Check the form of a target name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refuse(
            f"a target must be named by public names joined by dots, got {name!r}; use letters, "
            "digits and underscores, and begin with a letter"
        )


def _identify(target: Any) -> tuple[Any, Any]:
    return getattr(target, "__module__", None), getattr(target, "__qualname__", target)


@dataclass(eq=False)
class Target:
    """A resolved target, not imported yet."""

    name: str
    place: Place
    #: Imports and returns the object.
    load: Callable[[], Any]

    @cached_property
    def value(self) -> Any:
        """The object; its module is imported at first use."""
        with self.placed():
            return self.load()

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Add the position of the target to errors."""
        try:
            yield
        except Exception as error:
            if not str(error).startswith(str(self.place)):
                where = f"{self.place}: of the target {self.name!r}"
                if isinstance(error, ZindexError) and error.args:
                    error.args = (f"{where}: {error.args[0]}", *error.args[1:])
                else:
                    error.add_note(where)
            raise


class Targets:
    """The target names that one call allows.

    Parameters
    ----------
    targets
        Additional objects by name, which take precedence.
    allow_imports
        Modules and packages whose public objects files may name.

    Raises
    ------
    ConfigError
        If a name or a module has another form.
    """

    def __init__(self, targets: Mapping[str, Any], allow_imports: Iterable[str]) -> None:
        check_list("allow_imports", allow_imports)
        self.given = dict(targets)
        self.allowed = tuple(allow_imports)
        for name in [*self.given, *self.allowed]:
            check_name(name)

    def find(self, name: str, place: Place) -> Target:
        """Resolve a name without importing.

        Raises
        ------
        ConfigError
            If the name is unknown.
        """
        for objects in (self.given, _registered):
            if name in objects:
                return Target(name, place, partial(objects.get, name))
        if name in _BUILT_IN:
            own = _BUILT_IN[name]
            return Target(name, place, lambda: getattr(import_module(_PACKAGE), own))
        module, _, attribute = name.rpartition(".")
        check_name(name, place.error)
        if module and self._allows(module):
            return Target(name, place, lambda: self._import(module, attribute, place))
        known = {*self.given, *_registered, *_BUILT_IN}
        close = suggest(name, known) or suggest(attribute, known)
        remedy = "register it"
        if module:
            remedy = f"its module as allow_imports=({module!r},) (--allow-import {module})"
        raise place.error(
            f"a target must be a name that is open to files, got {name!r}{close}; give it as "
            f"targets={{{name!r}: ...}}, or {remedy}"
        )

    def _allows(self, module: str) -> bool:
        """Whether a module may be imported."""
        return any(module == prefix or module.startswith(f"{prefix}.") for prefix in self.allowed)

    def _import(self, module: str, attribute: str, place: Place) -> Any:
        """Return a public object of an allowed module."""
        try:
            names = vars(import_module(module))
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise place.error(
                f"a target must be a module and one name of it, there is no module {error.name!r}; "
                "check the name, and install it or set PYTHONPATH to its folder"
            ) from error
        if attribute not in names:
            raise place.error(
                f"{module} must define what a target names, it has no {attribute!r}"
                f"{suggest(attribute, [name for name in names if name[0] != '_'])}; check the name"
            )
        value = names[attribute]
        # Allowing a module does not allow the modules that it imports, such as os.system.
        home = getattr(value, "__module__", None)
        listed = attribute in names.get("__all__", ())
        if isinstance(value, ModuleType) or not (listed or self._allows(str(home))):
            raise place.error(
                f"a target must be defined in a module of allow_imports, {attribute!r} of {module} "
                f"comes from {home or 'elsewhere'}; name it there, or list it in __all__"
            )
        return value
