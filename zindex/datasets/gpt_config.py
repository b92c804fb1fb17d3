"""The configuration of GPT datasets."""

from dataclasses import dataclass, field

import numpy as np

from zindex.datasets.blended_megatron_dataset_config import (
    CHOICES,
    DEFAULTS,
    BlendedMegatronDatasetConfig,
    SFTRules,
)
from zindex.errors import ConfigError, check_choice
from zindex.formats.token_dtypes import DType
from zindex.plan.packing import PackingRules
from zindex.samples.tensors import TextSettings


@dataclass
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of GPT datasets, by Megatron Core's names."""

    #: Whether positions restart at each document; required.
    reset_position_ids: bool | None = None

    #: Whether attention stays within a document; required.
    reset_attention_mask: bool | None = None

    #: Whether the loss ignores predictions from an end of document; required.
    eod_mask_loss: bool | None = None

    #: Whether items have an attention mask; many kernels make their own.
    create_attention_mask: bool = True

    #: Whether the validation split drops a last sample that is not full.
    drop_last_partial_validation_sequence: bool = True

    #: Whether a sample has one more token, so that every input token has a label.
    add_extra_token_to_sequence: bool = True

    #: Node-local directory for copies of the ``.idx`` of pairs in object storage.
    object_storage_cache_path: str | None = None

    #: Data-parallel ranks.
    data_parallel_size: int = 1

    #: Sequence-parallel ranks; 0 without sequence parallelism.
    sequence_parallel_size: int = 0

    #: Whether samples are distributed over ranks by length.
    hybrid_context_parallel: bool = False

    #: Sequences and ``document_indices`` entries that each prefix must have; `zindex count` counts
    #: them. With ``fast_cache_load`` prefixes are then pairs, unless they end in ``.zarr``.
    sequences_per_dataset: dict[str, tuple[int, int]] | None = None

    #: Dtype code that the vocabulary suggests; the code in the file decides.
    token_dtype_code: int | None = field(init=False, default=None)

    #: Context-parallel ranks.
    context_parallel_size: int | None = None

    #: Later Megatron Core: whether items have the boundaries of their documents for packed
    #: attention, ``cu_seqlens`` and ``max_seqlen``, instead of an attention mask. Documents are
    #: those of the index, not delimited by end tokens, and positions always restart with each of
    #: them.
    inter_document_masking: bool = field(default=False, kw_only=True)

    #: Later Megatron: name of ``hybrid_context_parallel``; either enables it.
    dynamic_context_parallel: bool = field(default=False, kw_only=True)

    #: Later Megatron: the mock conversations of ``MockSFTDataset``, as JSON or a path.
    sft_mock_dataset_config_json: str | None = field(default=None, kw_only=True)

    #: Later Megatron: the same for ``MockVarlenDataset``.
    varlen_mock_dataset_config_json: str | None = field(default=None, kw_only=True)

    #: Later Megatron: whether ``VarlenDataset`` pads every sample to ``sequence_length``.
    varlen_sbhd_validation: bool = field(default=False, kw_only=True)

    #: zindex: the Megatron version whose rules `SFTDataset` follows. ``"main"``: conversations are
    #: padded to a multiple of ``2 * context_parallel_size``, if that is above 1. ``"dev"``: also
    #: for sequence parallelism, and for dynamic context parallelism. ``"0.17"``, and 0.18: as main,
    #: but ``cu_seqlens`` is as long as the sample has conversations. ``"0.16"``: also, each of them
    #: ends with the end of document. ``"0.15"``: each record is one conversation, without
    #: ``cu_seqlens`` and padding for context parallelism, and ends with the end of document if the
    #: tokenizer has ``force_eod``; ``"0.14"``: always. None: dev with ``hybrid_context_parallel``,
    #: otherwise the version of the installed Megatron Core, or main without one.
    sft_rules: SFTRules | None = field(default_factory=lambda: DEFAULTS.sft_rules, kw_only=True)

    #: zindex: whether items have their provenance: ``dataset_id``, ``document_ids`` of each token,
    #: ``epoch`` and ``sample_id``.
    with_provenance: bool = field(default=False, kw_only=True)

    #: zindex: whether every sample is checked for ids beyond the tokenizer's ``vocab_size``;
    #: ``zindex.open_run`` sets it unless the corpora keep their tokenizer.
    check_ids: bool = field(default=False, kw_only=True)

    #: zindex: packing rules of packed datasets; None for the defaults.
    packing: PackingRules | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings, and derive the others."""
        super().__post_init__()
        self._require(
            "GPT", "tokenizer", "reset_position_ids", "reset_attention_mask", "eod_mask_loss"
        )
        if self.sft_rules is not None:
            check_choice("sft_rules", self.sft_rules, CHOICES["sft_rules"])
        if self.varlen_sbhd_validation and self.is_hybrid:
            raise ConfigError(
                "varlen_sbhd_validation pads samples to one length, which excludes "
                "hybrid_context_parallel, both are set; leave one of them out"
            )
        vocab_size = self.tokenizer.vocab_size
        if vocab_size is not None:
            fits = vocab_size <= np.iinfo(np.uint16).max + 1
            self.token_dtype_code = DType.code_from_dtype(np.uint16 if fits else np.int32)
        elif self.sequences_per_dataset is not None:
            raise ConfigError(
                "sequences_per_dataset needs a tokenizer with a vocab_size, got None; leave it out "
                "or fix the tokenizer (--per-dataset-sequences-path)"
            )

    @property
    def is_hybrid(self) -> bool:
        """Whether samples are distributed over ranks by length."""
        return self.hybrid_context_parallel or self.dynamic_context_parallel

    def text_settings(self, pad: int, max_documents: int | None = None) -> TextSettings:
        """Return the settings that determine the tensors of samples.

        Parameters
        ----------
        pad
            Id of padding.
        max_documents
            Maximum documents of a packed sample; None for samples of a token stream.
        """
        length, is_packed = self.sequence_length, max_documents is not None
        has_masks = self.create_attention_mask and not self.inter_document_masking
        own_masks = has_masks and bool(self.reset_attention_mask)
        # Boundaries are known from the index, or found by the end tokens.
        has_boundaries = self.inter_document_masking or is_packed
        restarts = own_masks or bool(self.reset_position_ids)
        depends_on_eod = self.eod_mask_loss or (restarts and not has_boundaries)
        return TextSettings(
            sequence_length=length,
            extra=int(self.add_extra_token_to_sequence),
            pad=pad,
            eod=self.tokenizer.eod if depends_on_eod else None,
            eod_mask_loss=bool(self.eod_mask_loss),
            has_masks=has_masks,
            own_masks=own_masks,
            own_positions=has_boundaries or bool(self.reset_position_ids),
            num_boundaries=(max_documents or length - 1) + 2 if has_boundaries else 0,
            with_provenance=self.with_provenance,
            num_ids=self.tokenizer.vocab_size if self.check_ids else None,
        )
