"""The data index layer of LLM pre-training.

``convert`` turns tokenised ``.bin/.idx`` corpora into Zarr stores, ``build`` computes every index
that pre-training needs on Dask, ``loader`` gives each rank its batches of the result, and
``zindex.datasets`` the torch datasets below.
Names load on first use: ``import zindex`` imports neither torch nor distributed nor numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zindex.building.convert import convert as convert
    from zindex.building.corpora.tokenize_corpus import tokenize_corpus as tokenize_corpus
    from zindex.building.count import count_sequences as count_sequences
    from zindex.building.edits.edit import edit as edit
    from zindex.building.edits.verify_journal import verify_journal as verify_journal
    from zindex.building.export import export as export
    from zindex.building.export import export_cache as export_cache
    from zindex.building.keyed.convert_keyed import convert_keyed as convert_keyed
    from zindex.building.keyed.export_keyed import export_keyed as export_keyed
    from zindex.building.keyed.tokenize import tokenize as tokenize
    from zindex.building.merge import merge as merge
    from zindex.building.records.import_records import import_records as import_records
    from zindex.building.repairs.repair import repair as repair
    from zindex.building.run import build as build
    from zindex.config import RunConfig as RunConfig
    from zindex.config import load_config as load_config
    from zindex.datasets.run_datasets import open_run as open_run
    from zindex.loading.loader import loader as loader
    from zindex.store.open import open_store as open_store
    from zindex.store.verify import verify_store as verify_store

_HOMES = {
    "RunConfig": "zindex.config",
    "build": "zindex.building.run",
    "convert": "zindex.building.convert",
    "convert_keyed": "zindex.building.keyed.convert_keyed",
    "count_sequences": "zindex.building.count",
    "edit": "zindex.building.edits.edit",
    "export": "zindex.building.export",
    "export_cache": "zindex.building.export",
    "export_keyed": "zindex.building.keyed.export_keyed",
    "import_records": "zindex.building.records.import_records",
    "load_config": "zindex.config",
    "loader": "zindex.loading.loader",
    "merge": "zindex.building.merge",
    "open_run": "zindex.datasets.run_datasets",
    "open_store": "zindex.store.open",
    "repair": "zindex.building.repairs.repair",
    "tokenize": "zindex.building.keyed.tokenize",
    "tokenize_corpus": "zindex.building.corpora.tokenize_corpus",
    "verify_journal": "zindex.building.edits.verify_journal",
    "verify_store": "zindex.store.verify",
}

__all__ = [
    "RunConfig",
    "build",
    "convert",
    "convert_keyed",
    "count_sequences",
    "edit",
    "export",
    "export_cache",
    "export_keyed",
    "import_records",
    "load_config",
    "loader",
    "merge",
    "open_run",
    "open_store",
    "repair",
    "tokenize",
    "tokenize_corpus",
    "verify_journal",
    "verify_store",
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
