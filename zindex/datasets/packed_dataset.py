"""Packed datasets: samples of whole documents, as many as fit, followed by padding.

``zindex.indexing`` builds the index.
"""

from dataclasses import asdict
from typing import Any

from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.sample_dataset import IndexArray
from zindex.datasets.text_dataset import TextDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError, PlanError
from zindex.indexing.packing import PackedArrays
from zindex.plan.packing import PackingPlan, PackingRules
from zindex.samples.packed import make_packed_batch
from zindex.samples.texts import IndexedText


class PackedGPTDataset(TextDataset[PackedArrays]):
    """A split of a dataset as samples of whole documents, for training without truncation.

    A sample has room for ``sequence_length + x`` tokens, with x 1 if an extra token is drawn. It
    consists of at most ``config.packing.max_documents`` documents, chosen by best fit, and padding.
    A longer document is split, truncated or dropped, by ``config.packing``. It is split as a stream
    would be: with the extra token every token except the document's first is a label once.

    The number of samples is known when the index is built, which happens as in ``GPTDataset``. The
    order of documents is keyed with any ``config.order``: packing has no counterpart in Megatron
    Core. Documents are isolated: positions restart with each, the attention mask ends at them, and
    no label is in the next document.

    An item has ``tokens`` and ``labels`` (int64, 0 in padding), ``loss_mask`` (float32, 0 in
    padding, at the last token of each document, and at end tokens with ``eod_mask_loss``) and
    ``position_ids`` (int64, from 0 in each document), all of shape (sequence_length,);
    ``cu_seqlens`` (int32, where documents start, then padding if there is any, filled up with
    sequence_length to ``max_documents + 2`` values) and ``max_seqlen`` (int32). With
    ``create_attention_mask``, and without ``inter_document_masking``, there is ``attention_mask``
    of shape (1, sequence_length, sequence_length), bool, True where masked. With
    ``with_provenance`` there are ``dataset_id``, ``document_ids`` (-1 in padding), ``epoch`` and
    ``sample_id``.

    Parameters
    ----------
    indexed_dataset
        The low-level dataset, on disk or in an object store.
    dataset_path
        Its path, as the user wrote it.
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
    ConfigError
        If the documents are made up, or ``config.follow`` is set.
    PlanError
        If they are not consecutive, hold no tokens, or are all dropped.
    NotReadyError
        If another rank has not built the index in time.
    """

    config: GPTDatasetConfig

    #: Shape (parts, 2): document id, and token offset in it, sample after sample.
    part_index = IndexArray()
    #: Shape (samples + 1,): part at which each sample starts.
    sample_offset = IndexArray()
    #: Shape (samples,): the sample at each position.
    shuffle_index = IndexArray()

    _make_together = staticmethod(make_packed_batch)
    _read_index = staticmethod(PackedArrays.open)

    def _prepare(self) -> None:
        """Check that there are documents to pack."""
        super()._prepare()
        if type(self.dataset) not in (IndexedDataset, ZarrIndexedDataset):
            raise ConfigError(
                f"{self._where} must be text that zindex opens from disk to be packed, got "
                f"{type(self.dataset).__name__}; use GPTDataset for other data"
            )
        self._refuse_follow()
        self.unique_identifiers["packing"] = asdict(self.rules)
        if not self._source.count_tokens(self._span.start, self._span.stop):
            raise PlanError(
                f"{self._where} must hold tokens to be packed, its documents "
                f"[{self._span.start}, {self._span.stop}) hold none; give it a larger share"
            )

    @property
    def rules(self) -> PackingRules:
        """The rules that pack documents into samples."""
        return self.config.packing or PackingRules()

    @property
    def padding_share(self) -> float:
        """Share of padding in all samples."""
        return float(self._fact("padding_share"))

    def __len__(self) -> int:
        return int(self._fact("num_samples"))

    def _fact(self, name: str) -> Any:
        """Return an attribute of the index."""
        self._open_arrays()
        assert self._store is not None
        return self._store.attributes[name]

    def _describe_text(self, text: IndexedText) -> None:
        """Add the settings of the samples."""
        text.settings = self.config.text_settings(self._pad_token_id, self.rules.max_documents)
        if text.settings.with_provenance:
            text.find_epochs = text.arrays.epochs_of

    def _plan(self) -> PackingPlan:
        """Return the plan of this split's index, equal to that of ``zindex.build``."""
        config, span, source = self.config, self._span, self._source
        return PackingPlan(
            source=source.facts,
            start=span.start,
            stop=span.stop,
            tokens_per_epoch=source.count_tokens(span.start, span.stop),
            sequence_length=config.sequence_length,
            extra_token=int(config.add_extra_token_to_sequence),
            num_requested=self.num_samples,
            rules=self.rules,
            **config.plan_settings(self.index_split),
        )
