"""Keyed token stores: seq, sft, dpo and grpo datasets, and a sampler that any job resumes.

``DatasetFactory.load`` opens a store of any format as the dataset of a kind of training, and
``StoreFactory`` the store itself. The names are those of AstrAI.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zindex.formats.keyed.detect import detect_format as detect_format
    from zindex.keyed.base_dataset import BaseDataset as BaseDataset
    from zindex.keyed.dataset_factory import DatasetFactory as DatasetFactory
    from zindex.keyed.loader import keyed_loader as keyed_loader
    from zindex.keyed.mapped_stores import H5Store as H5Store
    from zindex.keyed.mapped_stores import MmapStore as MmapStore
    from zindex.keyed.padding import dpo_collate_fn as dpo_collate_fn
    from zindex.keyed.padding import grpo_collate_fn as grpo_collate_fn
    from zindex.keyed.record_split import RecordSplit as RecordSplit
    from zindex.keyed.sampler import ResumableDistributedSampler as ResumableDistributedSampler
    from zindex.keyed.saving import load_bin as load_bin
    from zindex.keyed.saving import load_h5 as load_h5
    from zindex.keyed.saving import save_bin as save_bin
    from zindex.keyed.saving import save_h5 as save_h5
    from zindex.keyed.store import Store as Store
    from zindex.keyed.store_factory import StoreFactory as StoreFactory
    from zindex.keyed.zarr_store import ZarrStore as ZarrStore

_HOMES = {
    "BaseDataset": "zindex.keyed.base_dataset",
    "DatasetFactory": "zindex.keyed.dataset_factory",
    "H5Store": "zindex.keyed.mapped_stores",
    "MmapStore": "zindex.keyed.mapped_stores",
    "RecordSplit": "zindex.keyed.record_split",
    "ResumableDistributedSampler": "zindex.keyed.sampler",
    "Store": "zindex.keyed.store",
    "StoreFactory": "zindex.keyed.store_factory",
    "ZarrStore": "zindex.keyed.zarr_store",
    "detect_format": "zindex.formats.keyed.detect",
    "dpo_collate_fn": "zindex.keyed.padding",
    "grpo_collate_fn": "zindex.keyed.padding",
    "keyed_loader": "zindex.keyed.loader",
    "load_bin": "zindex.keyed.saving",
    "load_h5": "zindex.keyed.saving",
    "save_bin": "zindex.keyed.saving",
    "save_h5": "zindex.keyed.saving",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zindex.keyed' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
