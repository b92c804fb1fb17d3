"""Fill in the middle: move the middles of texts to their ends."""

import operator
from collections.abc import Callable
from inspect import signature
from typing import Any, Protocol

import numpy as np

from zindex.arrays import ArrayLike, Int64Array, UInt64Array
from zindex.errors import ConfigError

#: Special tokens used by fill-in-the-middle.
EXTRA_TOKENS = ("prefix", "middle", "suffix", "pad", "eod")


class Draws(Protocol):
    """Random numbers for the middles of texts."""

    def draw(self, rate: float) -> bool:
        """Return True with this probability: never for 0, always for 1."""

    def cut(self, length: int) -> tuple[int, int]:
        """Return two numbers in ``[0, length]``, in order."""


class RandomStream:
    """Random numbers from a key, stable across versions of numpy: only raw words are numpy's.

    Parameters
    ----------
    key
        Shape (2,), uint64.
    """

    def __init__(self, key: UInt64Array) -> None:
        self._next_word = np.random.Philox(key=key).random_raw

    def draw(self, rate: float) -> bool:
        """Return True with this probability: never for 0, always for 1."""
        return bool((int(self._next_word()) >> 11) * 2.0**-53 < rate)

    def below(self, bound: int) -> int:
        """Return a number in ``[0, bound)``, each equally likely to within ``bound / 2**64``."""
        return int(self._next_word()) * bound >> 64

    def cut(self, length: int) -> tuple[int, int]:
        """Return two numbers in ``[0, length]``, in order."""
        first, second = self.below(length + 1), self.below(length + 1)
        return min(first, second), max(first, second)


class SequentialDraws:
    """Random numbers of a generator that every draw advances, as in Megatron.

    Parameters
    ----------
    generator
        Numpy's legacy generator.
    """

    def __init__(self, generator: np.random.RandomState) -> None:
        self.generator = generator

    def draw(self, rate: float) -> bool:
        """Return True with this probability: never for 0, always for 1."""
        return bool(self.generator.binomial(1, rate))

    def cut(self, length: int) -> tuple[int, int]:
        """Return two numbers in ``[0, length]``, in order."""
        first, second = self.generator.randint(0, length + 1, size=2).tolist()
        return min(first, second), max(first, second)


class TextCodec:
    """Encode and decode text by the methods of Megatron's tokenizers or of their libraries.

    Parameters
    ----------
    tokenizer
        Has ``_tokenizer``, or has itself, ``text_to_ids``, ``ids_to_text`` and ``tokens_to_ids``;
        or ``tokenize``, ``detokenize`` and ``vocab``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._library: Any = None
        self._options: dict[str, bool] = {}
        owners: list[Any] = [getattr(tokenizer, "_tokenizer", None), tokenizer]
        for owner in owners:
            if hasattr(owner, "text_to_ids") and hasattr(owner, "ids_to_text"):
                self._library = owner
                if "remove_special_tokens" in signature(owner.ids_to_text).parameters:
                    self._options["remove_special_tokens"] = True
                break

    def encode(self, text: str) -> Int64Array:
        """Return the ids of a text."""
        library = self._library
        make = self.tokenizer.tokenize if library is None else library.text_to_ids
        return np.asarray(list(make(text)), np.int64)

    def decode(self, ids: Int64Array) -> str:
        """Return the text of ids, without special tokens if the library can omit them."""
        if self._library is None:
            return str(self.tokenizer.detokenize(ids.tolist()))
        return str(self._library.ids_to_text(ids.tolist(), **self._options))

    def find_id(self, token: str, setting: str) -> int:
        """Return the id of a special token.

        Raises
        ------
        ConfigError
            If the tokenizer has no such token.
        """
        library = self._library
        if library is None:
            found = [self.tokenizer.vocab.get(token)]
        else:
            found = library.tokens_to_ids([token])
        try:
            [number] = map(operator.index, found)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{setting} must name one token of the tokenizer, got {token!r}, of which "
                f"{type(self.tokenizer).__name__} makes {found!r}; add it to the tokenizer's "
                "special tokens"
            ) from None
        return number


class MiddleFiller:
    """Move the middles of texts to their ends, by the settings of a `GPTFIMDatasetConfig`.

    Parameters
    ----------
    config
        The configuration; its tokenizer is as for `TextCodec`.
    """

    def __init__(self, config: Any) -> None:
        self.codec = TextCodec(config.tokenizer)
        ids = [
            self.codec.find_id(config.fim_extra_tokens[name], f"fim_extra_tokens[{name!r}]")
            for name in EXTRA_TOKENS
        ]
        if len(set(ids[:3])) < 3:
            raise ConfigError(
                "the tokens prefix, middle and suffix of fim_extra_tokens must have ids of their "
                f"own, got {ids[:3]}, as of tokens that {type(config.tokenizer).__name__} does "
                "not know; add them to the tokenizer's special tokens"
            )
        self.prefix, self.middle, self.suffix, self.pad, self.eod = ids
        self.rate, self.spm_rate = config.fim_rate, config.fim_spm_rate
        rate = config.fim_fragment_rate
        self.fragment_rate = self.rate if rate is None else rate
        self.no_prefix = config.fim_no_prefix
        self.split_token: int | None = None
        if config.fim_split_sample:
            self.split_token = self.codec.find_id(config.fim_split_sample, "fim_split_sample")

    def fill(self, tokens: Int64Array, fill_text: Callable[[Int64Array], Int64Array]) -> Int64Array:
        """Return a sample with the middles of its texts moved.

        Parameters
        ----------
        tokens
            Shape (tokens,), ids of a sample without padding; its texts end with the extra token
            ``eod``.
        fill_text
            Returns a text with its middle moved, for example by `fill_text`.

        Returns
        -------
        filled
            Shape (tokens,): truncated if it became longer, and padded with the extra token ``pad``
            if it became shorter.

        Notes
        -----
        As in Megatron, an empty text loses its end token. Source: Megatron-LM, ``GPTFIMDataset``.
        """
        filled = _fill_texts(tokens, self.eod, fill_text)
        result = np.full(len(tokens), self.pad, np.int64)
        count = min(len(filled), len(tokens))
        result[:count] = filled[:count]
        return result

    def fill_text(
        self,
        tokens: Int64Array,
        draws: Draws,
        permute: Callable[[Int64Array, float], Int64Array] | None = None,
        *,
        keep_all: bool,
    ) -> Int64Array:
        """Return one text with its middle moved, or those of its fragments.

        Parameters
        ----------
        tokens
            Shape (tokens,), ids.
        draws
            The random numbers.
        permute
            Moves the middle of a text with a probability; by default `permute`.
        keep_all
            Whether the split token after an empty fragment is kept; Megatron drops it.
        """

        def move(text: Int64Array, rate: float) -> Int64Array:
            return permute(text, rate) if permute else self.permute(text, rate, draws)

        if self.split_token is None or not (tokens == self.split_token).any():
            return move(tokens, self.rate)
        if not draws.draw(self.rate):
            return tokens
        return _fill_texts(
            tokens,
            self.split_token,
            lambda fragment: move(fragment, self.fragment_rate),
            keep_all=keep_all,
        )

    def permute(
        self,
        tokens: Int64Array,
        rate: float,
        draws: Draws,
        *,
        keep_length: bool = False,
        only_draws: bool = False,
    ) -> Int64Array:
        """Return tokens with the middle of their text moved, with this probability.

        Parameters
        ----------
        tokens
            Shape (tokens,), ids.
        rate
            The probability.
        draws
            The random numbers.
        keep_length
            Truncate or pad the suffix to the length of ``tokens``, which are returned if the suffix
            is too short for that.
        only_draws
            Draw the random numbers, but return ``tokens``.

        Notes
        -----
        Law: with the numbers of Megatron's generator, the result equals Megatron's. Source:
        Megatron-LM, ``GPTFIMDataset._permute``; Bavarian et al. (2022), the second variant of the
        order suffix, prefix, middle.
        """
        if not draws.draw(rate):
            return tokens
        text = self.codec.decode(tokens)
        if self.no_prefix is not None and text.startswith(self.no_prefix):
            return tokens
        # Split between characters, not tokens: models must learn to start within a token.
        start, stop = draws.cut(len(text))
        if only_draws and not keep_length:
            draws.draw(self.spm_rate)
            return tokens
        texts = text[:start], text[start:stop], text[stop:]
        prefix, middle, suffix = map(self.codec.encode, texts)
        if keep_length:
            room = len(tokens) - len(prefix) - len(middle) - 3
            if room <= 0 and len(suffix) > room:
                return tokens
            suffix = np.concatenate([suffix[:room], np.full(max(0, room - len(suffix)), self.pad)])
        parts: list[ArrayLike] = [[self.prefix], prefix, [self.suffix], suffix, [self.middle]]
        if draws.draw(self.spm_rate):
            parts = [[self.prefix, self.suffix], suffix, [self.middle], prefix]
        return np.concatenate([*parts, middle], dtype=np.int64)


def _fill_texts(
    tokens: Int64Array,
    separator: int,
    fill: Callable[[Int64Array], Int64Array],
    *,
    keep_all: bool = False,
) -> Int64Array:
    """Return tokens with each text between separators filled.

    The separator after an empty text is dropped, unless ``keep_all`` is set.
    """
    done: list[ArrayLike] = []
    start = 0
    for stop in np.flatnonzero(tokens == separator).tolist():
        if stop > start:
            done += [fill(tokens[start:stop]), [separator]]
        elif keep_all:
            done.append([separator])
        start = stop + 1
    done.append(fill(tokens[start:]))
    return np.concatenate(done, dtype=np.int64)
