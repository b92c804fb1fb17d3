"""Tokenizers without a vocabulary file: decimal ids and UTF-8 bytes."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from zindex.errors import ConfigError
from zindex.text.tokenizers.text_tokenizer import TextTokenizer

_NUM_BYTES = 256


class NullTokenizer(TextTokenizer):
    """Decimal ids separated by spaces, for tests and mock data.

    Parameters
    ----------
    vocab_size
        Number of ids allowed in texts, >= 1; the next id marks the end of a document.

    Raises
    ------
    ConfigError
        If ``vocab_size`` is not positive.

    Notes
    -----
    There is no padding token; ``cls``, ``sep`` and ``mask`` are -1. Source: Megatron Core
    ``tokenizers/text/libraries/null_tokenizer.py``.

    Examples
    --------
    >>> tokenizer = NullTokenizer(10)
    >>> tokenizer.text_to_ids("3 1 4"), tokenizer.eod, tokenizer.vocab_size
    ([3, 1, 4], 10, 11)
    """

    library = "null"

    def __init__(self, vocab_size: int) -> None:
        if int(vocab_size) < 1:
            raise ConfigError(
                f"vocab_size of a NullTokenizer must be at least 1, got {vocab_size}; give the ids "
                "that texts may hold"
            )
        super().__init__(vocab_size=int(vocab_size))
        self._num_ids = int(vocab_size) + 1

    @property
    def vocab(self) -> dict[str, int]:
        """Mapping from each number, as text, to itself."""
        return {str(number): number for number in range(self.vocab_size)}

    def special_id(self, name: str) -> int | None:
        """Return -1 for special tokens that Megatron sets to -1; None for unknown names."""
        if name in ("cls_token", "sep_token", "mask_token"):
            return -1
        return self._num_ids - 1 if name == "eos_token" else None

    def _encode(self, text: str) -> list[int]:
        """Return the ids of a text; raise ConfigError if a word is not a valid id."""
        return list(map(self._parse, text.split()))

    def _parse(self, word: str) -> int:
        """Parse one word as an id."""
        found = self.token_to_id(word)
        if found is None:
            raise ConfigError(
                f"a text for the NullTokenizer must be ids from 0 to {self._num_ids - 1} with "
                f"blanks between, got {word!r}; take a tokenizer with a vocabulary for other texts"
            )
        return found

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Format ids as text."""
        return " ".join(str(int(number)) for number in ids)

    def token_to_id(self, token: str) -> int | None:
        """Parse a token as an id; None if it is invalid."""
        is_id = token.isascii() and token.isdecimal() and int(token) < self.vocab_size
        return int(token) if is_id else None

    def id_to_token(self, number: int) -> str | None:
        """Format an id as text; None if it is out of range."""
        return str(number) if 0 <= number < self.vocab_size else None

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the offset of the first character of each id."""
        lengths = [1 + len(str(number)) for number in ids]
        return [0, *accumulate(lengths)][: len(ids)]


class ByteLevelTokenizer(TextTokenizer):
    """UTF-8 bytes of a text.

    Parameters
    ----------
    special_tokens
        Special tokens, with ids at the end of the vocabulary, from the highest id downwards.
    vocab_size
        Number of ids without special tokens, >= 256.
    eos_id, pad_id, bos_id
        Ids of the end-of-sequence, padding and beginning-of-sequence tokens; None for none.

    Raises
    ------
    ConfigError
        If the vocabulary has fewer than 256 ids.

    Notes
    -----
    Source: Megatron Core ``tokenizers/text/libraries/bytelevel_tokenizer.py``. As in
    Megatron, trailing white space is stripped from decoded text.

    Examples
    --------
    >>> tokenizer = ByteLevelTokenizer(["<image>"])
    >>> tokenizer.text_to_ids("ab"), tokenizer.token_to_id("<image>"), tokenizer.eod
    ([97, 98], 512, 0)
    """

    library = "byte-level"

    def __init__(
        self,
        special_tokens: Sequence[str] = (),
        vocab_size: int = 512,
        eos_id: int | None = 0,
        pad_id: int | None = 1,
        bos_id: int | None = None,
    ) -> None:
        if vocab_size < _NUM_BYTES:
            raise ConfigError(
                f"vocab_size of a ByteLevelTokenizer must be at least {_NUM_BYTES}, for every "
                f"byte, got {vocab_size}; raise it"
            )
        super().__init__(
            special_tokens=tuple(special_tokens),
            vocab_size=vocab_size,
            eos_id=eos_id,
            pad_id=pad_id,
            bos_id=bos_id,
        )
        self._num_ids = vocab_size + len(special_tokens)
        self._special = {text: self._num_ids - 1 - i for i, text in enumerate(special_tokens)}
        self.additional_special_tokens = list(special_tokens)
        self._ids = {"eos_token": eos_id, "pad_token": pad_id, "bos_token": bos_id}

    @property
    def vocab(self) -> dict[str, int]:
        """Mapping from each byte, as a character, and each special token to its id."""
        found = {chr(number): number for number in range(_NUM_BYTES)}
        return found | dict(sorted(self._special.items(), key=lambda pair: pair[1]))

    def special_id(self, name: str) -> int | None:
        """Return the id of a named special token, or None."""
        return self._ids.get(name)

    def _encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Decode bytes; other ids and invalid UTF-8 are dropped."""
        content = bytes(int(number) for number in ids if number < _NUM_BYTES)
        return content.decode(errors="ignore").rstrip()

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a special token or of a character below 256, or None."""
        if token in self._special:
            return self._special[token]
        return ord(token) if len(token) == 1 and ord(token) < _NUM_BYTES else None

    def id_to_token(self, number: int) -> str | None:
        """Return the text of an id, or None."""
        if 0 <= number < _NUM_BYTES:
            return chr(number)
        return {place: text for text, place in self._special.items()}.get(number)

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the character offset of each byte."""
        starts = [i for i, letter in enumerate(text) for _ in letter.encode()]
        return starts[: len(ids)]
