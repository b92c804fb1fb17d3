"""What every tokenizer of a file offers, by the names that Megatron's tokenizer libraries use."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError

#: Names under which a special token of its own can be asked for, each with ``_token`` behind.
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ADDITIONAL = "additional_special_tokens"


class TextTokenizer(ABC):
    """Base of tokenizers: texts to ids and back, and the special tokens by name.

    Parameters
    ----------
    files
        The files that it is read from, in the order of the constructor's arguments.
    options
        All other arguments of the constructor, by name: with the files they make the tokenizer
        again in another process.

    Attributes
    ----------
    special_tokens
        Text of each special token that has a name, such as ``eos_token``.
    additional_special_tokens
        Texts of those that have none, such as T5's sentinels, in the order of their ids.
    chat_template
        Its chat template, or None.
    """

    def __init__(self, *files: Path, **options: Any) -> None:
        self.files = files
        self.options = options
        self.special_tokens: dict[str, str] = {}
        self.additional_special_tokens: list[str] = []
        self.chat_template: str | None = None
        self._added: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), *self.files, **self.options), (), self._added

    def __setstate__(self, added: list[Any]) -> None:
        for tokens in added:
            self.add_special_tokens(tokens)

    def __len__(self) -> int:
        return self.vocab_size

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, with those of added tokens."""

    @property
    @abstractmethod
    def vocab(self) -> dict[str, int]:
        """Texts of tokens to ids, by id."""

    @property
    def inv_vocab(self) -> dict[int, str]:
        """Ids to texts of tokens, by id."""
        return self._inv_vocab

    @cached_property
    def _inv_vocab(self) -> dict[int, str]:
        return {number: text for text, number in self.vocab.items()}

    @abstractmethod
    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text, with the tokens that a tokenizer puts around one or not."""

    @abstractmethod
    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""

    @abstractmethod
    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token's text, or None if there is no such token."""

    @abstractmethod
    def id_to_token(self, number: int) -> str | None:
        """Return the text of an id's token, or None if there is no such id."""

    def text_to_ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([text], add_special_tokens=False)[0]

    def text_to_tokens(self, text: str) -> list[str]:
        """Return the texts of a text's tokens."""
        return self.ids_to_tokens(self.text_to_ids(text))

    def tokens_to_text(self, tokens: Iterable[str]) -> str:
        """Return the text that tokens stand for."""
        return self.ids_to_text(self.tokens_to_ids(list(tokens)))

    def tokens_to_ids(self, tokens: str | Iterable[str]) -> list[int]:
        """Return the ids of tokens' texts; of one that is unknown the id of the unknown token.

        Raises
        ------
        ConfigError
            If a token is unknown and the tokenizer has no token for such.
        """
        unknown = self.special_tokens.get("unk_token")
        ids = []
        for token in [tokens] if isinstance(tokens, str) else tokens:
            found = self.token_to_id(token)
            if found is None and unknown is not None:
                found = self.token_to_id(unknown)
            if found is None:
                raise ConfigError(
                    f"a token must be one of the {self.vocab_size:,} of {self!r}, got {token!r}; "
                    "look it up in vocab"
                )
            ids.append(found)
        return ids

    def ids_to_tokens(self, ids: int | Iterable[int]) -> list[str]:
        """Return the texts of ids' tokens.

        Raises
        ------
        ConfigError
            If there is no such id.
        """
        tokens = []
        for number in [ids] if isinstance(ids, int) else ids:
            token = self.id_to_token(int(number))
            if token is None:
                raise ConfigError(
                    f"an id must be one of the {self.vocab_size:,} of {self!r}, got {number}; it "
                    "is from another tokenizer"
                )
            tokens.append(token)
        return tokens

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the character of a text at which each of its tokens starts.

        Raises
        ------
        NotImplementedError
            If this kind of tokenizer does not tell.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method 'offsets'")

    def add_special_tokens(self, tokens: Mapping[str, Any] | Sequence[str]) -> None:
        """Name special tokens; those that are not in the vocabulary get the next ids.

        Parameters
        ----------
        tokens
            Texts by name, such as ``{"eos_token": "<eod>"}``, also a list of
            ``additional_special_tokens``; or that list alone.

        Raises
        ------
        ConfigError
            If there is no such name, or this kind of tokenizer takes no tokens.
        """
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
            self.special_tokens[name] = value
        self._added.append(tokens)
        self.__dict__.pop("_inv_vocab", None)

    def _add_tokens(self, tokens: Sequence[str]) -> None:
        """Give ids to the texts that have none."""
        missing = [text for text in tokens if self.token_to_id(text) is None]
        if missing:
            raise ConfigError(
                f"special tokens of a {type(self).__name__} must be in its vocabulary, there is no "
                f"{missing[0]!r}; make the file with it"
            )

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens that have names, with their texts."""
        return dict(self.special_tokens)

    @property
    def all_special_tokens(self) -> list[str]:
        """The texts of all special tokens."""
        return list(dict.fromkeys([*self.special_tokens.values(), *self.additional_special_tokens]))

    def special_id(self, name: str) -> int | None:
        """Return the id of a special token by its name, such as ``eos_token``; None: no such."""
        text = self.special_tokens.get(name)
        return None if text is None else self.token_to_id(text)

    @property
    def eod(self) -> int | None:
        """Id of the end of a document, which is that of a sequence if there is no other."""
        return self.special_id("eos_token")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, as ``tokenizers`` calls it."""
        return self.ids_to_text(ids)

    def identity(self) -> str:
        """Return the SHA-256, in hex, of its kind, files, options and added tokens."""
        digest = hashlib.sha256(type(self).__name__.encode())
        for file in self.files:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        digest.update(repr((sorted(self.options.items()), self._added)).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.files)) or f"{self.vocab_size:,}"
        return f"{type(self).__name__}({names})"


def local_file(path: Any, what: str) -> Path:
    """Return the path of a file that must be there; ``what`` names it in the error."""
    file = Path(path).absolute()
    if not file.is_file():
        raise ConfigError(
            f"{what} must be a file, there is none at {file}; nothing is downloaded: save it there "
            "first"
        )
    return file


def need(library: str, what: str) -> Any:
    """Import a library that a kind of tokenizer needs.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    from importlib import import_module

    try:
        return import_module(library)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the library {library}, which is not installed; install {library}"
        ) from error
