"""Tokenizers from files under the names of Megatron's scripts.

The tokenizers themselves are in ``zindex.text.tokenizers``.
"""

import os
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.text.tokenizers.base import MegatronTokenizer, find_token
from zindex.text.tokenizers.megatron_metadata import (
    metadata_beside,
    read_metadata,
    resolve_megatron,
    write_metadata,
)
from zindex.text.tokenizers.null_tokenizer import NullTokenizer as NullTokenizer
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer
from zindex.text.tokenizers.rust_tokenizers import WordPieceTokenizer as WordPieceTokenizer

# Megatron's arguments for downloads and remote code, which zindex does not support.
_LOADING = ("use_fast", "trust_remote_code")


def _member(name: str) -> Any:
    """Return a property: a member of the opened tokenizer."""
    return property(attrgetter(f"_tokenizer.{name}"))


class MegatronTokenizerText(MegatronTokenizer):
    """A tokenizer from a file, with the members of Megatron's legacy and newer tokenizers.

    It opens a `zindex.text.tokenizers.text_tokenizer.TextTokenizer` by Megatron's metadata, and has
    all members of that.

    Parameters
    ----------
    path
        Its file or folder; None for libraries that need none.
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
        source, library = self.path, settings.get("library") or None
        if library == "megatron":
            source, library, given = resolve_megatron(self.path, given)
        template = given.pop("chat_template", None)
        extra = given.pop("additional_special_tokens", None)
        self._tokenizer = open_text_tokenizer(source, library, **given)
        self.library = settings.get("library") or self._tokenizer.library
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
            Its file or folder; None for libraries that need none.
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
        found: Any = None if metadata_path == "" else metadata_path
        if found is None and tokenizer_path is not None:
            beside = metadata_beside(tokenizer_path)
            found = beside if beside.is_file() else None
        metadata: dict[str, Any] = {"metadata_path": None}
        if isinstance(found, Mapping):
            metadata = {**found, **metadata}
        elif isinstance(found, str | os.PathLike):
            metadata = {**read_metadata(Path(found)), "metadata_path": str(Path(found))}
        elif found is not None:
            raise ConfigError(
                f"metadata_path must be a path or a mapping, got {type(found).__name__}; pass one "
                "of these"
            )
        named = metadata.get("class_path") or metadata.get("tokenizer_class")
        if named and not str(named).startswith("megatron.core.tokenizers."):
            raise ConfigError(
                f"metadata of a tokenizer must name no class of their own, got {named!r}: no "
                "code of a tokenizer is run; make the object of that class yourself"
            )
        return MegatronTokenizerText(tokenizer_path, metadata, **options)

    write_metadata = staticmethod(write_metadata)

    # Members of the opened tokenizer that the base class also has; `__getattr__` finds the others.
    tokenize = _member("tokenize")
    detokenize = _member("detokenize")
    offsets = _member("offsets")
    vocab = _member("vocab")
    inv_vocab = _member("inv_vocab")
    vocab_size = _member("vocab_size")

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
        """Path of the vocabulary, if given."""
        found = self.additional_args.get("vocab_file")
        return None if found is None else os.fspath(found)

    @property
    def merges_file(self) -> str | None:
        """Path of the BPE merges, if given."""
        found = self.additional_args.get("merges_file")
        return None if found is None else os.fspath(found)
