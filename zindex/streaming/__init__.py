"""Streaming datasets from YAML: tar, jsonl, map-style and Zarr sources, mixed and resumed exactly.

``instantiate_from_yaml`` makes the datasets that a file describes, ``MergedDataset`` mixes them by
percent, and ``to_state`` turns delivered samples into the state from which any number of ranks and
loader workers goes on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zindex.datasets.record_dataset import RecordDataset as RecordDataset
    from zindex.keyed.dataset_factory import open_keyed_dataset as open_keyed_dataset
    from zindex.streaming.configuration.from_yaml import (
        instantiate_from_yaml as instantiate_from_yaml,
    )
    from zindex.streaming.configuration.registry import register as register
    from zindex.streaming.image_jsonl import ImageJsonlDataset as ImageJsonlDataset
    from zindex.streaming.jsonl_dataset import JsonlIterableDataset as JsonlIterableDataset
    from zindex.streaming.lengths.advice import advise as advise
    from zindex.streaming.lengths.draws import epochs_of as epochs_of
    from zindex.streaming.lengths.length_stats import (
        print_dataset_length_stats as print_dataset_length_stats,
    )
    from zindex.streaming.lengths.sample_length import TextLength as TextLength
    from zindex.streaming.lengths.statistics import count_lengths as count_lengths
    from zindex.streaming.merged_dataset import MergedDataset as MergedDataset
    from zindex.streaming.processing.collate import PadCollate as PadCollate
    from zindex.streaming.processing.collate import mixed_collate as mixed_collate
    from zindex.streaming.processing.collate import stack_collate as stack_collate
    from zindex.streaming.processing.image_samples import (
        ImageJsonlProcessFnBuilder as ImageJsonlProcessFnBuilder,
    )
    from zindex.streaming.processing.image_samples import ImageRecords as ImageRecords
    from zindex.streaming.processing.image_samples import (
        ImageTextPairProcessFnBuilder as ImageTextPairProcessFnBuilder,
    )
    from zindex.streaming.processing.image_samples import ImageTextPairs as ImageTextPairs
    from zindex.streaming.processing.text_packing import (
        TextJonslProcessFnBuilder as TextJonslProcessFnBuilder,
    )
    from zindex.streaming.processing.text_packing import TextPacking as TextPacking
    from zindex.streaming.record_iterable_dataset import (
        RecordIterableDataset as RecordIterableDataset,
    )
    from zindex.streaming.resuming import reshard_states as reshard_states
    from zindex.streaming.run_progress import progress as progress
    from zindex.streaming.run_split import open_run_split as open_run_split
    from zindex.streaming.state import gather_states as gather_states
    from zindex.streaming.state import merge_states as merge_states
    from zindex.streaming.state import to_state as to_state
    from zindex.streaming.web_dataset import MetaDistributedWebDataset as MetaDistributedWebDataset
    from zindex.streaming.web_dataset import (
        SimpleDistributedWebDataset as SimpleDistributedWebDataset,
    )
    from zindex.streaming.zarr_text import ZarrText as ZarrText

_HOMES = {
    "ImageJsonlDataset": "zindex.streaming.image_jsonl",
    "ImageJsonlProcessFnBuilder": "zindex.streaming.processing.image_samples",
    "ImageRecords": "zindex.streaming.processing.image_samples",
    "ImageTextPairProcessFnBuilder": "zindex.streaming.processing.image_samples",
    "ImageTextPairs": "zindex.streaming.processing.image_samples",
    "JsonlIterableDataset": "zindex.streaming.jsonl_dataset",
    "MergedDataset": "zindex.streaming.merged_dataset",
    "MetaDistributedWebDataset": "zindex.streaming.web_dataset",
    "PadCollate": "zindex.streaming.processing.collate",
    "RecordDataset": "zindex.datasets.record_dataset",
    "RecordIterableDataset": "zindex.streaming.record_iterable_dataset",
    "SimpleDistributedWebDataset": "zindex.streaming.web_dataset",
    "TextJonslProcessFnBuilder": "zindex.streaming.processing.text_packing",
    "TextPacking": "zindex.streaming.processing.text_packing",
    "TextLength": "zindex.streaming.lengths.sample_length",
    "ZarrText": "zindex.streaming.zarr_text",
    "advise": "zindex.streaming.lengths.advice",
    "count_lengths": "zindex.streaming.lengths.statistics",
    "epochs_of": "zindex.streaming.lengths.draws",
    "gather_states": "zindex.streaming.state",
    "instantiate_from_yaml": "zindex.streaming.configuration.from_yaml",
    "merge_states": "zindex.streaming.state",
    "mixed_collate": "zindex.streaming.processing.collate",
    "open_keyed_dataset": "zindex.keyed.dataset_factory",
    "open_run_split": "zindex.streaming.run_split",
    "print_dataset_length_stats": "zindex.streaming.lengths.length_stats",
    "progress": "zindex.streaming.run_progress",
    "register": "zindex.streaming.configuration.registry",
    "reshard_states": "zindex.streaming.resuming",
    "stack_collate": "zindex.streaming.processing.collate",
    "to_state": "zindex.streaming.state",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zindex.streaming' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
