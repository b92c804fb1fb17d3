"""Tokens and texts of documents, read by position."""

import os
from collections.abc import Iterable
from typing import Any, Protocol

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import ConfigError
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.corpora.pairs import open_corpus
from zindex.ingest.length_source import is_store
from zindex.io.objects import place_of
from zindex.store.tokenizer_note import read_note
from zindex.text.kept_tokenizer import choose_tokenizer
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer


class Decoder(Protocol):
    """What turns tokens into text."""

    def __call__(self, tokens: list[int]) -> str:
        """Return the text of tokens."""


def resolve_tokenizer(tokenizer: Any, stores: Iterable[str]) -> Any:
    """Return a tokenizer: the given one, of the file at the given path, or the one that is kept.

    Parameters
    ----------
    tokenizer
        A tokenizer, the path of its file or folder, or True for the one that the stores keep.
    stores
        Paths of corpora or other stores.

    Raises
    ------
    ConfigError
        If it is to be a kept one, and no store keeps one.
    """
    if tokenizer is True:
        notes = {path: read_note(place_of(path)) if is_store(path) else None for path in stores}
        return choose_tokenizer(notes)
    if isinstance(tokenizer, str | os.PathLike):
        return open_text_tokenizer(tokenizer)
    return tokenizer


def as_decoder(tokenizer: Any, stores: Iterable[str]) -> Decoder | None:
    """Return the function that turns tokens into text; None without a tokenizer.

    Parameters
    ----------
    tokenizer, stores
        As of `resolve_tokenizer`; None or False for no tokenizer.

    Raises
    ------
    ConfigError
        If the tokenizer has no such function.
    """
    if tokenizer is None or tokenizer is False:
        return None
    tokenizer = resolve_tokenizer(tokenizer, stores)
    decode: Decoder | None = getattr(tokenizer, "detokenize", None)
    decode = decode or getattr(tokenizer, "decode", None)
    if decode is None:
        raise ConfigError(
            f"a tokenizer must have detokenize or decode, got {type(tokenizer).__name__}; give its "
            "file, such as tokenizer.json"
        )
    return decode


def check_document(document: int, num_documents: int, path: str) -> None:
    """Refuse the number of a document that a corpus does not have."""
    if not 0 <= document < num_documents:
        raise ConfigError(
            f"a document must be in [0, {num_documents:,}), the documents of {path}, got "
            f"{document:,}; name one of these"
        )


class Documents:
    """Documents of corpora by path, which are opened once.

    A document is a sequence as Megatron stores it, which is what samples of GPT datasets consist
    of.
    """

    def __init__(self) -> None:
        self._opened: dict[str, Corpus] = {}

    def open(self, path: str) -> Corpus:
        """Return an opened corpus."""
        if path not in self._opened:
            self._opened[path] = open_corpus(path)
        return self._opened[path]

    def length(self, path: str, document: int) -> int:
        """Return the tokens of a document.

        Raises
        ------
        ConfigError
            If there is no such document.
        """
        corpus = self.open(path)
        check_document(document, corpus.num_sequences, path)
        return int(corpus.read(schema.SEQUENCE_LENGTH.name, document, document + 1)[0])

    def read(self, path: str, document: int, start: int, stop: int) -> AnyArray:
        """Return tokens ``[start, stop)`` of a document."""
        corpus = self.open(path)
        first = int(corpus.read(schema.SEQUENCE_OFFSET.name, document, document + 1)[0])
        return corpus.read(schema.TOKENS.name, first + start, first + stop)
