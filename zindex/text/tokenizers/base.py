"""The tokenizer interface that Megatron's datasets expect."""

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, NoReturn

from zindex.arrays import IntegerArray


def special_token(name: str, meaning: str) -> property:
    """Return a property that looks up the id of a special token."""

    def find(tokenizer: "MegatronTokenizer") -> int:
        return tokenizer._find_special(name)

    return property(find, doc=f"Id of {meaning}; NotImplementedError if there is none.")


class MegatronTokenizer(ABC):
    """Base class of tokenizers: special tokens, and the identity used in cache keys.

    Parameters
    ----------
    tokenizer_paths
        Paths or prefixes of the tokenizer's files.
    tokenizer_options
        Other options of the tokenizer, included in its identity as text.

    Attributes
    ----------
    unique_identifiers
        Class name, paths and options, in this order.
    unique_description
        The same as indented JSON.
    """

    def __init__(self, *tokenizer_paths: str, **tokenizer_options: Any) -> None:
        super().__init__()
        self.unique_identifiers: OrderedDict[str, Any] = OrderedDict()
        self.unique_identifiers["class"] = type(self).__name__
        self.unique_identifiers["tokenizer_path"] = list(tokenizer_paths)
        for name, value in tokenizer_options.items():
            self.unique_identifiers[name] = str(value)
        self.unique_description = json.dumps(self.unique_identifiers, indent=4)

    @abstractmethod
    def tokenize(self, text: str) -> Any:
        """Return the token ids of a text."""

    def detokenize(self, ids: IntegerArray) -> str:
        """Return the text of token ids; raise NotImplementedError if it cannot decode."""
        self._refuse("method", "detokenize")

    def offsets(self, ids: list[int], text: str) -> list[int]:
        """Return the start of each token in the text; raise NotImplementedError if unknown."""
        self._refuse("method", "offsets")

    @property
    @abstractmethod
    def vocab(self) -> dict[str, int]:
        """Mapping from token text to id."""

    @property
    @abstractmethod
    def inv_vocab(self) -> dict[int, str]:
        """Mapping from id to token text."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids."""

    cls = special_token("cls", "the classification token")
    sep = special_token("sep", "the separator")
    pad = special_token("pad", "padding")
    eod = special_token("eod", "the end of a document")
    bos = special_token("bos", "the beginning of a sequence")
    eos = special_token("eos", "the end of a sequence")
    mask = special_token("mask", "the mask token")

    def _find_special(self, name: str) -> int:
        """Return the id of a special token; the base class has none."""
        self._refuse("attribute", name)

    def _refuse(self, kind: str, name: str) -> NoReturn:
        """Raise NotImplementedError for an optional member that this tokenizer lacks."""
        raise NotImplementedError(f"{type(self).__name__} has no {kind} {name!r}")


def find_token(tokenizer: Any, name: str) -> int | None:
    """Return the id of a special token such as ``pad``; None if the tokenizer has none."""
    try:
        value = getattr(tokenizer, name)
    except (AttributeError, NotImplementedError):
        return None
    return None if value is None else int(value)
