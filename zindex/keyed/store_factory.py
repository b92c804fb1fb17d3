"""Stores by the names of their formats: ours, those that are registered, and those of packages."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from zindex.errors import ConfigError
from zindex.keyed.store import Store

#: The group of entry points, a name of a format and a class each, by which packages add stores.
ENTRY_POINTS = "zindex.keyed_stores"

StoreType = TypeVar("StoreType", bound=type[Store])


@dataclass(frozen=True, slots=True)
class _Entry:
    """One format."""

    #: Returns the class of its stores; nothing is imported before.
    load: Callable[[], Any]
    category: str | None = None
    priority: int = 0


def _builtin(module: str, name: str) -> _Entry:
    """Return a format of ours."""
    return _Entry(lambda: getattr(import_module(module), name), category="builtin")


class StoreFactory:
    """Makes stores by the names of their formats: ``"h5"``, ``"bin"``, ``"zarr"`` and others.

    Other packages add formats by an entry point in the group ``zindex.keyed_stores``, and programs
    by the decorator ``register``.

    Examples
    --------
    >>> store = StoreFactory.create("bin")
    >>> store.format, len(store), store.keys
    ('bin', 0, [])
    """

    _entries: ClassVar[dict[str, _Entry]] = {
        "h5": _builtin("zindex.keyed.mapped_stores", "H5Store"),
        "bin": _builtin("zindex.keyed.mapped_stores", "MmapStore"),
        "zarr": _builtin("zindex.keyed.zarr_store", "ZarrStore"),
    }

    @classmethod
    def create(cls, name: str) -> Store:
        """Return a store of a format, not loaded yet.

        Raises
        ------
        ConfigError
            If there is no such format.
        TypeError
            If what a package gives for it is no store.
        """
        if name == "jsonl":
            raise ConfigError(
                "a store must be of a format that is read by position, got 'jsonl'; convert the "
                "file first: zindex convert SOURCE TARGET"
            )
        known = cls._all_entries()
        if name not in known:
            raise ConfigError(
                f"Unknown component: {name!r}. Supported types: {cls.names()}; name one of them, "
                "or install the package that adds it"
            )
        return _checked(known[name].load(), name)()

    @classmethod
    def register(
        cls, name: str, category: str | None = None, priority: int = 0
    ) -> Callable[[StoreType], StoreType]:
        """Return a decorator that makes a class the stores of a format.

        Parameters
        ----------
        name
            The format, as ``storage_type`` names it.
        category
            For ``names``.
        priority
            Formats with more of it are named first.

        Raises
        ------
        ConfigError
            If the format is there already.
        TypeError
            If the class does not inherit from `Store`.
        """

        def add(store_type: StoreType) -> StoreType:
            _checked(store_type, name)
            if name in cls._all_entries():
                raise ConfigError(
                    f"a format must be registered once, {name!r} is there already; register "
                    f"{store_type.__name__} by another name"
                )
            cls._entries[name] = _Entry(lambda: store_type, category, priority)
            return store_type

        return add

    @classmethod
    def names(cls, category: str | None = None) -> list[str]:
        """Return the formats, or those of a category, by priority and then by name."""
        known = cls._all_entries()
        chosen = [name for name in known if category in {None, known[name].category}]
        return sorted(chosen, key=lambda name: (-known[name].priority, name))

    @classmethod
    def _all_entries(cls) -> dict[str, _Entry]:
        """Return the formats; those of packages do not replace others."""
        of_packages = {point.name: _of_package(point) for point in entry_points(group=ENTRY_POINTS)}
        return of_packages | cls._entries


def _of_package(point: EntryPoint) -> _Entry:
    """Return the format of an entry point."""
    return _Entry(point.load, category="package")


def _checked(store_type: Any, name: str) -> type[Store]:
    """Return a class of stores; TypeError if it is something else."""
    if isinstance(store_type, type) and issubclass(store_type, Store):
        return store_type
    raise TypeError(
        f"a format must be given by a class that inherits from zindex.keyed.Store, {name!r} has "
        f"{store_type!r}; inherit from it"
    )
