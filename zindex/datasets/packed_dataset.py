"""Packed datasets: samples that hold documents whole, as many as fit, and end in padding.

The index is built by ``zindex.building``; here it is found and read.
"""

from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zindex.building.on_demand import Needed
from zindex.building.packed_arrays import PackedArrays, needed_packing, open_packed_arrays
from zindex.building.source import LengthSource
from zindex.datasets.batching.gpt_batches import is_plain
from zindex.datasets.batching.gpt_sources import is_known
from zindex.datasets.batching.packed_batches import make_packed_batch
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_index import STORED, index_folder, stored_source
from zindex.datasets.text_dataset import TextDataset
from zindex.errors import ConfigError, PlanError
from zindex.plan.packing import PackingPlan, PackingRules
from zindex.store.reader import RowReader


class PackedGPTDataset(TextDataset[PackedArrays]):
    """A split of a dataset as samples of whole documents, for training without truncation.

    A sample has room for ``sequence_length + x`` tokens, x being 1 if an extra token is drawn. It
    holds documents, at most ``config.packing.max_documents``, chosen by best fit, and padding after
    them. A document that is longer is split, truncated or dropped, as ``config.packing`` says;
    split, its parts are what a stream would be cut into, so that with the extra token every token
    but the document's first is a label once.

    How many samples there are is known when the index is built, which happens as in ``GPTDataset``.
    Both orders of documents are keyed, whatever ``config.order``: packing has no counterpart in
    Megatron Core. Documents do not see each other: positions restart with each, the attention mask
    ends at them, and no label crosses from one into the next.

    Parameters
    ----------
    indexed_dataset
        The low-level dataset; it lies on disk or in an object store.
    dataset_path
        Its path, as the user wrote it.
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
    ConfigError
        If the documents are made up, or the index is to be followed while it is built.
    PlanError
        If they are not consecutive, hold no tokens, or are all dropped.
    NotReadyError
        If another rank should have built the index and has not.
    """

    config: GPTDatasetConfig

    _make_together = staticmethod(make_packed_batch)
    _read_index = staticmethod(open_packed_arrays)

    def _prepare(self) -> None:
        """Check that there is something to pack."""
        if not (isinstance(self.dataset, STORED) and is_known(self.dataset)):
            raise ConfigError(
                f"{self._where} must be text that zindex opens from disk to be packed, got "
                f"{type(self.dataset).__name__}; use GPTDataset for other data"
            )
        if self.config.follow is not None:
            raise ConfigError(
                f"{self._where} cannot be followed while it is packed, got follow="
                f"{self.config.follow}: how large its index becomes is known when all documents "
                "are; leave follow out"
            )
        self.unique_identifiers["packing"] = asdict(self.rules)
        if not self._source.count_tokens(self._span.start, self._span.stop):
            raise PlanError(
                f"{self._where} must hold tokens to be packed, its documents "
                f"[{self._span.start}, {self._span.stop}) hold none; give it a larger share"
            )

    @property
    def rules(self) -> PackingRules:
        """How documents become samples."""
        return self.config.packing or PackingRules()

    @property
    def part_index(self) -> RowReader:
        """Shape (parts, 2): document id, and token offset in it, sample after sample."""
        return self._open_arrays().part_index

    @property
    def sample_offset(self) -> RowReader:
        """Shape (samples + 1,): part at which each sample starts."""
        return self._open_arrays().sample_offset

    @property
    def shuffle_index(self) -> RowReader:
        """Shape (samples,): the sample that stands at each position."""
        return self._open_arrays().shuffle_index

    @property
    def padding_share(self) -> float:
        """Share of the room of all samples that is padding."""
        self._open_arrays()
        assert self._store is not None
        share: float = self._store.attributes["padding_share"]
        return share

    def __len__(self) -> int:
        self._open_arrays()
        assert self._store is not None
        num_samples: int = self._store.attributes["num_samples"]
        return num_samples

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
            ``tokens`` and ``labels`` (int64, 0 in padding), ``loss_mask`` (float32, 0 in padding,
            at the last token of each document, and at end tokens with ``eod_mask_loss``) and
            ``position_ids`` (int64, from 0 in each document), all of shape (sequence_length,);
            ``cu_seqlens`` (int32, where documents start, then padding if there is any, filled up
            with sequence_length to ``max_documents + 2`` values) and ``max_seqlen`` (int32).
            With ``create_attention_mask``, and without ``inter_document_masking``, there is
            ``attention_mask`` of shape (1, sequence_length, sequence_length), bool, True where
            masked. With ``with_provenance`` there are ``dataset_id``, ``document_ids`` (-1 in
            padding), ``epoch`` and ``sample_id``.

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        return self._make_batch([idx])[0]

    @property
    def _is_plain(self) -> bool:
        """Whether items are made as batches make them, and not in a subclass's own way."""
        return is_plain(self, PackedGPTDataset)

    @property
    def _source(self) -> LengthSource:
        return stored_source(self.dataset)

    @cached_property
    def _plan(self) -> PackingPlan:
        """The plan of this split's index: the same as ``zindex.build`` makes of these settings."""
        config, span, source = self.config, self._span, self._source
        return PackingPlan(
            source=source.facts,
            split=self.index_split.name,
            start=span.start,
            stop=span.stop,
            tokens_per_epoch=source.count_tokens(span.start, span.stop),
            sequence_length=config.sequence_length,
            extra_token=int(config.add_extra_token_to_sequence),
            seed=config.random_seed,
            num_requested=self.num_samples,
            rules=self.rules,
            stored=config.store,
            grid=config.grid,
        )

    @property
    def _spec(self) -> dict[str, Any]:
        """Everything that decides which sample stands where."""
        return self._plan.spec

    @property
    def _needed(self) -> Needed:
        """The store of the index, and how it is built."""
        folder = index_folder(self.dataset, type(self).__name__, self.config)
        return needed_packing(self._plan, self._source, folder)

    def _find_epochs(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the epoch that each sample is of."""
        return self._open_arrays().epochs_of(samples)
