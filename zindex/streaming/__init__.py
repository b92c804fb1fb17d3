"""Streaming datasets from YAML: tar, jsonl, map-style and Zarr sources, mixed and resumed exactly.

``instantiate_from_yaml`` opens the datasets that a file describes, ``MergedDataset`` mixes them by
percent, and ``to_state`` collects the state of delivered samples, from which any number of ranks
and loader workers can resume.
"""

from typing import TYPE_CHECKING

from zindex.lazy import lazy_names

if TYPE_CHECKING:
    from zindex.datasets.record_dataset import RecordDataset as RecordDataset
    from zindex.keyed.dataset_factory import open_keyed_dataset as open_keyed_dataset
    from zindex.loading.run_split import open_run_split as open_run_split
    from zindex.processing.collate import PadCollate as PadCollate
    from zindex.processing.collate import mixed_collate as mixed_collate
    from zindex.processing.collate import stack_collate as stack_collate
    from zindex.processing.image_jsonl import ImageJsonlDataset as ImageJsonlDataset
    from zindex.processing.image_samples import (
        ImageJsonlProcessFnBuilder as ImageJsonlProcessFnBuilder,
    )
    from zindex.processing.image_samples import ImageRecords as ImageRecords
    from zindex.processing.image_samples import (
        ImageTextPairProcessFnBuilder as ImageTextPairProcessFnBuilder,
    )
    from zindex.processing.image_samples import ImageTextPairs as ImageTextPairs
    from zindex.processing.media_samples import AudioClips as AudioClips
    from zindex.processing.media_samples import VideoFrames as VideoFrames
    from zindex.processing.sample_generator import sample_generator as sample_generator
    from zindex.processing.sample_length import TextLength as TextLength
    from zindex.processing.text_packing import (
        TextJonslProcessFnBuilder as TextJonslProcessFnBuilder,
    )
    from zindex.processing.text_packing import TextPacking as TextPacking
    from zindex.processing.zarr_text import ZarrText as ZarrText
    from zindex.sources.sample_index import write_offsets as write_offsets
    from zindex.streaming.configuration.from_yaml import (
        instantiate_from_yaml as instantiate_from_yaml,
    )
    from zindex.streaming.configuration.registry import register as register
    from zindex.streaming.file_formats import JsonlIterableDataset as JsonlIterableDataset
    from zindex.streaming.file_formats import (
        MetaDistributedWebDataset as MetaDistributedWebDataset,
    )
    from zindex.streaming.file_formats import (
        SimpleDistributedWebDataset as SimpleDistributedWebDataset,
    )
    from zindex.streaming.lengths.advice import advise as advise
    from zindex.streaming.lengths.draws import epochs_of as epochs_of
    from zindex.streaming.lengths.draws import (
        print_dataset_length_stats as print_dataset_length_stats,
    )
    from zindex.streaming.lengths.statistics import count_lengths as count_lengths
    from zindex.streaming.loader import StreamLoader as StreamLoader
    from zindex.streaming.loader import stream_loader as stream_loader
    from zindex.streaming.merged_dataset import MergedDataset as MergedDataset
    from zindex.streaming.record_iterable_dataset import (
        RecordIterableDataset as RecordIterableDataset,
    )
    from zindex.streaming.resuming import reshard_states as reshard_states
    from zindex.streaming.run_progress import progress as progress
    from zindex.streaming.state import gather_states as gather_states
    from zindex.streaming.state import merge_states as merge_states
    from zindex.streaming.state import to_state as to_state

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
