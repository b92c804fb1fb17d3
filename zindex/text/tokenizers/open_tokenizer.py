"""Open a tokenizer from a file or wrap an object; the library can be inferred."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from zindex.errors import ConfigError
from zindex.io.local import local_path
from zindex.io.regular_files import open_file
from zindex.text.tokenizers.text_tokenizer import TextTokenizer
from zindex.text.tokenizers.wrapped import wrap_tokenizer

# Module and class of each library; the first six names are Megatron's.
_CLASSES = {
    "huggingface": "rust_tokenizers:HuggingFaceTokenizer",
    "sentencepiece": "sentence_pieces:SentencePieceTokenizer",
    "tiktoken": "tiktoken_ranks:TikTokenTokenizer",
    "byte-level": "null_tokenizer:ByteLevelTokenizer",
    "null": "null_tokenizer:NullTokenizer",
    "null-text": "null_tokenizer:NullTokenizer",
    "wordpiece": "rust_tokenizers:WordPieceTokenizer",
    "bpe": "rust_tokenizers:BytePairTokenizer",
}
#: Libraries that need no file.
WITHOUT_FILES = ("byte-level", "null", "null-text")
#: Library and options for each ``tokenizer_type`` of Megatron.
MEGATRON_TYPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "BertWordPieceLowerCase": ("wordpiece", {"lower_case": True}),
    "BertWordPieceCase": ("wordpiece", {"lower_case": False}),
    "GPT2BPETokenizer": ("bpe", {}),
    "SentencePieceTokenizer": ("sentencepiece", {}),
    "GPTSentencePieceTokenizer": ("sentencepiece", {}),
    "Llama2Tokenizer": ("sentencepiece", {}),
    "TikTokenizer": ("tiktoken", {}),
    "HuggingFaceTokenizer": ("huggingface", {}),
    "NullTokenizer": ("null", {}),
}


def find_library(path: str | os.PathLike[str]) -> str:
    """Infer the library that reads a file or folder, from file names and first bytes.

    Raises
    ------
    ConfigError
        If it cannot be inferred.
    """
    file = local_path(path, "a tokenizer")
    if file.is_dir():
        for name in ("tokenizer.json", "tokenizer.model", "vocab.txt", "merges.txt"):
            if (file / name).is_file():
                return find_library(file / name)
        return "huggingface"
    if file.name == "merges.txt":
        return "bpe"
    start = _read_start(file)
    if file.suffix == ".model":
        # Some tiktoken files have this suffix; SentencePiece models are not text.
        return "tiktoken" if _begins_with_rank(start) else "sentencepiece"
    first = start.lstrip()[:1]  # Megatron's tiktoken lists start with ``[``
    if file.suffix == ".tiktoken" or (file.suffix == ".json" and first == b"["):
        return "tiktoken"
    if file.suffix == ".txt":
        return "wordpiece"
    if file.suffix == ".json" or first == b"{":
        return "huggingface"
    raise ConfigError(
        "a tokenizer must be a tokenizer.json, a SentencePiece .model, a .tiktoken file, a "
        f"vocab.txt, or a folder with one, got {file}; name its library if its name does not imply "
        "it"
    )


def as_tokenizer(tokenizer: Any) -> Any:
    """Convert an object or path to a tokenizer with the interface that datasets expect.

    Parameters
    ----------
    tokenizer
        An object that already has this interface (``vocab_size`` and ``unique_identifiers``), such
        as Megatron's, returned unchanged; a path for `open_text_tokenizer`; or an object of
        another library supported by `zindex.text.tokenizers.wrapped.wrap_tokenizer`.

    Raises
    ------
    ConfigError
        If it is none of these, or the file does not exist.
    """
    if isinstance(tokenizer, str | os.PathLike):
        if not os.path.exists(tokenizer):
            raise ConfigError(
                f"a tokenizer must be a file or folder, there is none at {os.fspath(tokenizer)}; "
                "nothing is downloaded: save it first"
            )
        return open_text_tokenizer(tokenizer)
    if hasattr(tokenizer, "unique_identifiers") and hasattr(tokenizer, "vocab_size"):
        return tokenizer
    found = wrap_tokenizer(tokenizer)
    if found is None:
        what = tokenizer.__name__ if isinstance(tokenizer, type) else type(tokenizer).__name__
        raise ConfigError(
            "a tokenizer must be the path of its file or folder; an object of tokenizers, "
            "transformers, tiktoken or sentencepiece; or have vocab_size, eod and "
            f"unique_identifiers, as Megatron's have, got {what}; pass one of these"
        )
    return found


def open_text_tokenizer(
    path: str | os.PathLike[str] | None = None, library: str | None = None, **options: Any
) -> TextTokenizer:
    """Open a tokenizer from a file.

    Parameters
    ----------
    path
        The file, or its folder; for GPT-2's BPE the folder of vocab.json and merges.txt.
    library
        ``"huggingface"``, ``"sentencepiece"``, ``"tiktoken"``, ``"wordpiece"``, ``"bpe"``,
        ``"byte-level"`` or ``"null"``, or one of Megatron's tokenizer types; None infers it from
        the file.
    options
        Arguments of the tokenizer class.

    Raises
    ------
    ConfigError
        If the library, file or option does not exist.
    """
    if library is None:
        if path is None:
            raise ConfigError("a tokenizer must have a path or a library, got neither; give one")
        library = find_library(path)
    if library in MEGATRON_TYPES:
        library, known = MEGATRON_TYPES[library]
        options = {**known, **options}
    if library not in _CLASSES:
        raise ConfigError(
            f"the library of a tokenizer must be one of {', '.join(_CLASSES)}, or one of "
            f"{', '.join(MEGATRON_TYPES)}, got {library!r}; name one of these"
        )
    make: Callable[..., TextTokenizer] = resolve_name(f"zindex.text.tokenizers.{_CLASSES[library]}")
    _check_options(make, library, options)
    if library in WITHOUT_FILES:
        return make(**options)
    if path is None:
        raise ConfigError(
            f"a tokenizer of the library {library} must have a path, got none; give its file"
        )
    return make(_find_file(local_path(path, "a tokenizer"), library), **options)


def _check_options(make: Callable[..., Any], library: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that a class does not accept."""
    known = list(inspect.signature(make).parameters)
    if library not in WITHOUT_FILES:
        known = known[1:]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"options of a {library} tokenizer must be among {', '.join(known) or 'none'}, got "
                f"{name!r}; leave it out"
            )


def _find_file(path: Path, library: str) -> Path:
    """Return the file of a library in a folder, or the path itself if it is not a folder."""
    names = {
        "sentencepiece": "tokenizer.model",
        "wordpiece": "vocab.txt",
        "tiktoken": "tokenizer.model",
    }
    return path / names[library] if path.is_dir() and library in names else path


def _read_start(file: Path) -> bytes:
    """Return the first bytes of a file; empty if it cannot be read."""
    try:
        with open_file(file) as stream:
            return stream.read(1 << 12)
    except OSError:
        return b""


def _begins_with_rank(start: bytes) -> bool:
    """Return whether a file starts with a line of base64 and a rank, as tiktoken's files do."""
    word, blank, rank = start.partition(b"\n")[0].strip().partition(b" ")
    return bool(blank) and rank.isdigit() and word.isascii() and b"\0" not in word
