"""Tokenizers of files under the names of Megatron's datasets and training scripts.

The tokenizers themselves are in ``zindex.text.tokenizers``.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zindex.datasets.tokenizer_metadata import (
    metadata_beside,
    read_metadata,
    resolve_megatron,
    write_metadata,
)
from zindex.errors import ConfigError
from zindex.text.tokenizers.base import MegatronTokenizer, find_token
from zindex.text.tokenizers.null_tokenizer import NullTokenizer
from zindex.text.tokenizers.open_tokenizer import find_library, open_text_tokenizer
from zindex.text.tokenizers.rust_tokenizers import TOKENIZER_FILE, WordPieceTokenizer
from zindex.text.tokenizers.text_tokenizer import NAMES

__all__ = [
    "NAMES",
    "TOKENIZER_FILE",
    "MegatronTokenizerText",
    "NullTokenizer",
    "WordPieceTokenizer",
]

# Megatron's arguments for downloads and remote code, both of which zindex never does.
_LOADING = ("use_fast", "trust_remote_code")


class MegatronTokenizerText(MegatronTokenizer):
    """A tokenizer of a file with the members of Megatron's legacy and newer tokenizers.

    It opens a `zindex.text.tokenizers.text_tokenizer.TextTokenizer` by Megatron's metadata, and has
    all members of that.

    Parameters
    ----------
    path
        Its file or folder; None for libraries that read none.
    config
        ``library`` (see `zindex.text.tokenizers.open_tokenizer`; None infers it from the file),
        ``chat_template``, ``model_type`` and further metadata; they become attributes.
    options
        Arguments of the library's class.

    Raises
    ------
    ConfigError
        If the file is missing or damaged, or an option does not belong to its library.

    Notes
    -----
    Missing special tokens raise NotImplementedError, as for `MegatronTokenizer`; datasets then pad
    with -1. It pickles by path.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        settings = dict(config or {})
        super().__init__(*([] if path is None else [os.fspath(path)]), **options)
        self.path = None if path is None else os.fspath(path)
        self.additional_args = options
        metadata_template = settings.pop("chat_template", None)
        for name, value in settings.items():
            setattr(self, name, value)
        given = {name: value for name, value in options.items() if name not in _LOADING}
        if settings.get("library") == "megatron":
            source, library, given = resolve_megatron(self.path, given)
        else:
            source, library = self.path, settings.get("library", "")
        template = given.pop("chat_template", None)
        extra = given.pop("additional_special_tokens", None)
        if not library and source is not None:
            library = find_library(source)
        self.library = settings.get("library") or library
        self._tokenizer = open_text_tokenizer(source, library or None, **given)
        if extra:
            self._tokenizer.add_special_tokens(list(extra))
        # Megatron's precedence: metadata, tokenizer, arguments.
        templates = (metadata_template, self._tokenizer.chat_template, template)
        self.chat_template = next((text for text in templates if text is not None), None)

    @staticmethod
    def from_pretrained(
        tokenizer_path: str | os.PathLike[str] | None = None,
        metadata_path: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "MegatronTokenizerText":
        """Open a tokenizer by its metadata, as Megatron's ``MegatronTokenizer.from_pretrained``.

        Parameters
        ----------
        tokenizer_path
            Its file or folder; None for libraries that read none.
        metadata_path
            The metadata or their file; None takes ``tokenizer_metadata.json`` in the tokenizer's
            folder, or infers the library from the tokenizer's file if there is none.
        options
            Arguments of the library's class.

        Raises
        ------
        ConfigError
            If the metadata are missing or not a JSON object, or name a custom class.
        """
        is_file = isinstance(metadata_path, str | os.PathLike) and bool(os.fspath(metadata_path))
        if isinstance(metadata_path, Mapping):
            metadata: dict[str, Any] = dict(metadata_path) | {"metadata_path": None}
        elif is_file or (tokenizer_path is not None and metadata_beside(tokenizer_path).is_file()):
            file = Path(metadata_path) if is_file else metadata_beside(tokenizer_path)  # type: ignore[arg-type]
            metadata = read_metadata(file) | {"metadata_path": str(file)}
        elif metadata_path:
            raise ConfigError(
                "metadata_path must be a path or a mapping, got "
                f"{type(metadata_path).__name__}; pass one of these"
            )
        else:
            metadata = {"metadata_path": None}
        if metadata.get("class_path") or metadata.get("tokenizer_class"):
            named = metadata.get("class_path") or metadata["tokenizer_class"]
            if not str(named).startswith("megatron.core.tokenizers."):
                raise ConfigError(
                    f"metadata of a tokenizer must name no class of their own, got {named!r}: no "
                    "code of a tokenizer is run; make the object of that class yourself"
                )
        return MegatronTokenizerText(tokenizer_path, metadata, **options)

    write_metadata = staticmethod(write_metadata)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, as a list as Megatron's libraries do."""
        return self._tokenizer.text_to_ids(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Return the text of token ids."""
        return self._tokenizer.ids_to_text(ids)

    def offsets(self, ids: list[int], text: str) -> list[int]:
        """Return the start of each token in the text; NotImplementedError if unknown."""
        return self._tokenizer.offsets(ids, text)

    @property
    def vocab(self) -> dict[str, int]:
        """Token texts to ids, by id."""
        return self._tokenizer.vocab

    @property
    def inv_vocab(self) -> dict[int, str]:
        """Ids to token texts, by id."""
        return self._tokenizer.inv_vocab

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._tokenizer.vocab_size

    def _find_special(self, name: str) -> int:
        """Return the id of a special token."""
        found = find_token(self._tokenizer, name)
        if found is None:
            self._refuse("attribute", name)
        return found

    def __getattr__(self, name: str) -> Any:
        """Return another member of the opened tokenizer, such as ``apply_chat_template``."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._tokenizer, name)

    @property
    def chat_template(self) -> str | None:
        """The chat template, or None."""
        return self._tokenizer.chat_template

    @chat_template.setter
    def chat_template(self, text: str | None) -> None:
        self._tokenizer.chat_template = text

    @property
    def vocab_file(self) -> str | None:
        """Path of the vocabulary, if it was given."""
        found = self.additional_args.get("vocab_file")
        return None if found is None else os.fspath(found)

    @property
    def merges_file(self) -> str | None:
        """Path of the merges of a BPE, if it was given."""
        found = self.additional_args.get("merges_file")
        return None if found is None else os.fspath(found)
