"""BERT datasets: masked tokens to predict, and whether two segments follow each other."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zindex.datasets.blended_megatron_dataset_config import CHOICES, DEFAULTS, BERTRules
from zindex.datasets.masked_dataset import (
    MISSING,
    MaskedWordPieceDataset,
    MaskedWordPieceDatasetConfig,
    SentenceRules,
)
from zindex.errors import check_choice
from zindex.samples.masking.mask_rules import find_bert_rules
from zindex.samples.masking.masked_batches import make_bert_batch

# The first token, and a separator after each of two segments.
_NUM_SPECIAL = 3


@dataclass
class BERTMaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """Settings of BERT datasets, by Megatron Core's names.

    Raises
    ------
    ConfigError
        If a setting is missing, out of range, or excludes another, or the tokenizer lacks a
        special token.
    """

    #: Whether samples have two segments, which are swapped half of the time.
    classification_head: bool = MISSING

    #: zindex: the Megatron version whose random tokens samples get. ``"main"`` draws from sorted
    #: ids, ``"0.17"`` and earlier from the order of the tokenizer's ``inv_vocab``. None is the
    #: installed version; ``"main"`` without one, and for fast tokenizers of transformers.
    bert_rules: BERTRules | None = field(default_factory=lambda: DEFAULTS.bert_rules, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        self._require("masked", "classification_head")
        self._check_kind("BERT", _NUM_SPECIAL, ("cls", "sep", "mask"))
        if self.bert_rules is None:
            self.bert_rules = find_bert_rules(self.tokenizer)
        check_choice("bert_rules", self.bert_rules, CHOICES["bert_rules"])

    @property
    def _sorts_tokens(self) -> bool:
        """Whether random tokens are drawn from sorted ids."""
        return self.bert_rules == "main"


class BERTMaskedWordPieceDataset(MaskedWordPieceDataset):
    """A split of a dataset as BERT's samples.

    80 % of the masked tokens become the mask, 10 % a random token, and 10 % are unchanged.
    Parameters, errors and keys of draws are those of ``MaskedWordPieceDataset``.

    An item has ``text``: the classification token, a segment, a separator, and with two segments
    the second and its separator, with masked tokens; 0 in padding. ``types``: 0 in the first
    segment, 1 in the second, the pad id in padding. ``labels``: tokens before masking, -1 elsewhere
    (0 if that is the pad id). ``padding_mask``: 1, the pad id in padding. ``loss_mask``: 1 where
    there is a label, else 0. All int64, shape (sequence_length,). ``is_random``: 1 if the segments
    are swapped, else 0. ``truncated``: 1 if sentences were too long for the sample, else 0. Both
    int.
    """

    config: BERTMaskedWordPieceDatasetConfig

    _make_together = staticmethod(make_bert_batch)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Return the settings that are part of Megatron's cache key."""
        return [*MaskedWordPieceDataset._key_config_attributes(), "classification_head"]

    def _sentence_rules(self) -> SentenceRules:
        """Return the size of samples: at least two sentences if there are two segments."""
        head = bool(self.config.classification_head)
        return SentenceRules(self.config.sequence_length - _NUM_SPECIAL, 2 if head else 1)

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> Any:
        """Return the replacement of a masked token: mostly the mask, else a random one or None."""
        if numpy_random_state.random_sample() < 0.8:
            return self.config.tokenizer.mask
        if numpy_random_state.random_sample() >= 0.5:
            return self.token_lookup[numpy_random_state.randint(0, len(self.token_lookup))]
        return None
