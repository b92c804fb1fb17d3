"""Tokenizers for SentencePiece ``.model`` files."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zindex.errors import ConfigError
from zindex.lazy import need
from zindex.text.tokenizers.text_tokenizer import TextTokenizer, local_file

_NAMES = ("bos", "eos", "unk", "pad")
# SentencePiece writes a space as this character.
_BLANK = "\u2581"


class SentencePieceTokenizer(TextTokenizer):
    """A SentencePiece model.

    Parameters
    ----------
    path
        The ``.model`` file.
    special_tokens
        Tokens to match before the model encodes a text: a list, or a mapping by name, such as
        ``{"mask_token": "<MASK>"}``. Tokens that the model lacks get the next ids.
    vocab_extra_ids
        Number of sentinel tokens ``<extra_id_0>`` and so on to add, for T5.
    legacy
        Accepted for compatibility with Megatron and ignored; only ``special_tokens`` matters.

    Raises
    ------
    ConfigError
        If the file is missing or is not a SentencePiece model.

    Notes
    -----
    With special tokens, a text is split at them, the parts are encoded separately, and the space
    that the model adds after a special token is removed. Source: Megatron Core
    ``tokenizers/text/libraries/sentencepiece_tokenizer.py``, with and without ``legacy``.
    """

    library = "sentencepiece"

    def __init__(
        self,
        path: str | os.PathLike[str],
        special_tokens: Mapping[str, str] | Sequence[str] | None = None,
        vocab_extra_ids: int = 0,
        legacy: bool = False,
    ) -> None:
        file = local_file(path, "a SentencePiece model")
        library = need("sentencepiece", "a SentencePiece model")
        options = {"special_tokens": special_tokens, "vocab_extra_ids": vocab_extra_ids}
        super().__init__(file, **{name: value for name, value in options.items() if value})
        try:
            model = library.SentencePieceProcessor(model_file=str(file))
        except Exception as error:  # the library raises several kinds
            raise ConfigError(
                f"{file} must be a SentencePiece model: {error}; save the tokenizer again"
            ) from error
        self._set_model(model)
        if special_tokens:
            self._name_tokens(special_tokens)
        self._name_tokens([f"<extra_id_{number}>" for number in range(vocab_extra_ids)])

    def _set_model(self, model: Any) -> None:
        """Set the model, and name its special tokens."""
        self.model = model
        self._num_pieces = int(model.get_piece_size())
        self._own: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        for name in _NAMES:
            number = getattr(model, f"{name}_id")()
            if number >= 0:
                self.special_tokens_map[f"{name}_token"] = model.id_to_piece(number)

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        return self._num_pieces + sum(number >= self._num_pieces for number in self._own.values())

    @property
    def vocab(self) -> dict[str, int]:
        """Mapping from piece to id, sorted by id."""
        pieces = {self.model.id_to_piece(number): number for number in range(self._num_pieces)}
        return pieces | {text: at for text, at in self._own.items() if at >= self._num_pieces}

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text."""
        if self._pattern is not None:
            return super().encode_batch(texts)
        found: list[list[int]] = self.model.encode(list(texts), num_threads=1)
        return found

    def _encode(self, text: str) -> list[int]:
        """Return the ids of a text, after splitting it at special tokens."""
        assert self._pattern is not None
        blank = self.model.piece_to_id(_BLANK)
        ids: list[int] = []
        at = 0
        for found in self._pattern.finditer(text):
            rest = self.model.encode(text[at : found.start()])
            ids += rest[1:] if at and rest[:1] == [blank] else rest
            ids.append(self._own[found[0]])
            at = found.end()
        # Megatron keeps the space of the last part.
        ids += self.model.encode(text[at:])
        return ids

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text; added special tokens are surrounded by spaces."""
        numbers = [int(number) for number in ids]
        if self._pattern is None:
            return str(self.model.decode(numbers))
        texts = {number: text for text, number in self._own.items()}
        text, at = "", 0
        for place, number in enumerate(numbers):
            if number in texts:
                text += f"{self.model.decode(numbers[at:place])} {texts[number]} "
                at = place + 1
        return (text + str(self.model.decode(numbers[at:]))).strip()

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece, or None."""
        if token in self._own:
            return self._own[token]
        number = int(self.model.piece_to_id(token))
        is_unknown = number == self.model.unk_id() and token != self.model.id_to_piece(number)
        return None if is_unknown else number

    def id_to_token(self, number: int) -> str | None:
        """Return the piece of an id, or None."""
        if 0 <= number < self._num_pieces:
            return str(self.model.id_to_piece(number))
        return self.inv_vocab.get(number)

    def _add_tokens(self, tokens: Sequence[str]) -> None:
        for text in tokens:
            if text not in self._own:
                found = self.token_to_id(text)
                self._own[text] = self.vocab_size if found is None else found
        if self._own:
            self._pattern = re.compile("|".join(map(re.escape, self._own)))
