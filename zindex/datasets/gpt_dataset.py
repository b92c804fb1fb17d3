"""GPT datasets: a stream of shuffled documents, split into samples of equal length, shuffled again.

``zindex.indexing`` builds the index.
"""

import operator
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.datasets.cache_paths import CachePath
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.megatron_dataset import Indices
from zindex.datasets.mock_gpt import MockGPTLowLevelDataset as MockGPTLowLevelDataset
from zindex.datasets.own_epochs import build_by_methods
from zindex.datasets.sample_dataset import IndexArray, overrides
from zindex.datasets.text_dataset import TextDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, PlanError, ZindexError
from zindex.formats.megatron_cache import GPT_ARRAYS
from zindex.indexing import index_arrays, store_computed
from zindex.maintenance.cache_checks import check_index
from zindex.maintenance.megatron_caches import MegatronCache
from zindex.plan.epochs import EpochPlan, plan_epochs
from zindex.plan.index_plan import IndexPlan
from zindex.samples.batch import SampleBatch, resolve_positions
from zindex.samples.gpt import make_batch, make_plain_item, read_texts
from zindex.samples.lengths import count_span, memory_facts
from zindex.samples.masks import (
    _get_ltor_masks_and_position_ids as _get_ltor_masks_and_position_ids,
)
from zindex.samples.tensors import make_text_tensors, pad_texts
from zindex.samples.texts import IndexedText, Texts

# Megatron Core's names, for its callers.
_build_document_index = index_arrays.build_document_index
_build_shuffle_index = index_arrays.build_shuffle_index

# Methods by which a subclass determines how many epochs the index has.
_COUNT_METHODS = ("_get_num_tokens_per_epoch", "_get_num_epochs")


class GPTDataset(TextDataset[index_arrays.IndexArrays]):
    """A split of a dataset as samples of ``sequence_length`` tokens and their labels.

    Sample j is tokens ``[j*S, j*S + S + x)`` of the documents in document order, with S the
    sequence length and x 1 if an extra token is drawn. With ``order="megatron"`` indices and items
    equal Megatron Core's; the indices are attributes with its names.

    Each process computes a small index at its first sample; see ``config.max_computed_rows``. Rank
    0 then stores an index above 65,536 rows in the background, if possible, so that later processes
    open it. A larger index is built at construction unless it is stored, under
    ``torch.distributed`` by rank 0 while the other ranks poll for its commit, without a collective.
    A builder of datasets collects the requests and builds all indices together. The index is stored
    in ``config.path_to_cache``, or in ``<path>/cache/GPTDataset_indices``, where ``.zarr`` is
    stripped from a store's path. If Megatron Core's ``.npy`` cache of an index above 65,536 rows is
    there, it is read instead, after a check; see `zindex.maintenance.cache_checks`. With
    ``config.defer_npy_index_mmap`` the index is built or opened at the first sample.

    Parameters
    ----------
    indexed_dataset
        The low-level dataset; a multimodal one provides the tokens of all modes.
    dataset_path
        Its path, as the user wrote it: part of Megatron's cache key.
    indexed_indices
        The documents of the split: consecutive numbers, as an array or a range.
    num_samples
        Minimal number of samples, in as many epochs as necessary; None for one epoch.
    index_split
        The split.
    config
        The configuration.

    Raises
    ------
    PlanError
        If the documents are not consecutive or hold no tokens.
    NotReadyError
        If another rank has not built the index in time.
    """

    config: GPTDatasetConfig

    #: Shape (rows,), int32: documents in the order in which their tokens are streamed.
    document_index = IndexArray()
    #: Shape (samples + 1, 2), int32: rows j and j + 1 enclose sample j.
    sample_index = IndexArray()
    #: Shape (samples,), uint32: the sample at each position.
    shuffle_index = IndexArray()

    path_to_document_index = CachePath()
    path_to_sample_index = CachePath()
    path_to_shuffle_index = CachePath()

    #: Data are repeated until there are the samples requested.
    _reaches_size = True
    _make_together: ClassVar[Callable[..., SampleBatch]] = staticmethod(make_batch)
    _read_index = staticmethod(index_arrays.open_index_arrays)

    def _prepare(self) -> None:
        """Count the samples, unless the index is deferred."""
        super()._prepare()
        if not self.config.defer_npy_index_mmap:
            _ = self._epochs

    @cached_property
    def _epochs(self) -> EpochPlan:
        """The epochs and samples, from the number of tokens."""
        config, span = self.config, self._span
        num_tokens = count_span(self.dataset, span)
        if not num_tokens:
            raise PlanError(
                f"{self._where} must hold tokens to give samples, its documents "
                f"[{span.start}, {span.stop}) hold none; give it a larger share"
            )
        return plan_epochs(
            num_tokens,
            self.num_samples,
            sequence_length=config.sequence_length,
            extra_token=int(config.add_extra_token_to_sequence),
            drop_last=self._drop_last,
        )

    @property
    def _drop_last(self) -> bool:
        """Whether a last sample that is not full is omitted."""
        is_valid = self.index_split is Split.valid
        return not is_valid or self.config.drop_last_partial_validation_sequence

    def __len__(self) -> int:
        if self._has_own_arrays:
            return len(self._open_arrays().sample_index) - 1
        return self._epochs.num_samples

    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        """Return a sample.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative; None returns the first sample with a
            loss mask of zeros, to fill a batch.

        Returns
        -------
        item
            ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids`` (int64),
            all of shape (sequence_length,) and not shared between items; ``attention_mask`` of
            shape (1, sequence_length, sequence_length), bool, True where masked, if configured.
            Without ``reset_attention_mask`` all items share one mask: clone it before writing to
            it. With ``inter_document_masking`` there are ``cu_seqlens`` (int32, starts of
            documents, padded with sequence_length to sequence_length + 1 values) and ``max_seqlen``
            (int32) instead. With ``with_provenance`` there are ``dataset_id`` (0, or the index in a
            blend), ``document_ids`` (the document of each input token, -1 in padding), ``epoch``
            (of the dataset, of the sample's first token) and ``sample_id``.

        Raises
        ------
        IndexError
            If the position is out of range.
        """
        position = 0 if idx is None else idx
        if type(self)._query_document_sample_shuffle_indices is _QUERY:
            member = self._text or self.open_text()
            settings, text = member.settings, self._read_full(member, position)
            if text is None:
                found = resolve_positions([idx], len(self), self._where)
                return self._make_together(self._request(*found), share_mask=True)[0]
            if settings.is_plain:
                return make_plain_item(text, settings, is_padding=idx is None)
        elif self.config.inter_document_masking or self.config.with_provenance:
            raise ConfigError(
                "inter_document_masking and with_provenance need the items of GPTDataset itself, "
                f"got those of {type(self).__name__}; leave the settings out"
            )
        else:
            text, _ = self._query_document_sample_shuffle_indices(position)
            settings = self.config.text_settings(self._pad_token_id)
        tensors = make_text_tensors(
            Texts.of_text(text[None]),
            settings,
            np.array([idx is None]),
            None,
            None,
            share_mask=True,
        )
        return SampleBatch(tensors)[0]

    def _read_full(self, member: IndexedText, idx: int) -> Int64Array | None:
        """Return the tokens of a full sample, read document by document.

        Returns None for all other samples and errors, which batches handle: for a single sample
        this is several times as fast.
        """
        settings, arrays = member.settings, member.arrays
        position = operator.index(idx)
        by_batch = member.fill or settings.num_boundaries or settings.with_provenance
        if by_batch or not -len(self) <= position < len(self):
            return None
        sample = int(arrays.shuffle_index[position])
        (first, begin), (last, end) = arrays.sample_index[sample : sample + 2].tolist()
        parts = []
        with suppress(ZindexError, IndexError, ValueError):
            documents = np.asarray(arrays.document_index[first : last + 1]).tolist()
            for row, document in enumerate(documents, start=first):
                offset = begin if row == first else 0
                length = end + settings.extra - offset if row == last else None
                part: Any = self.dataset.get(document, offset=offset, length=length)
                parts.append(part[0] if isinstance(part, tuple) else part)  # without its mode
            tokens = np.concatenate(parts, dtype=np.int64)
            if len(tokens) == settings.sequence_length + settings.extra:
                return tokens
        return None

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[Int64Array, Int64Array]:
        """Return the token ids of a sample, padded to its full length, and its documents.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative.

        Returns
        -------
        text, documents
            Shape (sequence_length + x,) and (parts,), both int64. A document may occur twice.
        """
        texts = read_texts(self._request(*resolve_positions([idx], len(self), self._where)))
        return pad_texts(texts, self._pad_token_id)[0].astype(np.int64), texts.documents

    def _get_num_tokens_per_epoch(self) -> int:
        """Return the tokens of the split; a subclass may override it."""
        return self._epochs.tokens_per_epoch

    def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
        """Return the epochs that the samples need; a subclass may override it."""
        return plan_epochs(
            num_tokens_per_epoch,
            self.num_samples,
            sequence_length=self.config.sequence_length,
            extra_token=int(self.config.add_extra_token_to_sequence),
        ).num_epochs

    def _build_document_sample_shuffle_indices(self) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Return the arrays of the index, in memory; a subclass may override it.

        Returns
        -------
        document_index, sample_index, shuffle_index
            As the attributes.
        """
        counts_itself = overrides(type(self), GPTDataset, _COUNT_METHODS)
        arrays = build_by_methods(self) if counts_itself else self._open_index()
        documents, samples, shuffled = (np.asarray(array[:]) for array in arrays)
        return documents, samples, shuffled

    @property
    def _makes_arrays(self) -> bool:
        """Whether a subclass overrides one of Megatron Core's methods that build the index."""
        methods = ("_build_document_sample_shuffle_indices", *_COUNT_METHODS)
        return overrides(type(self), GPTDataset, methods)

    def _make_arrays(self) -> index_arrays.IndexArrays:
        """Return the arrays of a subclass."""
        arrays = index_arrays.IndexArrays(*self._build_document_sample_shuffle_indices())
        documents, samples, shuffled = map(np.shape, arrays)
        if len(documents) != 1 or len(shuffled) != 1 or samples[1:] != (2,):
            raise ConfigError(
                f"{type(self).__name__}._build_document_sample_shuffle_indices must return arrays "
                "of shapes (rows,), (samples + 1, 2) and (samples,), got "
                f"{documents}, {samples} and {shuffled}; correct it"
            )
        return arrays

    def _describe_text(self, text: IndexedText) -> None:
        """Add the settings of the samples."""
        text.settings = self.config.text_settings(self._pad_token_id)
        text.may_end_short = not self._drop_last
        text.may_be_short = self._has_own_arrays
        if text.settings.with_provenance:
            text.find_epochs = self._find_epochs

    def _plan(self) -> IndexPlan:
        """Return the plan of this split's index, equal to that of ``zindex.build``."""
        config, span = self.config, self._span
        return IndexPlan(
            source=(
                self._source.facts
                if self._is_stored
                else memory_facts(self.dataset.sequence_lengths)
            ),
            start=span.start,
            stop=span.stop,
            epochs=self._epochs,
            sequence_length=config.sequence_length,
            extra_token=int(config.add_extra_token_to_sequence),
            drop_last=self._drop_last,
            order=config.order,
            **config.plan_settings(self.index_split),
        )

    def _find_cache(self) -> MegatronCache | Literal[False]:
        """Return Megatron Core's cache, if it is worth it and sound."""
        if self.config.order != "megatron" or not self._is_stored:
            return False
        epochs, span = self._epochs, self._span
        if epochs.num_epochs * len(span) + epochs.num_samples <= store_computed.MIN_STORED_ROWS:
            return False
        plan = self._plan()

        def check(arrays: list[AnyArray]) -> None:
            lengths = self._source.lengths(span.start, span.stop)
            check_index(plan, self._read_cache(arrays), lengths)

        cache = self._name_cache(self._index_folder, self.index_split.name, GPT_ARRAYS)
        store = plan.store_plan(self._index_folder)
        return cache.is_sound(self.unique_description, store, check) and cache

    def _read_cache(self, arrays: list[AnyArray]) -> index_arrays.IndexArrays:
        """Return the arrays of a cache as those of the index."""
        return index_arrays.IndexArrays(*arrays)

    def _compute_arrays(self) -> index_arrays.IndexArrays:
        """Return the index in memory."""
        plan, span, is_stored = self._plan(), self._span, self._is_stored
        if is_stored:
            lengths = self._source.lengths(span.start, span.stop)
        else:
            lengths = self.dataset.sequence_lengths[span.start : span.stop]
        arrays = index_arrays.compute_index_arrays(plan, lengths)
        if is_stored and self._rank == 0:
            store_computed.store_computed(plan, self._index_folder, arrays)
        return arrays

    def _find_epochs(self, samples: Int64Array) -> Int64Array:
        """Return the epoch of the first token of each sample."""
        return samples * self.config.sequence_length // self._epochs.tokens_per_epoch


_QUERY = GPTDataset._query_document_sample_shuffle_indices


class MockGPTDataset(GPTDataset):
    """A GPT dataset of mock documents, with an index in memory only.

    Parameters
    ----------
    dataset
        The mock documents.
    dataset_path
        Part of Megatron's cache key, otherwise ignored.
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
        indices: Indices,
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
        """Return mock documents for a tokenizer; the path is ignored."""
        return MockGPTLowLevelDataset(config.tokenizer)
