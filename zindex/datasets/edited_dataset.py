"""A blend that was edited during training: one order of samples across all its plans."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zindex.arrays import Int64Array
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.cut_dataset import CutDataset
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.ranks import obtain
from zindex.datasets.utils import Split, current_rank
from zindex.indexing.blend_arrays import BlendArrays, open_blend_arrays
from zindex.indexing.ensure import request_build
from zindex.maintenance.edits.draws import PoolTable
from zindex.maintenance.edits.journal import RunJournal
from zindex.plan.blend_plan import MAX_INT16_DATASETS
from zindex.samples.batch import SampleBatch, batch_of_items, find_spans, resolve_positions
from zindex.samples.gpt import make_batch
from zindex.store.commit import fingerprint
from zindex.store.open import Store
from zindex.store.rows import Spans, read_many


class EditedDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """The samples of a run with its edits, in one order.

    Positions before an edit keep their samples; from the edit on its plan applies. Items are those
    of the datasets, preceded by ``dataset_id``, the number of the dataset in `paths`. An edit of
    the sequence length changes their length.

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
        The sources of samples: the blend's datasets, datasets that edits added, further passes over
        a dataset, and unused samples of a dataset at an edit of the sequence length.
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
        self._ends = [segment.stop for segment in self._state.segments]
        self._pools: list[PoolTable] = []
        self._arrays: dict[int, BlendArrays] = {}
        rank = current_rank()
        for number, facts in enumerate(self._state.blends):
            self._pools.append(journal.pools(number))
            if number:
                needed = request_build(journal.blend_plan(facts, number), journal.config.index)
                obtain(needed, self._receiver(number), rank, config)
        self.sources: list[GPTDataset | CutDataset] = []
        for number in range(len(self._state.sources)):
            self.sources.append(self._open_source(journal, number))
        wide = len(self._state.datasets) > MAX_INT16_DATASETS
        self._id_dtype = np.dtype(np.int32 if wide else np.int16)
        self._dataset_of = np.array([item.dataset for item in self._state.sources], np.int64)

    def _receiver(self, blend: int) -> Callable[[Store], None]:
        """Return a callback for the committed store of a blend."""

        def receive(store: Store) -> None:
            self._arrays[blend] = open_blend_arrays(store)

        return receive

    def _open_source(self, journal: RunJournal, number: int) -> "GPTDataset | CutDataset":
        """Return the dataset of one source; earlier ones are open."""
        source = self._state.sources[number]
        if number < len(self.blend.datasets):
            member = self.blend.datasets[number]
            assert isinstance(member, GPTDataset)
            return member
        config = replace(
            self.config, random_seed=source.seed, sequence_length=source.sequence_length
        )
        if source.parent is not None:
            consumed = journal.cut_table(source.blend)
            return CutDataset(source, number, self.sources[source.parent], consumed, config)
        item = journal.index_of(number)
        path = item.dataset
        opened = [
            dataset.dataset
            for dataset in self.sources
            if isinstance(dataset, GPTDataset) and dataset.dataset_path == path
        ]
        tokens = opened[0] if opened else GPTDataset.build_low_level_dataset(path, config)
        documents = range(item.plan.start, item.plan.stop)
        return GPTDataset(tokens, path, documents, source.num_requested, self.split, config)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the datasets, by ``dataset_id``; some may have been dropped."""
        return self._state.datasets

    @property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of all that decides the order of the samples, in any process."""
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

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        idx
            Its position, from the end if negative; None gives padding: the first sample with a loss
            mask of zeros.

        Returns
        -------
        item
            The sample of the dataset, preceded by ``dataset_id``, its number in `paths`.

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        return self.__getitems__([idx])[0]

    def __getitems__(self, positions: Sequence[int | None]) -> "SampleBatch | list[dict[str, Any]]":
        """Return the samples of a batch, read together: torch's DataLoader calls this.

        Parameters
        ----------
        positions
            Positions, as of single samples; they may be before and after an edit.

        Returns
        -------
        batch
            For each position what ``self[position]`` returns; a list if they differ in length.
        """
        if not len(positions):
            return batch_of_items(self, positions)
        where = f"the edited {self.split.name} blend of {len(self.paths)} datasets"
        numbers, is_padding = resolve_positions(positions, len(self), where)
        # Padding has the length of the other samples.
        real = np.flatnonzero(~is_padding)
        numbers[is_padding] = numbers[real[0]] if real.size else 0
        sources, samples = self.find_samples(numbers)
        dataset_ids = self._dataset_of[sources].astype(self._id_dtype)
        drawn = set(sources.tolist())
        lengths = {self._length_of(number) for number in drawn}
        if len(lengths) == 1 and all(
            isinstance(self.sources[number], GPTDataset) for number in drawn
        ):
            members: Any = self.sources
            return make_batch(members, sources, samples, is_padding, dataset_ids)
        if len(lengths) == 1:
            return self._join_sources(sources, samples, is_padding, dataset_ids)
        items: list[dict[str, Any]] = [{}] * len(sources)
        for length in lengths:
            same = np.array([self._length_of(number) == length for number in sources.tolist()])
            places = np.flatnonzero(same)
            batch = self._join_sources(
                sources[places], samples[places], is_padding[places], dataset_ids[places]
            )
            for place, item in zip(places.tolist(), batch, strict=True):
                items[place] = item
        return items

    def _length_of(self, source: int) -> int:
        return self._state.sources[source].sequence_length

    def _join_sources(
        self,
        sources: Int64Array,
        samples: Int64Array,
        is_padding: npt.NDArray[np.bool_],
        dataset_ids: npt.NDArray[Any],
    ) -> SampleBatch:
        """Return samples of one length, read source by source."""
        parts = []
        for number in np.unique(sources).tolist():
            places = np.flatnonzero(sources == number)
            source, wanted = self.sources[number], (samples[places], is_padding[places])
            if isinstance(source, CutDataset):
                tensors = source.make_tensors(*wanted)
            else:
                which = np.zeros(len(places), np.int64)
                tensors = make_batch([source], which, *wanted, dataset_ids[places]).tensors
            parts.append((places, tensors))
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
        sources, samples = np.empty_like(positions), np.empty_like(positions)
        segments = np.searchsorted(self._ends, positions, side="right")
        for number in set(segments.tolist()):
            segment = self._state.segments[number]
            inside = np.flatnonzero(segments == number)
            spans = find_spans(positions[inside] - segment.start + segment.offset)
            arrays = self._open_arrays(segment.blend)
            datasets, draws = read_many(
                [Spans(arrays.dataset_index, *spans), Spans(arrays.dataset_sample_index, *spans)]
            )
            found = self._pools[segment.blend].find(datasets, draws)
            sources[inside], samples[inside] = found
        return sources, samples

    def _open_arrays(self, blend: int) -> BlendArrays:
        """Return the arrays of one blend of the run."""
        if not blend:
            return self.blend._open_arrays()
        return self._arrays[blend]
