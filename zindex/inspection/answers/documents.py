"""Read the tokens, texts and source fields of documents by number."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.corpora.document_fields import DocumentFields, open_fields
from zindex.ingest.corpora.pairs import is_url, open_corpus
from zindex.ingest.length_source import is_store
from zindex.inspection.answers.screen import escape
from zindex.io.objects import place_of
from zindex.store.tokenizer_note import read_note
from zindex.text.kept_tokenizer import choose_tokenizer
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer
from zindex.text.tokenizers.wrapped import wrap_tokenizer

# Endings of a store, and of the files of a pair.
_ENDS = ("", ".bin", ".idx")


class Decoder(Protocol):
    """Decodes tokens to text."""

    def __call__(self, tokens: list[int]) -> str:
        """Return the text of the tokens."""


def resolve_tokenizer(tokenizer: Any, stores: Iterable[str]) -> Any:
    """Return a tokenizer: the given one, one loaded from a path, or the one saved with a store.

    Parameters
    ----------
    tokenizer
        A tokenizer, the path of its file or folder, or True for the one saved with the stores.
    stores
        Paths of corpora or other stores.

    Raises
    ------
    ConfigError
        If ``tokenizer`` is True and no store has a saved tokenizer.
    """
    if tokenizer is True:
        notes = {path: read_note(place_of(path)) if is_store(path) else None for path in stores}
        return choose_tokenizer(notes)
    if isinstance(tokenizer, str | os.PathLike):
        return open_text_tokenizer(tokenizer)
    return tokenizer


def as_decoder(tokenizer: Any, stores: Iterable[str]) -> Decoder | None:
    """Return a function that decodes tokens, special ones too; None without a tokenizer.

    Parameters
    ----------
    tokenizer, stores
        See `resolve_tokenizer`; None or False for no tokenizer.

    Raises
    ------
    ConfigError
        If the tokenizer cannot decode.
    """
    if tokenizer is None or tokenizer is False:
        return None
    tokenizer = resolve_tokenizer(tokenizer, stores)
    tokenizer = wrap_tokenizer(tokenizer) or tokenizer
    names = ("ids_to_full_text", "detokenize", "decode")
    found = (getattr(tokenizer, name, None) for name in names)
    decode: Decoder | None = next(filter(None, found), None)
    if decode is None:
        raise ConfigError(
            f"a tokenizer must have detokenize or decode, got {type(tokenizer).__name__}; give its "
            "file, such as tokenizer.json"
        )
    return decode


def check_document(document: int, num_documents: int, path: str) -> None:
    """Raise ConfigError if a corpus has no document of this number."""
    if not 0 <= document < num_documents:
        raise ConfigError(
            f"a document must be in [0, {num_documents:,}), the documents of {path}, got "
            f"{document:,}; name one of these"
        )


class Documents:
    """Read documents of corpora by path; each corpus is opened once.

    A document is one sequence as Megatron stores it, the unit from which GPT samples are
    built.
    """

    def __init__(self) -> None:
        self._opened: dict[str, Corpus] = {}
        self._fields: dict[str, DocumentFields | None] = {}

    def open(self, path: str) -> Corpus:
        """Return an opened corpus.

        Raises
        ------
        StoreNotFoundError
            If nothing is at the path.
        """
        if path not in self._opened:
            if not is_url(path) and not any(os.path.exists(f"{path}{end}") for end in _ENDS):
                raise StoreNotFoundError(
                    f"there must be a corpus or a .bin/.idx pair at {path}, nothing is there; "
                    "check the path"
                )
            self._opened[path] = open_corpus(path)
        return self._opened[path]

    def length(self, path: str, document: int) -> int:
        """Return the length of a document, in tokens.

        Raises
        ------
        ConfigError
            If the document does not exist.
        """
        corpus = self.open(path)
        check_document(document, corpus.num_sequences, path)
        return int(corpus.read(schema.SEQUENCE_LENGTH.name, document, document + 1)[0])

    def read(self, path: str, document: int, start: int, stop: int) -> AnyArray:
        """Return tokens ``[start, stop)`` of a document."""
        corpus = self.open(path)
        first = int(corpus.read(schema.SEQUENCE_OFFSET.name, document, document + 1)[0])
        return corpus.read(schema.TOKENS.name, first + start, first + stop)

    def read_sources(
        self, path: str, documents: Sequence[int] | Int64Array
    ) -> list[dict[str, Any] | None]:
        """Return the fields of documents that their corpus keeps, such as id and url, if any."""
        if path not in self._fields:
            self._fields[path] = open_fields(path)
        fields = self._fields[path]
        if fields is None:
            return [None] * len(documents)
        return [
            {
                name: f"{len(value):,} bytes" if isinstance(value, bytes) else value
                for name, value in found.items()
            }
            for found in fields.read(documents)
        ]


def source_text(source: dict[str, Any]) -> str:
    """Format the fields of a document for a terminal, such as ``id doc-7, url https://a.org``."""
    return escape(", ".join(f"{name} {value}" for name, value in source.items()))
