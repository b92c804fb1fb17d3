"""A blend that was edited during training: one order of samples across all its plans."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.datasets.blended_dataset import BlendedDataset, read_draws
from zindex.datasets.cut_dataset import CutDataset
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.packed_dataset import PackedGPTDataset
from zindex.datasets.ranks import obtain
from zindex.datasets.sample_dataset import SampleDataset
from zindex.datasets.utils import Split, current_rank
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.indexing.blend_arrays import BlendArrays, compute_blend_arrays, open_blend_arrays
from zindex.indexing.ensure import BuildRequest
from zindex.maintenance.edits.draws import Draws, SegmentTable, find_draws
from zindex.maintenance.edits.forgotten import Forgetting
from zindex.maintenance.edits.journal import RunJournal
from zindex.maintenance.edits.order_sources import (
    CutSource,
    OrderSource,
    StreamSource,
)
from zindex.maintenance.edits.packed_source import PackedSource
from zindex.plan.blend_plan import MAX_INT16_DATASETS, BlendPlan
from zindex.samples.batch import BatchRequest, SampleBatch
from zindex.samples.forgotten import leave_out
from zindex.store.commit import fingerprint
from zindex.store.open import Store
from zindex.text.kept_tokenizer import check_stores
from zindex.wording import count_noun

#: A dataset that samples of an edited run come from.
EditedSource = GPTDataset | PackedGPTDataset | CutDataset


class EditedDataset(SampleDataset):
    """The samples of a run with its edits, in one order.

    Positions before an edit keep their samples; later ones follow the plan of the edit. Items are
    those of the datasets, preceded by ``dataset_id``, the index of the dataset in `paths`. An edit
    of the sequence length changes the length of items; a batch with samples of two lengths is a
    list. Forgotten documents are left out of items, whose other tokens move together and are
    followed by padding; see `zindex.forget`.

    Parameters
    ----------
    blend
        The blend that the run's file describes.
    journal
        The run and its edits, at least one.
    config
        The configuration.

    Attributes
    ----------
    blend, config
        As given.
    split
        The split.
    edits
        Position of each edit, and the fingerprint of its entry in the journal.
    sources
        The sources of samples: the blend's datasets, datasets added by edits, further passes over a
        dataset, and unused samples of a dataset at a change of the sequence length.
    """

    def __init__(
        self, blend: BlendedDataset, journal: RunJournal, config: GPTDatasetConfig
    ) -> None:
        super().__init__()
        self.blend = blend
        self.config = config
        self.edits = tuple((entry.position, entry.fingerprint) for entry in journal.entries)
        self.split: Split = blend.split
        self._state = journal.state
        self._segments = SegmentTable(self._state.segments)
        self._pools = [*map(journal.pools, range(len(self._state.blends)))]
        self._arrays: dict[int, BlendArrays] = {}
        rank = current_rank()
        for number, facts in enumerate(self._state.blends[1:], start=1):
            plan = journal.blend_plan(facts, number)
            needed = BuildRequest(plan, journal.config.index)
            obtain(needed, partial(self._receive, number, plan), rank, config)
        self.sources: list[EditedSource] = []
        for number in range(len(self._state.sources)):
            self.sources.append(self._open_source(journal, number))
        id_dtype = np.int32 if len(self._state.datasets) > MAX_INT16_DATASETS else np.int16
        self._dataset_of = np.array([item.dataset for item in self._state.sources], id_dtype)
        self._lengths = np.array([item.sequence_length for item in self._state.sources])
        self._forgetting = Forgetting(self._state)
        # The sources as spans of documents, opened for samples that hold forgotten ones.
        self._orders: dict[int, OrderSource] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_orders": {}}

    def _receive(self, number: int, plan: BlendPlan, store: Store | None) -> None:
        """Receive the committed index of a blend of the run; None to compute it."""
        arrays = compute_blend_arrays(plan) if store is None else open_blend_arrays(store)
        self._arrays[number] = arrays

    def _open_source(self, journal: RunJournal, number: int) -> "EditedSource":
        """Return the dataset of one source; earlier sources are open."""
        source = self._state.sources[number]
        if number < len(self.blend.datasets):
            member = self.blend.datasets[number]
            assert isinstance(member, GPTDataset | PackedGPTDataset)
            return member
        config = replace(
            self.config, random_seed=source.seed, sequence_length=source.sequence_length
        )
        if source.parent is not None:
            consumed = journal.cut_table(source.blend)
            parent = self.sources[source.parent]
            assert not isinstance(parent, PackedGPTDataset)
            return CutDataset(source, number, parent, consumed, config)
        item = journal.index_of(number)
        path = item.dataset
        opened = [
            dataset.dataset
            for dataset in self.sources
            if isinstance(dataset, GPTDataset) and dataset.dataset_path == path
        ]
        tokens = opened[0] if opened else GPTDataset.build_low_level_dataset(path, config)
        if isinstance(tokens, ZarrIndexedDataset):
            check_stores(config.tokenizer, {path: tokens.store.root})
        documents = range(item.plan.start, item.plan.stop)
        return GPTDataset(tokens, path, documents, source.num_requested, self.split, config)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the datasets, by ``dataset_id``; some may have been dropped."""
        return self._state.datasets

    @property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of everything that determines the order of the samples."""
        return self._fingerprints[-1]

    @cached_property
    def _fingerprints(self) -> list[str]:
        """Fingerprints of the run before its first edit, and after each."""
        base = self.blend.fingerprint
        return [base, *(fingerprint({"blend": base, "edit": edit}) for _, edit in self.edits)]

    @property
    def previous_fingerprints(self) -> tuple[tuple[str, int], ...]:
        """The fingerprint before each edit, and the position up to which it applies."""
        positions = [position for position, _ in self.edits]
        return tuple(zip(self._fingerprints[:-1], positions, strict=True))

    def __len__(self) -> int:
        return self._state.num_samples

    @property
    def _where(self) -> str:
        """Name of the dataset in messages."""
        return f"the edited {self.split.name} blend of {count_noun(len(self.paths), 'dataset')}"

    def _read_batch(
        self, positions: Int64Array, is_padding: BoolArray
    ) -> SampleBatch | list[dict[str, Any]]:
        """Return the samples at positions, before and after edits; a list if lengths differ."""
        # Padding has the length of the other samples.
        real = np.flatnonzero(~is_padding)
        positions[is_padding] = positions[real[0]] if real.size else 0
        sources, samples = self.find_samples(positions)
        # Padding is read with the last samples.
        read_at = np.where(is_padding, len(self), positions)
        columns: tuple[Any, ...] = (sources, samples, is_padding, read_at)
        lengths = self._lengths[sources]
        if (lengths == lengths[0]).all():
            return self._read_sources(*columns)
        items: list[dict[str, Any]] = [{}] * len(sources)
        for length in set(lengths.tolist()):
            places = np.flatnonzero(lengths == length)
            batch = self._read_sources(*(column[places] for column in columns))
            for place, item in zip(places.tolist(), batch, strict=True):
                items[place] = item
        return items

    def _read_sources(
        self,
        sources: Int64Array,
        samples: Int64Array,
        is_padding: BoolArray,
        positions: Int64Array,
    ) -> SampleBatch:
        """Return samples of one length, without forgotten documents."""
        dataset_ids = self._dataset_of[sources]
        drawn = np.unique(sources).tolist()
        opened = [self.sources[number] for number in drawn]
        if any(isinstance(source, CutDataset) for source in opened):
            batch = self._join_sources(drawn, sources, samples, is_padding, dataset_ids)
        else:
            wanted = BatchRequest(self.sources, sources, samples, is_padding, dataset_ids)
            batch = opened[0]._make_together(wanted)
        draws = Draws(sources, samples)
        touched = self._forgetting.find_touched(draws, positions)
        for number in np.unique(sources[touched]).tolist():
            self._leave_out(batch, number, touched[sources[touched] == number], samples, positions)
        return batch

    def _leave_out(
        self,
        batch: SampleBatch,
        number: int,
        rows: Int64Array,
        samples: Int64Array,
        positions: Int64Array,
    ) -> None:
        """Leave forgotten documents out of samples of one source, in place."""
        source, member = self._open_order(number), self.sources[number]
        text = (member.base if isinstance(member, CutDataset) else member).open_text()
        documents = source.documents_of(source.samples_at(samples[rows]))
        dataset, at = self._state.sources[number].dataset, positions[rows, None]
        inputs, labels = (self._forgetting.covers(dataset, each, at) for each in documents)
        is_out = inputs | (documents.inputs < 0)
        leave_out(batch.tensors, rows, is_out, labels, text.settings)

    def _open_order(self, number: int) -> OrderSource:
        """Return a source as spans of documents, opened once."""
        if number not in self._orders:
            member = self.sources[number]
            opened: OrderSource
            if isinstance(member, CutDataset):
                assert member.source.parent is not None
                parent: Any = self._open_order(member.source.parent)
                opened = CutSource(member.source, number, parent, member.consumed)
            elif isinstance(member, PackedGPTDataset):
                arrays: Any = member._open_arrays()
                opened = PackedSource(str(member.dataset_path), member._source, arrays)
            else:
                arguments = member._plan(), member._source, member._open_arrays()
                opened = StreamSource(str(member.dataset_path), *arguments)
            self._orders[number] = opened
        return self._orders[number]

    def _join_sources(
        self,
        drawn: list[int],
        sources: Int64Array,
        samples: Int64Array,
        is_padding: BoolArray,
        dataset_ids: AnyArray,
    ) -> SampleBatch:
        """Return samples of sources that are read one by one."""
        parts = []
        for number in drawn:
            places = np.flatnonzero(sources == number)
            batch: Any = self.sources[number]._read_batch(samples[places], is_padding[places])
            parts.append((places, batch.tensors))
        config, size = self.config, len(sources)
        shared = set()
        if not (config.inter_document_masking or config.reset_position_ids):
            shared.add("position_ids")
        if not config.reset_attention_mask:
            shared.add("attention_mask")
        joined = {"dataset_id": torch.from_numpy(dataset_ids)}
        for name, first in parts[0][1].items():
            if name in shared:
                joined[name] = first[:1].expand(size, *first.shape[1:])
            elif name != "dataset_id":
                joined[name] = torch.empty((size, *first.shape[1:]), dtype=first.dtype)
                for places, tensors in parts:
                    joined[name][torch.from_numpy(places)] = tensors[name]
        return SampleBatch(joined)

    def find_samples(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sources of samples of the run.

        Parameters
        ----------
        positions
            Shape (positions,), each in ``[0, len(self))``.

        Returns
        -------
        sources, samples
            Shape (positions,), int64: number in `sources`, and position in that dataset.
        """
        return find_draws(self._segments, self._pools, self._read_blend, positions)

    def _read_blend(self, blend: int, positions: Int64Array) -> list[AnyArray]:
        """Return datasets and sample numbers of a blend of the run at its own positions."""
        return read_draws(self._arrays.get(blend) or self.blend._open_arrays(), positions)
