"""Tokens and texts of documents, read by position."""

import os
from typing import Any, Protocol

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import ConfigError
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.corpora.pairs import open_corpus
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer


class Decoder(Protocol):
    """What turns tokens into text."""

    def __call__(self, tokens: list[int]) -> str:
        """Return the text of tokens."""


def as_decoder(tokenizer: Any) -> Decoder:
    """Return the function of a tokenizer, or of its file, that turns tokens into text.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = open_text_tokenizer(tokenizer)
    decode: Decoder | None = getattr(tokenizer, "detokenize", None)
    decode = decode or getattr(tokenizer, "decode", None)
    if decode is None:
        raise ConfigError(
            f"a tokenizer must have detokenize or decode, got {type(tokenizer).__name__}; give its "
            "file, such as tokenizer.json"
        )
    return decode


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
        if not 0 <= document < corpus.num_sequences:
            raise ConfigError(
                f"a document must be in [0, {corpus.num_sequences:,}), the documents of {path}, "
                f"got {document:,}; name one of these"
            )
        return int(corpus.read(schema.SEQUENCE_LENGTH.name, document, document + 1)[0])

    def read(self, path: str, document: int, start: int, stop: int) -> AnyArray:
        """Return tokens ``[start, stop)`` of a document."""
        corpus = self.open(path)
        first = int(corpus.read(schema.SEQUENCE_OFFSET.name, document, document + 1)[0])
        return corpus.read(schema.TOKENS.name, first + start, first + stop)
