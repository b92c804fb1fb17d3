"""T5 datasets: text with sentinels for masked spans, and the spans for the decoder."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zindex.datasets.masked_dataset import (
    MISSING,
    MaskedWordPieceDataset,
    MaskedWordPieceDatasetConfig,
    SentenceRules,
)
from zindex.errors import ConfigError
from zindex.samples.masking.attention_masks import build_pair_mask, choose_attention_masks
from zindex.samples.masking.masked_batches import make_t5_batch

# The first token of the decoder's input and the last of its labels, as Megatron counts.
_NUM_SPECIAL = 2


@dataclass
class T5MaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """Settings of T5 datasets, by Megatron Core's names.

    Raises
    ------
    ConfigError
        If a setting is missing, out of range, or excludes another, or the tokenizer lacks a
        special token.
    """

    #: Tokens of the encoder's input: ``sequence_length``.
    sequence_length_encoder: int = field(init=False, default=MISSING)

    #: Tokens of the decoder's input and of its labels.
    sequence_length_decoder: int = MISSING

    def __post_init__(self) -> None:
        """Check the settings and derive the encoder's length."""
        super().__post_init__()
        self.sequence_length_encoder = self.sequence_length
        self._require("masked", "sequence_length_decoder")
        self._check_kind("T5", _NUM_SPECIAL, ("mask", "bos", "eos"))
        if self.sequence_length_decoder < 1:
            raise ConfigError(
                "sequence_length_decoder must be at least 1, got "
                f"{self.sequence_length_decoder}; raise it"
            )
        sentinels = getattr(self.tokenizer, "additional_special_tokens_ids", None)
        if not sentinels:
            raise ConfigError(
                "the tokenizer of T5 datasets must have sentinels, "
                f"{type(self.tokenizer).__name__} has additional_special_tokens_ids {sentinels}; "
                "add some (--vocab-extra-ids)"
            )


class T5MaskedWordPieceDataset(MaskedWordPieceDataset):
    """A split of a dataset as T5's samples.

    Parameters, errors and keys of draws are those of ``MaskedWordPieceDataset``.

    An item has ``text_enc``: the text with a sentinel for each masked span; 0 in padding.
    ``enc_mask``: 1, 0 in padding. Both int64, shape (sequence_length,). ``text_dec``: the first
    token, and each sentinel with its span; 0 in padding. ``dec_mask``: 1, 0 in padding. ``labels``:
    ``text_dec`` without the first token, and with the end token added; -1 in padding (0 if that is
    the pad id). ``loss_mask``: 1 where there is a label, else 0. All int64, shape
    (sequence_length_decoder,). ``truncated`` (int): 1 if sentences were too long for the sample,
    else 0.
    """

    config: T5MaskedWordPieceDatasetConfig

    _make_together = staticmethod(make_t5_batch)
    _build_b1ss_attention_mask = staticmethod(build_pair_mask)
    config_attention_mask = staticmethod(choose_attention_masks)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Return the settings that are part of Megatron's cache key."""
        return [*MaskedWordPieceDataset._key_config_attributes(), "sequence_length_decoder"]

    def _sentence_rules(self) -> SentenceRules:
        """Return the size of samples."""
        return SentenceRules(self.config.sequence_length - _NUM_SPECIAL, 1)

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> Any:
        """Return the replacement of a masked token: always the mask."""
        return self.config.tokenizer.mask
