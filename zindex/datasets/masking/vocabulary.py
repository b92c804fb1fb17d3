"""What masking asks of a tokenizer and of the settings, as arrays that a kernel takes."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError
from zindex.kernels.masking import PIECE, SEPARATOR, UNKNOWN, WORD, MaskingRules

if TYPE_CHECKING:
    from zindex.datasets.masked_dataset import MaskedWordPieceDatasetConfig

# What WordPiece begins the pieces of a word with, but for the first.
_PIECE_PREFIX = "##"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of a WordPiece tokenizer."""

    #: Shape (largest id + 1,), uint8: the kind of each id, as `zindex.kernels.masking` names them.
    kinds: npt.NDArray[np.uint8]
    #: Shape (tokens,), int64: ids in the order of the tokenizer's ``inv_vocab``.
    ids: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Return the vocabulary of a tokenizer.

        Parameters
        ----------
        tokenizer
            Its ``inv_vocab`` is used, and ``cls`` and ``sep`` if it has them.
        """
        inv_vocab = tokenizer.inv_vocab
        ids = np.fromiter(inv_vocab, np.int64, len(inv_vocab))
        separators = [find_token(tokenizer, name) for name in ("cls", "sep")]
        known = [number for number in separators if number is not None]
        kinds = np.full(max([*known, int(ids.max(initial=-1))]) + 1, UNKNOWN, np.uint8)
        is_piece = [text.startswith(_PIECE_PREFIX) for text in inv_vocab.values()]
        kinds[ids] = np.where(is_piece, PIECE, WORD)
        kinds[known] = SEPARATOR
        return cls(kinds, ids)


def find_token(tokenizer: Any, name: str) -> int | None:
    """Return the id of a special token, None where the tokenizer has none."""
    try:
        value = getattr(tokenizer, name)
    except (AttributeError, NotImplementedError):
        return None
    return None if value is None else int(value)


def require_tokens(tokenizer: Any, names: tuple[str, ...], kind: str) -> None:
    """Refuse a tokenizer that lacks a special token.

    Parameters
    ----------
    tokenizer
        The tokenizer.
    names
        Properties that must give an id.
    kind
        What the datasets are called, for the message.

    Raises
    ------
    ConfigError
        If there is none.
    """
    missing = [name for name in names if find_token(tokenizer, name) is None]
    if missing:
        raise ConfigError(
            f"the tokenizer of {kind} datasets must have {', '.join(names)}, "
            f"{type(tokenizer).__name__} has no {', '.join(missing)}; take a WordPiece tokenizer "
            "with these special tokens"
        )


def make_rules(config: "MaskedWordPieceDatasetConfig", *, replaces: bool) -> MaskingRules:
    """Return how tokens are masked.

    Parameters
    ----------
    config
        The configuration.
    replaces
        Whether some masked tokens stay or become another token; else all become the mask.
    """
    vocabulary = config.vocabulary
    return MaskingRules(
        probability=float(config.masking_probability),
        max_ngram=int(config.masking_max_ngram),
        ngram_bounds=_ngram_bounds(
            int(config.masking_max_ngram), prefers_long=bool(config.masking_use_longer_ngrams)
        ),
        of_words=bool(config.masking_do_full_word),
        is_geometric=bool(config.masking_use_geometric_distribution),
        permutes=bool(config.masking_do_permutation),
        kinds=vocabulary.kinds,
        mask=int(config.tokenizer.mask),
        replacements=vocabulary.ids if replaces else vocabulary.ids[:0],
    )


def ngram_chances(max_ngram: int, *, prefers_long: bool) -> npt.NDArray[np.float64]:
    """Return the chance of an n-gram of 1, 2, ... words: shape (max_ngram,).

    Examples
    --------
    >>> ngram_chances(2, prefers_long=False)
    array([0.66666667, 0.33333333])
    """
    chances: npt.NDArray[np.float64] = 1.0 / np.arange(1, max_ngram + 1)
    chances /= chances.sum(keepdims=True)
    if prefers_long:
        chances = chances[::-1]
    # Once more, for rounding is part of what Megatron draws by.
    chances /= chances.sum(keepdims=True)
    return chances


@lru_cache(16)
def _ngram_bounds(max_ngram: int, *, prefers_long: bool) -> npt.NDArray[np.float64]:
    """Return the chance of at most 1, 2, ... words, rounded as ``RandomState.choice`` does."""
    bounds: npt.NDArray[np.float64] = np.cumsum(ngram_chances(max_ngram, prefers_long=prefers_long))
    bounds /= bounds[-1]
    return bounds
