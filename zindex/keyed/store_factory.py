"""Create keyed stores by format name: built-in, registered, or from entry points."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from zindex.errors import ConfigError
from zindex.keyed.store import KeyedStore

#: Entry point group in which packages register a store class per format.
ENTRY_POINTS = "zindex.keyed_stores"

StoreType = TypeVar("StoreType", bound=type[KeyedStore])


@dataclass(frozen=True, slots=True)
class _Entry:
    """One format."""

    #: Imports and returns the store class.
    load: Callable[[], Any]
    category: str | None = None
    priority: int = 0


class StoreFactory:
    """Creates stores by format name: ``"h5"``, ``"bin"``, ``"zarr"`` and others.

    Packages add formats with an entry point in the group ``zindex.keyed_stores``, programs with
    the decorator ``register``.

    Examples
    --------
    >>> store = StoreFactory.create("bin")
    >>> store.format, len(store), store.keys
    ('bin', 0, [])
    """

    _entries: ClassVar[dict[str, _Entry]] = {
        form: _Entry(EntryPoint(form, f"zindex.keyed.stores:{name}", "").load, category="builtin")
        for form, name in (("h5", "H5Store"), ("bin", "MmapStore"), ("zarr", "ZarrStore"))
    }

    @classmethod
    def create(cls, name: str) -> KeyedStore:
        """Return a store of a format, not yet loaded.

        Raises
        ------
        ConfigError
            If there is no such format.
        TypeError
            If the entry point of a package is no store class.
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
        """Return a decorator that registers a class as the store of a format.

        Parameters
        ----------
        name
            The format, as ``storage_type`` names it.
        category
            For ``names``.
        priority
            Formats with a higher priority are listed first.

        Raises
        ------
        ConfigError
            If the format is registered already.
        TypeError
            If the class does not inherit from `KeyedStore`.
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
        """Return the formats, optionally of one category, by priority and name."""
        known = cls._all_entries()
        chosen = [name for name in known if category in {None, known[name].category}]
        return sorted(chosen, key=lambda name: (-known[name].priority, name))

    @classmethod
    def _all_entries(cls) -> dict[str, _Entry]:
        """Return all formats; those of packages do not override others."""
        points = entry_points(group=ENTRY_POINTS)
        return {point.name: _Entry(point.load, category="package") for point in points} | (
            cls._entries
        )


def _checked(store_type: Any, name: str) -> type[KeyedStore]:
    """Return a store class; TypeError if it is something else."""
    if isinstance(store_type, type) and issubclass(store_type, KeyedStore):
        return store_type
    raise TypeError(
        f"a format must be given by a class that inherits from zindex.keyed.Store, {name!r} has "
        f"{store_type!r}; inherit from it"
    )
