"""The tokenizer that a Megatron dataset expects; no tokenizer itself lives here."""

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt


class MegatronTokenizer(ABC):
    """Base of tokenizers: special tokens, and what identifies the tokenizer in a cache key.

    Parameters
    ----------
    tokenizer_paths
        All paths or prefixes that the tokenizer is read from.
    tokenizer_options
        All its options; each of them becomes part of the identity, as text.

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
    def tokenize(self, text: str) -> npt.NDArray[Any]:
        """Return the token ids of a text."""

    def detokenize(self, ids: npt.NDArray[np.integer[Any]]) -> str:
        """Return the text of token ids; NotImplementedError where there is no way back."""
        self._refuse("method", "detokenize")

    def offsets(self, ids: list[int], text: str) -> list[int]:
        """Return where in the text each token starts; NotImplementedError where not known."""
        self._refuse("method", "offsets")

    @property
    @abstractmethod
    def vocab(self) -> dict[str, int]:
        """Token texts to ids."""

    @property
    @abstractmethod
    def inv_vocab(self) -> dict[int, str]:
        """Ids to token texts."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def cls(self) -> int:
        """Id of the classification token; NotImplementedError where there is none."""
        self._refuse("attribute", "cls")

    @property
    def sep(self) -> int:
        """Id of the separator; NotImplementedError where there is none."""
        self._refuse("attribute", "sep")

    @property
    def pad(self) -> int:
        """Id of padding; NotImplementedError where there is none."""
        self._refuse("attribute", "pad")

    @property
    def eod(self) -> int:
        """Id of the end of a document; NotImplementedError where there is none."""
        self._refuse("attribute", "eod")

    @property
    def bos(self) -> int:
        """Id of the beginning of a sequence; NotImplementedError where there is none."""
        self._refuse("attribute", "bos")

    @property
    def eos(self) -> int:
        """Id of the end of a sequence; NotImplementedError where there is none."""
        self._refuse("attribute", "eos")

    @property
    def mask(self) -> int:
        """Id of the mask token; NotImplementedError where there is none."""
        self._refuse("attribute", "mask")

    def _refuse(self, kind: str, name: str) -> NoReturn:
        """Raise for something optional that this tokenizer has not."""
        raise NotImplementedError(f"{type(self).__name__} has no {kind} {name!r}")


#: The name that Megatron Core gives the same class since its own tokenizers moved.
MegatronLegacyTokenizer = MegatronTokenizer
