"""Tokenizers of files as Megatron's datasets and training scripts want them.

What makes ids of texts lives in ``zindex.text.tokenizers``, which ``zindex tokenize`` uses alone.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zindex.datasets.megatron_tokenizer import MegatronTokenizer
from zindex.datasets.tokenizer_metadata import (
    metadata_beside,
    read_metadata,
    resolve_megatron,
    write_metadata,
)
from zindex.errors import ConfigError
from zindex.text.chat_template import open_template
from zindex.text.tokenizer_settings import TokenizerSettings
from zindex.text.tokenizers.hugging_face import TOKENIZER_FILE
from zindex.text.tokenizers.opening import (
    find_library,
    open_text_tokenizer,
)
from zindex.text.tokenizers.rust_tokenizer import RustTokenizer
from zindex.text.tokenizers.text_tokenizer import NAMES, TextTokenizer

# Arguments of Megatron's that say how a tokenizer is downloaded or which code of its is run: here
# nothing is downloaded and no code is run.
_LOADING = ("use_fast", "trust_remote_code")


class MegatronTokenizerText(MegatronTokenizer):
    """A tokenizer of a file, with the names of Megatron's legacy and newer tokenizers.

    Parameters
    ----------
    path
        Its file or folder; None for libraries that read none.
    config
        ``library``, as of `zindex.text.tokenizers.opening.open_text_tokenizer` (None tells it from
        the file), ``chat_template``, ``model_type`` and what else belongs to it: these become
        attributes.
    options
        Arguments of the library's class.

    Raises
    ------
    ConfigError
        If the file is missing or damaged, or an option does not belong to its library.

    Notes
    -----
    Special tokens that the tokenizer lacks raise NotImplementedError, as of `MegatronTokenizer`;
    datasets then take -1 for padding. It pickles by path.
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
        self._tokenizer: TextTokenizer = open_text_tokenizer(source, library or None, **given)
        if extra:
            self._tokenizer.add_special_tokens(list(extra))
        # In Megatron's order: of its metadata, of the tokenizer, of the arguments.
        templates = (settings.get("chat_template"), self._tokenizer.chat_template, template)
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
            The metadata, or their file; None takes ``tokenizer_metadata.json`` beside the
            tokenizer, and where there is none, what the tokenizer's own file tells.
        options
            Arguments of the library's class.

        Raises
        ------
        ConfigError
            If the metadata are missing or no JSON object, or name a class of their own.
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

    def tokenize(self, text: str) -> list[int]:  # type: ignore[override]
        """Return the token ids of a text, as a list as Megatron's libraries do."""
        return self._tokenizer.text_to_ids(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Return the text of token ids."""
        return self._tokenizer.ids_to_text(ids)

    def offsets(self, ids: list[int], text: str) -> list[int]:
        """Return where in the text each token starts; NotImplementedError where not known."""
        return self._tokenizer.offsets(ids, text)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        chat_template: str | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Return a dialogue as text, or as ids.

        Parameters
        ----------
        conversation
            Messages with ``role`` and ``content``.
        chat_template
            The text of a template; None: the tokenizer's own.
        tokenize
            Whether to return ids.
        add_generation_prompt
            Whether the next answer is asked for at the end.
        variables
            What the template is given besides.

        Raises
        ------
        ConfigError
            If there is no template.
        """
        text = self.chat_template if chat_template is None else chat_template
        if text is None:
            raise ConfigError(
                "apply_chat_template needs a chat template, this tokenizer has none; pass "
                "chat_template"
            )
        known = TokenizerSettings(self._tokenizer.special_tokens_map, {"default": text})
        template = open_template(None, known, variables=variables)
        assert template is not None  # there is a text
        rendered = template.render(list(conversation), add_generation_prompt=add_generation_prompt)
        return self._tokenizer.text_to_ids(rendered) if tokenize else rendered

    def add_special_tokens(self, special_tokens: Mapping[str, Any] | Sequence[str]) -> None:
        """Name special tokens; see `zindex.text.tokenizers.text_tokenizer.TextTokenizer`."""
        self._tokenizer.add_special_tokens(special_tokens)

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer with all added tokens to a folder, as a ``tokenizer.json``.

        Raises
        ------
        ConfigError
            If its library has files of its own.
        """
        inner = self._tokenizer
        if not isinstance(inner, RustTokenizer):
            raise ConfigError(
                f"save_pretrained must be asked of a huggingface, bpe or wordpiece tokenizer, this "
                f"one is of the library {self.library}; copy its file"
            )
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        inner.tokenizer.save(str(folder / TOKENIZER_FILE))
        tokens: dict[str, Any] = inner.special_tokens_map
        tokens["additional_special_tokens"] = inner.additional_special_tokens
        tokens["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens, indent=2), "utf-8")

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

    @property
    def special_tokens_dict(self) -> dict[str, int]:
        """Ids of the special tokens that have names, by these, such as ``eos_token``."""
        found = {f"{name}_token": self._tokenizer.special_id(f"{name}_token") for name in NAMES}
        return {name: number for name, number in found.items() if number is not None}

    @property
    def additional_special_tokens(self) -> list[str]:
        """Texts of the special tokens without names, such as T5's sentinels."""
        return list(self._tokenizer.additional_special_tokens)

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        """Ids of the special tokens without names."""
        return self._tokenizer.tokens_to_ids(self._tokenizer.additional_special_tokens)

    def _special(self, name: str) -> int:
        """Return the id of a special token; NotImplementedError where there is none."""
        found = self._tokenizer.special_id(f"{name}_token")
        if found is None:
            self._refuse("attribute", name)
        return found

    @property
    def cls(self) -> int:
        """Id of the classification token."""
        return self._special("cls")

    @property
    def sep(self) -> int:
        """Id of the separator."""
        return self._special("sep")

    @property
    def pad(self) -> int:
        """Id of padding."""
        return self._special("pad")

    @property
    def bos(self) -> int:
        """Id of the beginning of a sequence."""
        return self._special("bos")

    @property
    def eos(self) -> int:
        """Id of the end of a sequence."""
        return self._special("eos")

    @property
    def mask(self) -> int:
        """Id of the mask token."""
        return self._special("mask")

    @property
    def unk(self) -> int:
        """Id of the token for what is unknown."""
        return self._special("unk")

    @property
    def eod(self) -> int:
        """Id of the end of a document; that of a sequence where there is no other."""
        found = self._tokenizer.eod
        if found is None:
            self._refuse("attribute", "eod")
        return found

    # The names of NeMo.
    cls_id, sep_id, pad_id, bos_id, eos_id, mask_id, unk_id = cls, sep, pad, bos, eos, mask, unk

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


class WordPieceTokenizer(MegatronTokenizerText):
    """BERT's tokenizer; see `zindex.text.tokenizers.wordpiece.WordPieceTokenizer`."""

    def __init__(
        self,
        vocab_file: str | os.PathLike[str],
        lower_case: bool = True,
        vocab_extra_ids: int = 0,
    ) -> None:
        super().__init__(
            vocab_file,
            {"library": "wordpiece"},
            lower_case=lower_case,
            vocab_extra_ids=vocab_extra_ids,
        )


class NullTokenizer(MegatronTokenizerText):
    """Ids written as text; see `zindex.text.tokenizers.null_tokenizer.NullTokenizer`."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(None, {"library": "null"}, vocab_size=vocab_size)
