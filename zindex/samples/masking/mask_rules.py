"""How tokens are masked: the rules as arrays for the kernel, and the same masking in plain Python.

Plain Python serves datasets that override how tokens are masked; the kernel in
`zindex.kernels.masking` is many times faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from zindex.arrays import Float64Array, Int64Array, UInt8Array
from zindex.errors import ConfigError
from zindex.formats.megatron_version import find_rules
from zindex.kernels.masking import PIECE, SEPARATOR, UNKNOWN, WORD, MaskingRules
from zindex.text.tokenizers.base import find_token

# WordPiece's prefix of all pieces of a word but the first.
_PIECE_PREFIX = "##"
# Chance that an n-gram ends after a word: SpanBERT (arXiv:1907.10529), section 3.1.
_STOP = 0.2
# By which BERT's random tokens are drawn in the order of ``inv_vocab``, and from sorted ids.
_FIRST_VERSIONS: dict[Literal["0.17", "main"], tuple[int, int]] = {"0.17": (0, 0), "main": (0, 18)}
# Objects around a tokenizer of transformers: those of Megatron, of its library, and of zindex.
_MAX_WRAPPERS = 4

#: Masked tokens, masked positions, their tokens before, a flag at each position where a word or
#: separator begins, and the masked n-grams as positions and tokens before.
Masked = tuple[list[int], list[int], list[int], list[int], list[tuple[list[int], list[int]]]]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of a WordPiece tokenizer."""

    #: Shape (largest id + 1,), uint8: the kind of each id, as `zindex.kernels.masking` names them.
    kinds: UInt8Array
    #: Shape (tokens,), int64: ids, of which random tokens are drawn by number.
    ids: Int64Array

    @classmethod
    def of(cls, tokenizer: Any, *, is_sorted: bool = False) -> "Vocabulary":
        """Return the vocabulary of a tokenizer: ``inv_vocab``, and ``cls`` and ``sep`` if any.

        Its ids are sorted, or in the order of ``inv_vocab``.
        """
        inv_vocab = tokenizer.inv_vocab
        ids = np.fromiter(inv_vocab, np.int64, len(inv_vocab))
        separators = [find_token(tokenizer, name) for name in ("cls", "sep")]
        known = [number for number in separators if number is not None]
        kinds = np.full(max([*known, int(ids.max(initial=-1))]) + 1, UNKNOWN, np.uint8)
        is_piece = [text.startswith(_PIECE_PREFIX) for text in inv_vocab.values()]
        kinds[ids] = np.where(is_piece, PIECE, WORD)
        kinds[known] = SEPARATOR
        return cls(kinds, np.sort(ids) if is_sorted else ids)


def find_bert_rules(tokenizer: Any) -> Literal["0.17", "main"]:
    """Return the version of Megatron by which BERT's random tokens are drawn by default.

    It is the installed one, or ``"main"``, which draws from sorted ids, if there is none. Fast
    tokenizers of transformers have their ids in another order in each process: these are sorted.
    """
    for _ in range(_MAX_WRAPPERS):
        if getattr(tokenizer, "is_fast", False) is True:
            return "main"
        inner = getattr(tokenizer, "_tokenizer", None)
        tokenizer = getattr(tokenizer, "tokenizer", None) if inner is None else inner
    return find_rules(_FIRST_VERSIONS)


def make_rules(config: Any, *, replaces: bool) -> MaskingRules:
    """Return how tokens are masked.

    Parameters
    ----------
    config
        A ``MaskedWordPieceDatasetConfig``.
    replaces
        Whether some masked tokens stay or become another token; otherwise all become the mask.
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


def ngram_chances(max_ngram: int, *, prefers_long: bool) -> Float64Array:
    """Return the chance of an n-gram of 1, 2, ... words: shape (max_ngram,).

    Examples
    --------
    >>> ngram_chances(2, prefers_long=False)
    array([0.66666667, 0.33333333])
    """
    chances: Float64Array = 1.0 / np.arange(1, max_ngram + 1)
    chances /= chances.sum(keepdims=True)
    if prefers_long:
        chances = chances[::-1]
    # Twice, because Megatron draws by chances that are rounded in this way.
    chances /= chances.sum(keepdims=True)
    return chances


@lru_cache(16)
def _ngram_bounds(max_ngram: int, *, prefers_long: bool) -> Float64Array:
    """Return the chance of at most 1, 2, ... words, rounded as ``RandomState.choice`` does."""
    bounds: Float64Array = np.cumsum(ngram_chances(max_ngram, prefers_long=prefers_long))
    bounds /= bounds[-1]
    return bounds


def mask_tokens(
    token_ids: Sequence[int],
    target_sequence_length: int,
    random_state: np.random.RandomState,
    config: Any,
    get_token_mask: Callable[[np.random.RandomState], int | None],
) -> Masked:
    """Return the tokens of a sample with some of them masked.

    Parameters
    ----------
    token_ids
        The tokens.
    target_sequence_length
        Maximal length of the sample, tokens.
    random_state
        Source of all draws.
    config
        A ``MaskedWordPieceDatasetConfig``.
    get_token_mask
        Returns the replacement of a masked token; None leaves it unchanged.

    Raises
    ------
    ConfigError
        If the tokenizer does not know a token.

    Notes
    -----
    Source: Megatron Core ``MaskedWordPieceDataset._create_masked_lm_predictions``.
    """
    tokens = [int(token) for token in token_ids]
    boundaries, words = _find_words(tokens, config)
    probability, max_ngram = config.masking_probability, int(config.masking_max_ngram)
    wanted = min(probability * target_sequence_length, max(1, round(len(tokens) * probability)))
    chances = ngram_chances(max_ngram, prefers_long=bool(config.masking_use_longer_ngrams))

    def draw_ngram(word: int, space: float, taken: dict[int, int]) -> list[int]:
        """Return the positions of as many words as fit; none if one is already masked."""
        if config.masking_use_geometric_distribution:
            ngram = min(random_state.geometric(_STOP), max_ngram)
        else:
            ngram = 1 + int(random_state.choice(max_ngram, p=chances))
        for count in range(ngram, 0, -1):
            positions = [at for part in words[word : word + count] for at in part]
            if len(positions) <= space:
                return [] if any(at in taken for at in positions) else positions
        return []

    order = list(range(len(words)))
    random_state.shuffle(order)
    labels: dict[int, int] = {}
    spans = []
    for word in order:
        if len(labels) >= wanted:
            break
        positions = draw_ngram(word, wanted - len(labels), labels)
        for position in positions:
            labels[position] = tokens[position]
            mask = get_token_mask(random_state)
            if mask is not None:
                tokens[position] = mask
        if positions:
            spans.append((positions, [labels[position] for position in positions]))
    random_state.shuffle(order)
    if config.masking_do_permutation:
        moved: dict[int, int] = {}
        for word in order:
            if len(moved) >= wanted:
                break
            for position in draw_ngram(word, wanted - len(moved), labels | moved):
                moved[position] = tokens[position]
        others = sorted(moved)
        random_state.shuffle(others)
        for position, other in zip(sorted(moved), others, strict=True):
            tokens[position] = moved[other]
        labels |= moved
    masked = sorted(labels)
    spans.sort(key=lambda span: span[0][0])
    return tokens, masked, [labels[position] for position in masked], boundaries, spans


def _find_words(tokens: Sequence[int], config: Any) -> tuple[list[int], list[list[int]]]:
    """Return where words and separators begin, and the positions of each word or piece."""
    boundaries: list[int] = []
    words: list[list[int]] = []
    kinds = config.vocabulary.kinds
    for position, token in enumerate(tokens):
        kind = int(kinds[token]) if 0 <= token < len(kinds) else UNKNOWN
        if kind == UNKNOWN:
            raise unknown_token(token, "its data")
        boundaries.append(int(kind in (WORD, SEPARATOR)))
        if kind == SEPARATOR:
            continue
        if kind == WORD or not config.masking_do_full_word or not words:
            words.append([position])
        else:
            words[-1].append(position)
    return boundaries, words


def unknown_token(token: int, where: str) -> ConfigError:
    """Return the error for data with a token unknown to the tokenizer."""
    return ConfigError(
        f"the tokenizer must know every token of {where}, its inv_vocab has no id {token}; take "
        "the tokenizer that the data were made with"
    )
