"""Keyed token stores: datasets of declared kinds of records, and a resumable distributed sampler.

``DatasetFactory.load`` opens a store of any format as a dataset of one kind of record, a preset or
a `RecordSchema`, and ``StoreFactory`` opens the store itself. The names are those of AstrAI.
``append`` and ``GrowingDataset`` write and read stores that grow while a model trains.
"""

from typing import TYPE_CHECKING

from zindex.lazy import lazy_names

if TYPE_CHECKING:
    from zindex.formats.keyed.record_schema import RecordSchema as RecordSchema
    from zindex.formats.keyed.schema_field import Field as Field
    from zindex.formats.keyed.shards import detect_format as detect_format
    from zindex.growing.compaction import compact as compact
    from zindex.growing.compaction import compacting as compacting
    from zindex.growing.eviction import evict as evict
    from zindex.growing.eviction import release as release
    from zindex.growing.writer import GrowingWriter as GrowingWriter
    from zindex.growing.writer import append as append
    from zindex.keyed.base_dataset import BaseDataset as BaseDataset
    from zindex.keyed.dataset_factory import DatasetFactory as DatasetFactory
    from zindex.keyed.growing_dataset import GrowingBatches as GrowingBatches
    from zindex.keyed.growing_dataset import GrowingDataset as GrowingDataset
    from zindex.keyed.growing_dataset import growing_loader as growing_loader
    from zindex.keyed.growing_store import GrowingStore as GrowingStore
    from zindex.keyed.growing_store import open_growing as open_growing
    from zindex.keyed.loader import keyed_loader as keyed_loader
    from zindex.keyed.packed_batches import PackedDataset as PackedDataset
    from zindex.keyed.record_dataset import KeyedRecordDataset as KeyedRecordDataset
    from zindex.keyed.record_dataset import dpo_collate_fn as dpo_collate_fn
    from zindex.keyed.record_dataset import grpo_collate_fn as grpo_collate_fn
    from zindex.keyed.record_split import RecordSplit as RecordSplit
    from zindex.keyed.sampler import ResumableDistributedSampler as ResumableDistributedSampler
    from zindex.keyed.saving import load_bin as load_bin
    from zindex.keyed.saving import load_h5 as load_h5
    from zindex.keyed.saving import save_bin as save_bin
    from zindex.keyed.saving import save_h5 as save_h5
    from zindex.keyed.store import KeyedStore as KeyedStore
    from zindex.keyed.store import Store as Store
    from zindex.keyed.stores import H5Store as H5Store
    from zindex.keyed.stores import MappedStore as MappedStore
    from zindex.keyed.stores import MmapStore as MmapStore
    from zindex.keyed.stores import StoreFactory as StoreFactory
    from zindex.keyed.stores import ZarrStore as ZarrStore
    from zindex.loading.token_batches import TokenBatchSampler as TokenBatchSampler
    from zindex.plan.token_batches import TokenBudget as TokenBudget

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
