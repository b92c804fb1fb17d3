"""T5 datasets: text whose masked spans are sentinels, and the spans for the decoder."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zindex.datasets.masked_dataset import (
    MISSING,
    MaskedWordPieceDataset,
    MaskedWordPieceDatasetConfig,
)
from zindex.datasets.masking.attention_masks import build_pair_mask, choose_attention_masks
from zindex.datasets.masking.mapping import SentenceRules
from zindex.datasets.masking.t5_batches import make_t5_batch
from zindex.errors import ConfigError

__all__ = [
    "MaskedWordPieceDataset",
    "MaskedWordPieceDatasetConfig",
    "T5MaskedWordPieceDataset",
    "T5MaskedWordPieceDatasetConfig",
]

# One token in front of the decoder's input and one behind its labels, as Megatron counts.
_NUM_SPECIAL = 2


@dataclass
class T5MaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """Settings of T5 datasets, by Megatron Core's names.

    Raises
    ------
    ConfigError
        If a setting is missing, out of range, or excludes another, or the tokenizer has not what
        samples need.
    """

    sequence_length_encoder: int = field(init=False, default=MISSING)
    """Tokens of the encoder's input: ``sequence_length``."""

    sequence_length_decoder: int = MISSING
    """Tokens of the decoder's input and of its labels."""

    def __post_init__(self) -> None:
        """Check the settings and derive the encoder's length."""
        super().__post_init__()
        self.sequence_length_encoder = self.sequence_length
        self._require("sequence_length_decoder")
        self._require_length("T5", _NUM_SPECIAL)
        if self.sequence_length_decoder < 1:
            raise ConfigError(
                "sequence_length_decoder must be at least 1, got "
                f"{self.sequence_length_decoder}; raise it"
            )
        self._require_tokens(("mask", "bos", "eos"), "T5")
        sentinels = getattr(self.tokenizer, "additional_special_tokens_ids", None)
        if not sentinels:
            raise ConfigError(
                "the tokenizer of T5 datasets must have sentinels, "
                f"{type(self.tokenizer).__name__} has additional_special_tokens_ids {sentinels}; "
                "add some (--vocab-extra-ids)"
            )


class T5MaskedWordPieceDataset(MaskedWordPieceDataset):
    """A split of a dataset as T5's samples.

    Parameters, errors and what draws are keyed by are those of ``MaskedWordPieceDataset``.
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
        """Return how much a sample holds."""
        return SentenceRules(self.config.sequence_length - _NUM_SPECIAL, 1)

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative; None gives the first one with a loss
            mask of zeros, to fill up a batch.

        Returns
        -------
        item
            ``text_enc``: the text with a sentinel for each masked span; 0 in padding. ``enc_mask``:
            1, 0 in padding. Both int64, shape (sequence_length,). ``text_dec``: the token in front,
            and each sentinel with its span; 0 in padding. ``dec_mask``: 1, 0 in padding.
            ``labels``: ``text_dec`` without the token in front, and with the end token behind; -1
            in padding (0 if that is the pad id). ``loss_mask``: 1 where there is a label, else 0.
            All int64, shape (sequence_length_decoder,). ``truncated`` (int): 1 if sentences were
            too long for the sample, else 0.

        Raises
        ------
        IndexError
            If there is no such sample.
        ConfigError
            If the tokenizer does not know one of its tokens.
        """
        return self._make_batch([idx])[0]

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> Any:
        """Return what stands for a masked token: always the mask."""
        return self.config.tokenizer.mask
