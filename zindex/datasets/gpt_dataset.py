"""GPT datasets: documents in shuffled order, cut into samples of equal length, shuffled again.

The index is built by ``zindex.building``; here it is found and read. Multimodal and packed
datasets are not here.
"""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zindex.building.arrays import AnyArray, IndexArrays, compute_index_arrays, open_index_arrays
from zindex.building.on_demand import Needed
from zindex.datasets.batching.gpt_batches import is_plain, join_parts, require_plain
from zindex.datasets.batching.gpt_tensors import make_batch
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_index import (
    STORED,
    _build_document_index,
    _build_shuffle_index,
    index_folder,
    index_needed,
    memory_facts,
    plan_index,
    plan_samples,
    stored_source,
)
from zindex.datasets.gpt_masks import Masks, _get_ltor_masks_and_position_ids, causal_mask
from zindex.datasets.mock_gpt import MockGPTLowLevelDataset
from zindex.datasets.text_dataset import TextDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError
from zindex.plan.epochs import EpochPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store.reader import RowReader

__all__ = [
    "GPTDataset",
    "GPTDatasetConfig",
    "MockGPTDataset",
    "MockGPTLowLevelDataset",
    "_build_document_index",
    "_build_shuffle_index",
    "_get_ltor_masks_and_position_ids",
]


class GPTDataset(TextDataset[IndexArrays]):
    """A split of a dataset as samples of ``sequence_length`` tokens and their labels.

    Sample j is tokens ``[j*S, j*S + S + x)`` of the documents in document order, with S the
    sequence length and x 1 if an extra token is drawn. With ``order="megatron"`` indices and items
    equal Megatron Core's, which the attributes of the same names hold.

    A new index is built at construction, by rank 0 under ``torch.distributed`` while the others
    look for its commit; no process waits in a collective. A builder of datasets puts this off and
    has all indices built at once. It lies in ``config.path_to_cache``, or
    in ``<path>/cache/GPTDataset_indices``, with ``.zarr`` stripped from a store's path. With
    ``config.defer_npy_index_mmap`` all of this happens at the first sample instead.

    Parameters
    ----------
    indexed_dataset
        The low-level dataset; of a multimodal one the tokens of all modes are taken.
    dataset_path
        Its path, as the user wrote it: part of Megatron's cache key.
    indexed_indices
        The documents of the split: consecutive numbers, as an array or a range.
    num_samples
        Samples wanted at least, in as many epochs as it takes; None means one epoch.
    index_split
        The split.
    config
        The configuration.

    Raises
    ------
    PlanError
        If the documents are not consecutive or hold no tokens.
    NotReadyError
        If another rank should have built the index and has not.
    """

    config: GPTDatasetConfig

    _epochs: EpochPlan
    _make_together = staticmethod(make_batch)
    _read_index = staticmethod(open_index_arrays)

    def _prepare(self) -> None:
        """Count the samples."""
        self._epochs = plan_samples(
            self.dataset,
            self._span,
            self.num_samples,
            drop_last=self._drop_last,
            config=self.config,
            where=self._where,
        )

    @property
    def _drop_last(self) -> bool:
        """Whether a last sample that is not full is left out."""
        is_valid = self.index_split is Split.valid
        return not is_valid or self.config.drop_last_partial_validation_sequence

    @property
    def document_index(self) -> RowReader | AnyArray:
        """Shape (rows,), int32: documents in the order in which their tokens are streamed."""
        return self._open_arrays().document_index

    @property
    def sample_index(self) -> RowReader | AnyArray:
        """Shape (samples + 1, 2), int32: rows j and j + 1 enclose sample j."""
        return self._open_arrays().sample_index

    @property
    def shuffle_index(self) -> RowReader | AnyArray:
        """Shape (samples,), uint32: the sample that stands at each position."""
        return self._open_arrays().shuffle_index

    def __len__(self) -> int:
        return self._epochs.num_samples

    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        """Return a sample.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative; None gives the first one with a loss
            mask of zeros, to fill up a batch.

        Returns
        -------
        item
            ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids`` (int64),
            all of shape (sequence_length,) and the item's own; ``attention_mask`` of shape
            (1, sequence_length, sequence_length), bool, True where masked, if configured. Without
            ``reset_attention_mask`` it is one tensor for all items: clone it before writing to it.
            With ``inter_document_masking`` there are ``cu_seqlens`` (int32, where documents start,
            filled up with sequence_length to sequence_length + 1 values) and ``max_seqlen`` (int32)
            instead. With ``with_provenance`` there are ``dataset_id`` (0, or the place in a blend),
            ``document_ids`` (the document of each input token, -1 where padded), ``epoch`` (of the
            dataset, in which the sample's first token lies) and ``sample_id``.

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        if self.config.inter_document_masking or self.config.with_provenance:
            require_plain(self, GPTDataset)
            return self._make_batch([idx])[0]
        text, _ = self._query_document_sample_shuffle_indices(0 if idx is None else idx)
        if self.config.add_extra_token_to_sequence:
            tokens, labels = torch.from_numpy(text[:-1]), torch.from_numpy(text[1:].copy())
        else:
            tokens = torch.from_numpy(text)
            labels = torch.roll(tokens, shifts=-1, dims=0)
            labels[-1] = self._pad_token_id
        attention_mask, loss_mask, position_ids = self._make_masks(tokens)
        # Padding counts nothing in the loss, and gets an id that an embedding has.
        no_label = labels == self._pad_token_id
        loss_mask[no_label] = 0.0
        labels[no_label] = 0
        tokens[tokens == self._pad_token_id] = 0
        if idx is None:
            loss_mask.zero_()
        item = {"tokens": tokens, "labels": labels}
        if attention_mask is not None:
            item["attention_mask"] = attention_mask
        return item | {"loss_mask": loss_mask, "position_ids": position_ids}

    @property
    def _is_plain(self) -> bool:
        """Whether items are made as batches make them, and not in a subclass's own way."""
        return is_plain(self, GPTDataset)

    def _make_masks(self, tokens: torch.Tensor) -> Masks:
        """Return attention mask, loss mask and position ids of a sample's inputs."""
        config = self.config
        attention_mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(
            tokens,
            config.tokenizer.eod if config.depends_on_eod else self._pad_token_id,
            bool(config.reset_position_ids),
            bool(config.reset_attention_mask),
            bool(config.eod_mask_loss),
            config.own_masks,
        )
        if config.has_masks and not config.own_masks:
            attention_mask = causal_mask(tokens.numel(), tokens.device)
        return attention_mask, loss_mask, position_ids

    def _query_document_sample_shuffle_indices(
        self, idx: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the token ids of a sample, padded to its full length, and its documents.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative.

        Returns
        -------
        text, documents
            Shape (sequence_length + x,) and (parts,), both int64. A document may be part twice.
        """
        sample, parts, documents = self._read_parts(idx)
        return join_parts(self, sample, parts), documents

    def _read_parts(self, idx: int) -> tuple[int, list[npt.NDArray[Any]], npt.NDArray[np.int64]]:
        """Return a sample's number, the parts of documents it is made of, and the documents."""
        position = operator.index(idx)
        if not -len(self) <= position < len(self):
            raise IndexError(
                f"index {position} is out of range for the {len(self)} samples of {self._where}"
            )
        arrays = self._open_arrays()
        sample = int(arrays.shuffle_index[position])
        bounds = arrays.sample_index[sample : sample + 2].tolist()
        (first, first_offset), (last, last_offset) = bounds
        last_offset += int(self.config.add_extra_token_to_sequence)
        documents = np.asarray(arrays.document_index[first : last + 1], np.int64)
        dataset = self.dataset
        parts = []
        for i, document in enumerate(documents.tolist(), start=first):
            offset = first_offset if i == first else 0
            length = last_offset - offset if i == last else None
            part = dataset.get(document, offset=offset, length=length)
            parts.append(part[0] if isinstance(part, tuple) else part)  # without its mode
        return sample, parts, documents

    def _plan(self, *, from_memory: bool) -> IndexPlan:
        """Return the plan of this split's index."""
        facts = (
            memory_facts(self.dataset.sequence_lengths)
            if from_memory
            else stored_source(self.dataset).facts
        )
        return plan_index(
            facts,
            self._span,
            self._epochs,
            split=self.index_split.name,
            drop_last=self._drop_last,
            config=self.config,
        )

    @property
    def _spec(self) -> dict[str, Any]:
        """Everything that decides which sample stands where."""
        return self._plan(from_memory=not isinstance(self.dataset, STORED)).spec

    def _find_arrays(self) -> None:
        """Take the arrays of the index; those of documents in memory are computed here."""
        if isinstance(self.dataset, STORED):
            super()._find_arrays()
        else:
            lengths = self.dataset.sequence_lengths[self._span.start : self._span.stop]
            self._arrays = compute_index_arrays(self._plan(from_memory=True), lengths)

    @property
    def _needed(self) -> Needed:
        """The store of the index, and how it is built."""
        folder = index_folder(self.dataset, type(self).__name__, self.config)
        return index_needed(self.dataset, self._plan(from_memory=False), folder)

    def _find_epochs(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the epoch in which the first token of each sample lies."""
        return samples * self.config.sequence_length // self._epochs.tokens_per_epoch


class MockGPTDataset(GPTDataset):
    """A GPT dataset of made-up documents, whose index is computed in memory and never stored.

    Parameters
    ----------
    dataset
        The made-up documents.
    dataset_path
        Without meaning, but part of Megatron's cache key.
    indices, num_samples, index_split
        As for ``GPTDataset``.
    config
        A configuration without any blend.

    Raises
    ------
    ConfigError
        If the configuration names data.
    """

    def __init__(
        self,
        dataset: MockGPTLowLevelDataset,
        dataset_path: str | None,
        indices: npt.NDArray[np.integer[Any]] | range,
        num_samples: int | None,
        index_split: Split,
        config: GPTDatasetConfig,
    ) -> None:
        if not config.mock:
            raise ConfigError(
                f"mock datasets need a configuration without data, got blend {config.blend!r}; "
                "leave blend and blend_per_split out"
            )
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)

    @staticmethod
    def build_low_level_dataset(  # type: ignore[override]
        dataset_path: str | None, config: GPTDatasetConfig
    ) -> MockGPTLowLevelDataset:
        """Return made-up documents for a tokenizer; the path says nothing."""
        return MockGPTLowLevelDataset(config.tokenizer)
