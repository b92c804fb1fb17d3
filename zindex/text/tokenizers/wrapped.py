"""Wrap tokenizer objects of other libraries in the interface of zindex's tokenizers.

Supports tokenizers, transformers, tiktoken and SentencePiece. Objects are recognised by their
methods, so that none of these libraries is imported here.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from zindex.text.tokenizer_settings import TokenizerSettings, settings_of_object
from zindex.text.tokenizers.rust_tokenizers import RustTokenizer, share_name
from zindex.text.tokenizers.sentence_pieces import SentencePieceTokenizer
from zindex.text.tokenizers.text_tokenizer import ADDITIONAL, NAMES, KeptFiles, TextTokenizer
from zindex.text.tokenizers.tiktoken_ranks import ENDS, TikTokenTokenizer

_RANKS_FILE = "ranks.tiktoken"


def wrap_tokenizer(tokenizer: Any) -> TextTokenizer | None:
    """Wrap a tokenizer of another library; None if it is not recognised.

    Parameters
    ----------
    tokenizer
        A ``tokenizers.Tokenizer``, a fast or slow tokenizer of transformers, a
        ``tiktoken.Encoding`` or a ``sentencepiece.SentencePieceProcessor``. It is not modified.
    """
    if isinstance(tokenizer, type):
        return None
    if hasattr(tokenizer, "backend_tokenizer"):
        return WrappedRust(_copy(tokenizer.backend_tokenizer), _settings_of(tokenizer))
    if hasattr(tokenizer, "to_str") and hasattr(tokenizer, "get_vocab_size"):
        copy = _copy(tokenizer)
        return WrappedRust(copy, _guess_settings(copy))
    if hasattr(tokenizer, "serialized_model_proto"):
        return WrappedSentencePieces(tokenizer)
    if hasattr(tokenizer, "decode_single_token_bytes"):
        return WrappedEncoding(tokenizer)
    if hasattr(tokenizer, "convert_tokens_to_ids") and hasattr(tokenizer, "get_vocab"):
        return WrappedPython(tokenizer)
    return None


def _copy(tokenizer: Any) -> Any:
    """Copy a ``tokenizers.Tokenizer`` without truncation and padding."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _guess_settings(tokenizer: Any) -> TokenizerSettings:
    """Infer the end-of-document token of a tokenizer that names none, from its special tokens.

    Uses the same token texts as plain tiktoken files.
    """
    special = {
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    }
    ends = [text for text in ENDS if text in special]
    return TokenizerSettings({"eos_token": ends[0]} if ends else {})


def _settings_of(tokenizer: Any) -> TokenizerSettings:
    """Return the settings of a transformers tokenizer, including unnamed special tokens."""
    found = settings_of_object(tokenizer)
    texts = map(str, getattr(tokenizer, "all_special_tokens", ()))
    named = found.special_tokens.values()
    return TokenizerSettings(
        found.special_tokens, found.chat_templates, [text for text in texts if text not in named]
    )


def _name_settings(tokenizer: TextTokenizer, settings: TokenizerSettings) -> None:
    """Apply settings: name the special tokens, and set the chat template."""
    known = {f"{name}_token": settings.special_tokens.get(f"{name}_token") for name in NAMES}
    share_name(known, "eos_token", "sep_token")  # as for a file
    share_name(known, "bos_token", "cls_token")
    tokens = {name: text for name, text in known.items() if text is not None}
    tokenizer.chat_template = settings.default_template
    tokenizer._name_tokens(tokens | {ADDITIONAL: settings.additional_tokens})


class WrappedRust(RustTokenizer):
    """Wrapper of a ``tokenizers.Tokenizer``, also that of a fast transformers tokenizer.

    Parameters
    ----------
    tokenizer
        The tokenizer, without truncation and padding.
    settings
        Its named special tokens and chat templates.
    """

    library = "huggingface"
    skips_special = True

    def __init__(self, tokenizer: Any, settings: TokenizerSettings) -> None:
        super().__init__(tokenizer)
        self._settings = settings
        _name_settings(self, settings)
        self.unique_identifiers["identity"] = self.identity()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.tokenizer, self._settings), (), super().__reduce__()[2]

    def identity(self) -> str:
        """Return the SHA-256, in hex, of the output of ``to_str``."""
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def kept_files(self) -> KeptFiles:
        """Return a ``tokenizer.json`` and its settings."""
        settings = json.dumps(self.settings_to_save(), indent=2)
        files = {"tokenizer.json": self.tokenizer.to_str(), "tokenizer_config.json": settings}
        return KeptFiles({name: text.encode() for name, text in files.items()}, "tokenizer.json")


class WrappedSentencePieces(SentencePieceTokenizer):
    """Wrapper of a ``SentencePieceProcessor``.

    Parameters
    ----------
    model
        The processor.
    """

    def __init__(self, model: Any) -> None:
        TextTokenizer.__init__(self)
        self._set_model(model)
        self.unique_identifiers["identity"] = self.identity()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.model), (), super().__reduce__()[2]

    def identity(self) -> str:
        """Return the SHA-256, in hex, of the model and the added tokens."""
        added = repr(self._added) if self._added else ""
        return hashlib.sha256(self.model.serialized_model_proto() + added.encode()).hexdigest()

    def kept_files(self) -> KeptFiles:
        """Return a ``.model`` file."""
        name = "tokenizer.model"
        return KeptFiles({name: self.model.serialized_model_proto()}, name)


class WrappedEncoding(TikTokenTokenizer):
    """Wrapper of a ``tiktoken.Encoding``.

    Parameters
    ----------
    encoding
        The encoding.
    """

    def __init__(self, encoding: Any) -> None:
        TextTokenizer.__init__(self)
        find = encoding.encode_single_token
        self._ranks = {token: find(token) for token in encoding.token_byte_values()}
        special = {text: find(text) for text in sorted(encoding.special_tokens_set)}
        self._name_ends(special)
        self._set_special(special, int(encoding.n_vocab))
        self.encoding = encoding
        self.unique_identifiers["identity"] = self.identity()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.encoding), (), super().__reduce__()[2]

    def identity(self) -> str:
        """Return the SHA-256, in hex, of the ranks, the pattern and the special tokens."""
        digest = hashlib.sha256(self._ranks_file())
        digest.update(repr((self.encoding._pat_str, sorted(self._special.items()))).encode())
        return digest.hexdigest()

    def _ranks_file(self) -> bytes:
        """Return the content of a plain file of ranks."""
        pairs = sorted(self._ranks.items(), key=lambda pair: pair[1])
        return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in pairs)

    def kept_files(self) -> KeptFiles:
        """Return a plain file of ranks, with the pattern and the special tokens as options."""
        options = {"pattern": self.encoding._pat_str, "special_tokens": self._special}
        return KeptFiles({_RANKS_FILE: self._ranks_file()}, _RANKS_FILE, options)


class WrappedPython(TextTokenizer):
    """A slow tokenizer of transformers; it pickles as itself, and has no file to keep.

    Parameters
    ----------
    tokenizer
        The tokenizer: ``encode``, ``decode``, ``get_vocab``, ``convert_tokens_to_ids`` and a
        length.
    """

    library = "huggingface"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        _name_settings(self, _settings_of(tokenizer))
        self.unique_identifiers["identity"] = self.identity()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.tokenizer), (), super().__reduce__()[2]

    @property
    def vocab(self) -> dict[str, int]:
        """Texts of tokens to ids, by id."""
        return dict(sorted(self.tokenizer.get_vocab().items(), key=lambda pair: pair[1]))

    @property
    def vocab_size(self) -> int:
        """Number of ids, with those of added tokens."""
        return len(self.tokenizer)

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text."""
        encode = partial(self.tokenizer.encode, add_special_tokens=add_special_tokens)
        return list(map(encode, texts))

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        numbers = [int(number) for number in ids]
        return str(self.tokenizer.decode(numbers, skip_special_tokens=True))

    def ids_to_full_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text with all special tokens."""
        numbers = [int(number) for number in ids]
        return str(self.tokenizer.decode(numbers, skip_special_tokens=False))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token's text, or None."""
        found: int | None = self.tokenizer.get_vocab().get(token)
        return found

    def id_to_token(self, number: int) -> str | None:
        """Return the text of an id's token, or None."""
        return self.inv_vocab.get(number)

    def identity(self) -> str:
        """Return the SHA-256, in hex, of the class, the vocabulary and the special tokens."""
        kind = type(self.tokenizer)
        facts = [f"{kind.__module__}.{kind.__qualname__}", self.vocab, self.special_tokens_map]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def kept_files(self) -> None:
        """Return None: only the class of the tokenizer reads its files."""
