"""Base class of zindex's tokenizers, with the method names of Megatron's libraries."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from zindex.errors import ConfigError
from zindex.io.local import local_path
from zindex.text.chat_template import ChatTemplate
from zindex.text.tokenizers.base import MegatronTokenizer, special_token

#: Names of special tokens; their keys in settings end in ``_token``.
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ADDITIONAL = "additional_special_tokens"


class KeptFiles(NamedTuple):
    """Files of a tokenizer as saved with a corpus, and how to reopen them."""

    #: File contents, by name.
    files: dict[str, bytes]
    #: File to open, or "" for the folder.
    path: str
    #: Options for opening it, as JSON values.
    options: dict[str, Any] = {}  # noqa: RUF012  never changed


class TextTokenizer(MegatronTokenizer):
    """Base class that maps texts to ids and back, and names special tokens.

    Parameters
    ----------
    files
        The tokenizer's files, in the order of the constructor's arguments.
    options
        The constructor's other arguments. Files and options are enough to pickle the tokenizer.

    Attributes
    ----------
    special_tokens_map
        Text of each named special token, such as ``eos_token``.
    additional_special_tokens
        Unnamed special tokens, such as T5's sentinels, in the order of their ids.
    chat_template
        The chat template, or None.
    """

    #: Name of the library; see `zindex.text.tokenizers.open_tokenizer`.
    library: ClassVar[str]
    #: Number of ids, including special tokens, unless the library counts them.
    _num_ids: int

    def __init__(self, *files: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(*[os.fspath(file) for file in files], **options)
        self.files = [Path(file).absolute() for file in files]
        self.options = options
        self.special_tokens_map: dict[str, str] = {}
        self.additional_special_tokens: list[str] = []
        self.chat_template: str | None = None
        self._added: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._added, self.chat_template
        return partial(type(self), *self.files, **self.options), (), state

    def __setstate__(self, state: tuple[list[Any], str | None]) -> None:
        added, self.chat_template = state
        for tokens in added:
            self.add_special_tokens(tokens)

    def __len__(self) -> int:
        return self.vocab_size

    @cached_property
    def inv_vocab(self) -> dict[int, str]:
        """Mapping from id to token text, sorted by id."""
        return {number: text for text, number in self.vocab.items()}

    @property
    def vocab_size(self) -> int:
        """Number of ids, including special and added tokens."""
        return self._num_ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text, with or without surrounding special tokens."""
        return list(map(self._encode, texts))

    def _encode(self, text: str) -> list[int]:
        """Return the ids of one text; used by libraries that do not encode batches."""
        raise NotImplementedError

    @abstractmethod
    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text."""

    def ids_to_full_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text with all special tokens, some of which `ids_to_text` may leave out."""
        names = (*self.special_tokens_map.values(), *self.additional_special_tokens)
        special = {self.token_to_id(name): name for name in names}
        runs = groupby(ids, key=lambda number: int(number) in special)
        return "".join(
            "".join(special[int(number)] for number in run) if is_special else self.ids_to_text(run)
            for is_special, run in runs
        )

    @abstractmethod
    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None if it does not exist."""

    @abstractmethod
    def id_to_token(self, number: int) -> str | None:
        """Return the token of an id, or None if it does not exist."""

    def text_to_ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([text], add_special_tokens=False)[0]

    def tokenize(self, text: str) -> list[int]:
        """Alias of `text_to_ids`, called by Megatron's datasets."""
        return self.text_to_ids(text)

    def detokenize(self, ids: Any) -> str:
        """Alias of `ids_to_text`, called by Megatron's datasets."""
        return self.ids_to_text(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Alias of `ids_to_text`, as in ``tokenizers``."""
        return self.ids_to_text(ids)

    def tokens_to_ids(self, tokens: str | Iterable[str]) -> list[int]:
        """Return the ids of tokens; unknown tokens get the id of the unknown token.

        Raises
        ------
        ConfigError
            If a token is unknown and the tokenizer has no unknown token.
        """
        unknown = self.special_id("unk_token")
        ids = []
        for token in [tokens] if isinstance(tokens, str) else tokens:
            found = self.token_to_id(token)
            found = unknown if found is None else found
            if found is None:
                raise ConfigError(
                    f"a token must be one of the {self.vocab_size:,} of {self!r}, got {token!r}; "
                    "look it up in vocab"
                )
            ids.append(found)
        return ids

    def add_special_tokens(self, special_tokens: Mapping[str, Any] | Sequence[str]) -> None:
        """Name special tokens; tokens that are not in the vocabulary get the next ids.

        Parameters
        ----------
        special_tokens
            Tokens by name, such as ``{"eos_token": "<eod>"}``, optionally with a list of
            ``additional_special_tokens``; or only that list.

        Raises
        ------
        ConfigError
            If a name is unknown, or this kind of tokenizer cannot add tokens.
        """
        self._name_tokens(special_tokens)
        self._added.append(special_tokens)

    def _name_tokens(self, tokens: Mapping[str, Any] | Sequence[str]) -> None:
        """Name special tokens in the constructor, which unpickling repeats."""
        given: Mapping[str, Any] = tokens if isinstance(tokens, Mapping) else {ADDITIONAL: tokens}
        for name, value in given.items():
            if name == ADDITIONAL:
                new = [text for text in value if text not in self.additional_special_tokens]
                self._add_tokens(new)
                self.additional_special_tokens += new
                continue
            if name.removesuffix("_token") not in NAMES or not name.endswith("_token"):
                raise ConfigError(
                    f"special tokens must be named {ADDITIONAL} or one of "
                    f"{', '.join(f'{known}_token' for known in NAMES)}, got {name!r}; name it so"
                )
            self._add_tokens([value])
            self.special_tokens_map[name] = value
        self.__dict__.pop("inv_vocab", None)

    def _add_tokens(self, tokens: Sequence[str]) -> None:
        """Assign ids to tokens that have none."""
        missing = [text for text in tokens if self.token_to_id(text) is None]
        if missing:
            raise ConfigError(
                f"special tokens of a {type(self).__name__} must be in its vocabulary, there is no "
                f"{missing[0]!r}; make the file with it"
            )

    @property
    def added_tokens(self) -> list[Any]:
        """Special tokens added after construction, as passed to `add_special_tokens`."""
        return list(self._added)

    def special_id(self, name: str) -> int | None:
        """Return the id of a named special token, such as ``eos_token``, or None."""
        text = self.special_tokens_map.get(name)
        return None if text is None else self.token_to_id(text)

    def _find_special(self, name: str) -> int:
        """Return the id of a special token; end of document defaults to end of sequence."""
        found = self.special_id(f"{'eos' if name == 'eod' else name}_token")
        if found is None:
            self._refuse("attribute", name)
        return found

    unk = special_token("unk", "the unknown token")
    # Names used by NeMo.
    cls_id, sep_id, pad_id = MegatronTokenizer.cls, MegatronTokenizer.sep, MegatronTokenizer.pad
    bos_id, eos_id, mask_id = MegatronTokenizer.bos, MegatronTokenizer.eos, MegatronTokenizer.mask
    unk_id = unk

    @property
    def special_tokens_dict(self) -> dict[str, int]:
        """Ids of the named special tokens, by names such as ``eos_token``."""
        found = {f"{name}_token": self.special_id(f"{name}_token") for name in NAMES}
        return {name: number for name, number in found.items() if number is not None}

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        """Ids of the unnamed special tokens."""
        return self.tokens_to_ids(self.additional_special_tokens)

    @property
    def all_special_tokens(self) -> list[str]:
        """Texts of all special tokens."""
        named = self.special_tokens_map.values()
        return list(dict.fromkeys([*named, *self.additional_special_tokens]))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        chat_template: str | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Render a conversation as text or ids.

        Parameters
        ----------
        conversation
            Messages with ``role`` and ``content``.
        chat_template
            Template text; None uses the tokenizer's own.
        tokenize
            Whether to return ids instead of text.
        add_generation_prompt
            Whether to append the prompt for the next answer.
        variables
            Further variables for the template.

        Raises
        ------
        ConfigError
            If there is no template.
        """
        text = self.chat_template if chat_template is None else chat_template
        if text is None:
            raise ConfigError(
                "apply_chat_template needs a chat_template, this tokenizer has none; pass one"
            )
        template = ChatTemplate(text, special_tokens=self.special_tokens_map, variables=variables)
        rendered = template.render(list(conversation), add_generation_prompt=add_generation_prompt)
        return self.text_to_ids(rendered) if tokenize else rendered

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer, including added tokens, to a folder as ``tokenizer.json``.

        Raises
        ------
        ConfigError
            If its library uses other files.
        """
        raise ConfigError(
            f"save_pretrained must be asked of a huggingface, bpe or wordpiece tokenizer, this "
            f"one is of the library {self.library}; copy its file"
        )

    def kept_files(self) -> KeptFiles | None:
        """Return the files to save with a corpus; None if they could not be reopened."""
        contents = {file.name: file.read_bytes() for file in self.files}
        return KeptFiles(contents, next(iter(contents), ""), self.options)

    def identity(self) -> str:
        """Return the SHA-256, in hex, of the kind, files, options and added tokens."""
        digest = hashlib.sha256(type(self).__name__.encode())
        for file in self.files:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        digest.update(repr((sorted(self.options.items()), self._added)).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.files)) or f"{self.vocab_size:,}"
        return f"{type(self).__name__}({names})"


def local_file(path: str | os.PathLike[str], what: str) -> Path:
    """Return the absolute path of a file; ``what`` names it in the error if it is missing."""
    file = local_path(path, what)
    if not file.is_file():
        raise ConfigError(
            f"{what} must be a file, there is none at {file}; nothing is downloaded: save it first"
        )
    return file
