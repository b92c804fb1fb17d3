"""The data index layer of LLM pre-training.

``convert`` turns tokenised ``.bin/.idx`` corpora into Zarr stores, ``build`` computes every index
that pre-training needs on Dask, and ``zindex.datasets`` gives torch datasets over the result.
Names load on first use: ``import zindex`` imports neither torch nor distributed nor numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zindex.building.convert import convert as convert
    from zindex.building.export import export as export
    from zindex.building.export import export_cache as export_cache
    from zindex.building.run import build as build
    from zindex.config import RunConfig as RunConfig
    from zindex.config import load_config as load_config
    from zindex.store.open import open_store as open_store

_HOMES = {
    "RunConfig": "zindex.config",
    "build": "zindex.building.run",
    "convert": "zindex.building.convert",
    "export": "zindex.building.export",
    "export_cache": "zindex.building.export",
    "load_config": "zindex.config",
    "open_store": "zindex.store.open",
}

__all__ = [
    "RunConfig",
    "build",
    "convert",
    "export",
    "export_cache",
    "load_config",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zindex' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
