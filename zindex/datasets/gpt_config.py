"""The configuration of GPT datasets."""

from dataclasses import dataclass, field

import numpy as np

from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.errors import ConfigError
from zindex.formats.token_dtypes import token_dtype_code
from zindex.plan.packing import PackingRules


@dataclass
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of GPT datasets, by Megatron Core's names."""

    reset_position_ids: bool | None = None
    """Whether positions count from the start of each document; must be given."""

    reset_attention_mask: bool | None = None
    """Whether attention stays within a document; must be given."""

    eod_mask_loss: bool | None = None
    """Whether the loss leaves out what is predicted from an end of document; must be given."""

    create_attention_mask: bool = True
    """Whether items hold an attention mask; many kernels make their own."""

    drop_last_partial_validation_sequence: bool = True
    """Whether the validation split leaves out a last sample that is not full."""

    add_extra_token_to_sequence: bool = True
    """Whether a sample draws one token more, so that every input token has its label."""

    object_storage_cache_path: str | None = None
    """Directory of each node for copies of the ``.idx`` of pairs in object storage."""

    data_parallel_size: int = 1
    """Data-parallel ranks."""

    sequence_parallel_size: int = 0
    """Sequence-parallel ranks; 0 without sequence parallelism."""

    hybrid_context_parallel: bool = False
    """Whether samples are spread over ranks by their length."""

    sequences_per_dataset: dict[str, tuple[int, int]] | None = None
    """Sequences and ``document_indices`` entries that each prefix must have."""

    token_dtype_code: int | None = field(init=False, default=None)
    """Dtype code that the vocabulary suggests; the code in the file decides."""

    context_parallel_size: int | None = None
    """Context-parallel ranks."""

    inter_document_masking: bool = field(default=False, kw_only=True)
    """Later Megatron Core's: whether items tell their documents apart for packed attention, by
    ``cu_seqlens`` and ``max_seqlen`` instead of an attention mask. Documents are the index's, not
    what ends with an end token; positions restart with each, whatever the reset settings."""

    dynamic_context_parallel: bool = field(default=False, kw_only=True)
    """Later Megatron's name of ``hybrid_context_parallel``; either of them switches it on."""

    sft_mock_dataset_config_json: str | None = field(default=None, kw_only=True)
    """Later Megatron's: the made-up conversations of ``MockSFTDataset``, as JSON or a path."""

    varlen_mock_dataset_config_json: str | None = field(default=None, kw_only=True)
    """Later Megatron's: the same of ``MockVarlenDataset``."""

    varlen_sbhd_validation: bool = field(default=False, kw_only=True)
    """Later Megatron's: whether ``VarlenDataset`` pads every sample to ``sequence_length``."""

    with_provenance: bool = field(default=False, kw_only=True)
    """Ours: whether items tell where they come from: ``dataset_id``, ``document_ids`` of each
    token, ``epoch`` and ``sample_id``."""

    packing: PackingRules | None = field(default=None, kw_only=True)
    """Ours: how packed datasets keep documents whole; None takes the rules' defaults there."""

    def __post_init__(self) -> None:
        """Check the settings and derive the rest."""
        super().__post_init__()
        for name in ("tokenizer", "reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) is None:
                raise ConfigError(f"{name} must be given for GPT datasets, got None; set it")
        if self.varlen_sbhd_validation and self.is_hybrid:
            raise ConfigError(
                "varlen_sbhd_validation pads samples to one length, which excludes "
                "hybrid_context_parallel, both are set; leave one of them out"
            )
        vocab_size = self.tokenizer.vocab_size
        if vocab_size is not None:
            fits = vocab_size <= np.iinfo(np.uint16).max + 1
            self.token_dtype_code = token_dtype_code(np.uint16 if fits else np.int32)
        elif self.sequences_per_dataset is not None:
            raise ConfigError(
                "sequences_per_dataset needs a tokenizer with a vocab_size, got None; leave it out "
                "or fix the tokenizer (--per-dataset-sequences-path)"
            )

    @property
    def is_hybrid(self) -> bool:
        """Whether samples are spread over ranks by their length."""
        return self.hybrid_context_parallel or self.dynamic_context_parallel

    @property
    def has_masks(self) -> bool:
        """Whether items hold an attention mask."""
        return self.create_attention_mask and not self.inter_document_masking

    @property
    def own_masks(self) -> bool:
        """Whether each item's attention mask is its own, and ends at its documents."""
        return self.has_masks and bool(self.reset_attention_mask)

    @property
    def own_positions(self) -> bool:
        """Whether each item's positions are its own, and restart with its documents."""
        return self.inter_document_masking or bool(self.reset_position_ids)

    @property
    def depends_on_eod(self) -> bool:
        """Whether items depend on which of their tokens end a document."""
        positions = self.own_positions and not self.inter_document_masking
        return bool(self.eod_mask_loss) or self.own_masks or positions

    @property
    def is_plain(self) -> bool:
        """Whether nothing in items but padding depends on their tokens or documents."""
        return not (self.depends_on_eod or self.inter_document_masking or self.with_provenance)
