"""Tokens masked in plain Python, for datasets that replace tokens in a way of their own.

The kernel in `zindex.kernels.masking` does the same many times faster. Source: Megatron Core
``MaskedWordPieceDataset._create_masked_lm_predictions``.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from zindex.datasets.masking.vocabulary import ngram_chances
from zindex.errors import ConfigError
from zindex.kernels.masking import SEPARATOR, UNKNOWN, WORD

if TYPE_CHECKING:
    from zindex.datasets.masked_dataset import MaskedWordPieceDatasetConfig

# Chance of each further word of an n-gram: SpanBERT (arXiv:1907.10529), section 3.1.
_STOP = 0.2

#: Masked tokens, masked positions and their tokens before, whether a word or separator begins at
#: each position, and the masked n-grams: positions and tokens before.
Masked = tuple[list[int], list[int], list[int], list[int], list[tuple[list[int], list[int]]]]


def mask_tokens(
    token_ids: Sequence[int],
    target_sequence_length: int,
    random_state: np.random.RandomState,
    config: "MaskedWordPieceDatasetConfig",
    get_token_mask: Callable[[np.random.RandomState], int | None],
) -> Masked:
    """Return the tokens of a sample with some of them masked.

    Parameters
    ----------
    token_ids
        The tokens.
    target_sequence_length
        Tokens that the sample may have at most.
    random_state
        What is drawn from.
    config
        How to mask.
    get_token_mask
        Returns what stands for a masked token; None keeps it.

    Raises
    ------
    ConfigError
        If the tokenizer does not know a token.
    """
    tokens = [int(token) for token in token_ids]
    boundaries, words = _find_words(tokens, config)
    probability = config.masking_probability
    wanted = min(probability * target_sequence_length, max(1, round(len(tokens) * probability)))
    ngrams = _NgramChooser(words, config, random_state)
    order = list(range(len(words)))
    random_state.shuffle(order)
    labels: dict[int, int] = {}
    spans = []
    for word in order:
        if len(labels) >= wanted:
            break
        positions = ngrams.draw(word, wanted - len(labels), labels)
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
            for position in ngrams.draw(word, wanted - len(moved), labels | moved):
                moved[position] = tokens[position]
        others = sorted(moved)
        random_state.shuffle(others)
        for position, other in zip(sorted(moved), others, strict=True):
            tokens[position] = moved[other]
        labels |= moved
    masked = sorted(labels)
    spans.sort(key=lambda span: span[0][0])
    return tokens, masked, [labels[position] for position in masked], boundaries, spans


def _find_words(
    tokens: Sequence[int], config: "MaskedWordPieceDatasetConfig"
) -> tuple[list[int], list[list[int]]]:
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
    """Return the error of data that hold a token which the tokenizer lacks."""
    return ConfigError(
        f"the tokenizer must know every token of {where}, its inv_vocab has no id {token}; take "
        "the tokenizer that the data were made with"
    )


class _NgramChooser:
    """Draws how many words from one on are taken together."""

    def __init__(
        self,
        words: list[list[int]],
        config: "MaskedWordPieceDatasetConfig",
        random_state: np.random.RandomState,
    ) -> None:
        self.words = words
        self.is_geometric = bool(config.masking_use_geometric_distribution)
        self.max_ngram = int(config.masking_max_ngram)
        self.chances = ngram_chances(
            self.max_ngram, prefers_long=bool(config.masking_use_longer_ngrams)
        )
        self.random_state = random_state

    def draw(self, word: int, space: float, taken: dict[int, int]) -> list[int]:
        """Return the positions of an n-gram: as many words as fit, none if one is taken."""
        if self.is_geometric:
            ngram = min(self.random_state.geometric(_STOP), self.max_ngram)
        else:
            ngram = 1 + int(self.random_state.choice(self.max_ngram, p=self.chances))
        for count in range(ngram, 0, -1):
            positions = [at for part in self.words[word : word + count] for at in part]
            if len(positions) <= space:
                return [] if any(at in taken for at in positions) else positions
        return []
