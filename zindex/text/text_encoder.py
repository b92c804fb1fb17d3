"""Text to token ids, by a tokenizer of any kind; none is downloaded and no code of one is run."""

import hashlib
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError
from zindex.text.tokenizer_settings import (
    TokenizerSettings,
    read_tokenizer_settings,
    settings_of_object,
)
from zindex.text.tokenizers.hugging_face import find_tokenizer_file, load_tokenizer_file
from zindex.text.tokenizers.opening import find_library, open_text_tokenizer
from zindex.text.tokenizers.text_tokenizer import TextTokenizer

Int64Array = npt.NDArray[np.int64]

#: A path, something with ``encode_batch`` or ``encode``, or a function from text to ids.
TokenizerLike = str | os.PathLike[str] | Callable[[str], Any] | Any

# The tokenizers library asks for ids of 32 bits.
_MAX_ID = 1 << 32
# Attributes under which tokenizers keep the id of the end of a document.
_END_NAMES = ("eod", "eos_token_id", "eos_id", "eod_id")


class TextEncoder:
    """Makes token ids of texts; pickles a tokenizer of a file by its path.

    Parameters
    ----------
    tokenizer
        The path of a ``tokenizer.json`` of the `tokenizers` library, of a file of another kind
        that `zindex.text.tokenizers.opening` knows, or of a folder that holds one; an object with
        ``encode_batch`` or ``encode``; or a function from a text to its ids.

    Raises
    ------
    ConfigError
        If it is none of these, or the file is missing or damaged.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.path: Path | None = None
        if isinstance(tokenizer, str | os.PathLike):
            if os.path.exists(tokenizer) and find_library(tokenizer) != "huggingface":
                tokenizer = open_text_tokenizer(tokenizer)
            else:
                self.path = find_tokenizer_file(Path(tokenizer))
                tokenizer = load_tokenizer_file(self.path)
        elif not callable(tokenizer) and not (
            hasattr(tokenizer, "encode") or hasattr(tokenizer, "encode_batch")
        ):
            raise ConfigError(
                "a tokenizer must be the path of a tokenizer.json, an object with encode, or a "
                f"function from text to ids, got {type(tokenizer).__name__}; pass one of these"
            )
        self.tokenizer: Any = tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "tokenizer": None if self.path else self.tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.path is not None:
            self.tokenizer = load_tokenizer_file(self.path)

    def identity(self) -> str:
        """Return the SHA-256 of a tokenizer's file, or what is known of another one."""
        if self.path is not None:
            return hashlib.sha256(self.path.read_bytes()).hexdigest()
        if isinstance(self.tokenizer, TextTokenizer):
            return self.tokenizer.identity()
        if hasattr(self.tokenizer, "to_str"):
            return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
        named = self.tokenizer if hasattr(self.tokenizer, "__qualname__") else type(self.tokenizer)
        return f"{named.__module__}.{named.__qualname__}"

    def encode(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[Int64Array]:
        """Return the ids of each text.

        Parameters
        ----------
        texts
            The texts.
        special_tokens
            Whether the tokenizer puts its own tokens around a text, if it does so at all; those
            that are written in the text are found in any case.

        Raises
        ------
        ConfigError
            If the tokenizer gives other things than whole numbers.
        """
        tokenizer = self.tokenizer
        plain = {} if special_tokens else {"add_special_tokens": False}
        if hasattr(tokenizer, "encode_batch_fast"):  # the same ids, without their places
            found: Any = tokenizer.encode_batch_fast(texts, **plain)
        elif hasattr(tokenizer, "encode_batch"):
            found = tokenizer.encode_batch(texts, **plain)
        else:
            encode = getattr(tokenizer, "encode", tokenizer)
            if plain and not _takes(encode, "add_special_tokens"):
                plain = {}
            found = [encode(text, **plain) for text in texts]
        return [self._take_ids(ids) for ids in found]

    def special_texts(self) -> list[str]:
        """Return the texts of all special tokens, as far as the tokenizer tells them."""
        if hasattr(self.tokenizer, "get_added_tokens_decoder"):
            added = self.tokenizer.get_added_tokens_decoder().values()
            return sorted({token.content for token in added if token.special})
        return sorted(map(str, getattr(self.tokenizer, "all_special_tokens", ())))

    def vocab_size(self) -> int | None:
        """Return how many ids there are, with those of added tokens; None: it is not known."""
        for name in ("get_vocab_size", "__len__"):
            if hasattr(self.tokenizer, name):
                return int(getattr(self.tokenizer, name)())
        return None

    def _take_ids(self, ids: Any) -> Int64Array:
        """Return ids as an array."""
        array = np.asarray(getattr(ids, "ids", ids))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ConfigError(
                "a tokenizer must give a list of whole numbers for a text, "
                f"{type(self.tokenizer).__name__} gives {type(ids).__name__} of {array.dtype} and "
                f"shape {array.shape}; wrap it in a function that returns ids"
            )
        return array.astype(np.int64, copy=False)

    def settings(self) -> TokenizerSettings:
        """Return what the tokenizer says of itself: its special tokens and chat templates.

        Raises
        ------
        ConfigError
            If a file beside it is damaged.
        """
        if self.path is not None:
            return read_tokenizer_settings(self.path)
        return settings_of_object(self.tokenizer)

    def find_end(self, token: bool | int | str, what: str) -> int | None:
        """Return the id behind documents: as `find_id`, but True is first the ``eos_token``.

        Raises
        ------
        ConfigError
            If the tokenizer has no such token.
        """
        if token is True:
            token = self.settings().special_tokens.get("eos_token", True)
        return self.find_id(token, what)

    def find_id(self, token: bool | int | str, what: str) -> int | None:
        """Return the id of a special token.

        Parameters
        ----------
        token
            Its id, its text, True for the tokenizer's own end of a document, or False for none.
        what
            The argument that asks for it, for the message.

        Raises
        ------
        ConfigError
            If the tokenizer has no such token.
        """
        if token is False:
            return None
        if not isinstance(token, bool | str):
            return self._check_id(token, what)
        found = None
        if token is True:
            ids = (getattr(self.tokenizer, name, None) for name in _END_NAMES)
            found = next((number for number in ids if isinstance(number, int)), None)
        else:
            for name in ("token_to_id", "convert_tokens_to_ids"):
                if found is None and hasattr(self.tokenizer, name):
                    found = getattr(self.tokenizer, name)(token)
        if found is None:
            sought = "an end of documents" if token is True else f"the token {token!r}"
            kind = type(self.tokenizer).__name__
            owner: Any = self.path or getattr(self.tokenizer, "path", None) or kind
            raise ConfigError(
                f"{what} needs {sought}, which {owner} does not name; give a token's text or id, "
                "or False (none) to do without"
            )
        return int(found)

    def _check_id(self, number: Any, what: str) -> int:
        """Return an id that a user gave, if there can be such a one."""
        size = self.vocab_size()
        is_whole = isinstance(number, int | np.integer)
        if not is_whole or number < 0 or (size is not None and not self._has_id(number, size)):
            bound = "of the vocabulary" if size is None else f"below {size:,}"
            raise ConfigError(
                f"{what} must be the text of a token or an id from 0 on, {bound}, got {number!r}; "
                "look it up in the tokenizer"
            )
        return int(number)

    def _has_id(self, number: int, size: int) -> bool:
        """Return whether a tokenizer has an id; with gaps below, some are beyond the size."""
        if number < size or number >= _MAX_ID or not hasattr(self.tokenizer, "id_to_token"):
            return number < size
        return self.tokenizer.id_to_token(int(number)) is not None


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has an argument of a name."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some written in C do not tell
        return False
    return name in found or any(item.kind is item.VAR_KEYWORD for item in found.values())
