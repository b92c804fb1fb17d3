"""Tokenizers of the `tokenizers` library: ``tokenizer.json``, GPT-2's BPE and WordPiece."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.io.files import read_text
from zindex.io.local import local_path
from zindex.lazy import need
from zindex.text.tokenizer_settings import SETTINGS_FILES, read_tokenizer_settings
from zindex.text.tokenizers.text_tokenizer import (
    ADDITIONAL,
    NAMES,
    KeptFiles,
    TextTokenizer,
    local_file,
)

#: Default file name in a tokenizer folder.
TOKENIZER_FILE = "tokenizer.json"
_END_OF_TEXT = "<|endoftext|>"
_WORDPIECE_TOKENS = {
    f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")
}
# Megatron adds these with the next ids if the vocabulary lacks them.
_WORDPIECE_ENDS = {"bos_token": "[BOS]", "eos_token": "[EOS]"}


class RustTokenizer(TextTokenizer):
    """Base class of tokenizers that wrap a ``tokenizers.Tokenizer``, which releases the GIL.

    Parameters
    ----------
    tokenizer
        The tokenizer to wrap, without truncation and padding.
    files, options
        See `TextTokenizer`.
    """

    #: Whether decoding skips special tokens.
    skips_special = False

    def __init__(self, tokenizer: Any, *files: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(*files, **options)
        self.tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, including added tokens."""
        return int(self.tokenizer.get_vocab_size())

    @property
    def vocab(self) -> dict[str, int]:
        """Mapping from token text to id, sorted by id."""
        found = self.tokenizer.get_vocab()
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text."""
        found = self.tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in found]

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text."""
        numbers = [int(number) for number in ids]
        return str(self.tokenizer.decode(numbers, skip_special_tokens=self.skips_special))

    def ids_to_full_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text with all special tokens."""
        numbers = [int(number) for number in ids]
        return str(self.tokenizer.decode(numbers, skip_special_tokens=False))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        found: int | None = self.tokenizer.token_to_id(token)
        return found

    def id_to_token(self, number: int) -> str | None:
        """Return the token of an id, or None."""
        if number < 0:
            return None
        found: str | None = self.tokenizer.id_to_token(number)
        return found

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the offset of the first character of each token."""
        spans = self.tokenizer.encode(text, add_special_tokens=False).offsets
        starts = [start for start, _ in spans[: len(ids)]]
        end = spans[-1][1] if spans else 0
        return starts + [end] * (len(ids) - len(starts))

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer, including added tokens, to a folder as ``tokenizer.json``."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(str(folder / TOKENIZER_FILE))
        settings = json.dumps(self.settings_to_save(), indent=2)
        (folder / "tokenizer_config.json").write_text(settings, "utf-8")

    def settings_to_save(self) -> dict[str, Any]:
        """Return the content of a ``tokenizer_config.json``."""
        return {
            **self.special_tokens_map,
            ADDITIONAL: self.additional_special_tokens,
            "chat_template": self.chat_template,
        }

    def _add_tokens(self, tokens: Sequence[str]) -> None:
        from tokenizers import AddedToken

        self.tokenizer.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in tokens]
        )


class HuggingFaceTokenizer(RustTokenizer):
    """A ``tokenizer.json`` with the special tokens configured in its folder.

    Parameters
    ----------
    path
        The file or its folder.
    bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token
        Special tokens by name, overriding those of the folder; a token that the vocabulary lacks
        gets the next id.
    include_special_tokens
        Whether encoding adds special tokens around a text, as configured in the file.

    Raises
    ------
    ConfigError
        If the file is missing or damaged.

    Notes
    -----
    If only one of ``eos_token`` and ``sep_token``, or of ``bos_token`` and ``cls_token``, is
    set, the other gets the same value, as in Megatron Core
    ``tokenizers/text/libraries/huggingface_tokenizer.py``. Nothing is downloaded, and no code
    of a tokenizer is run.
    """

    library = "huggingface"
    skips_special = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        unk_token: str | None = None,
        sep_token: str | None = None,
        pad_token: str | None = None,
        cls_token: str | None = None,
        mask_token: str | None = None,
        include_special_tokens: bool = False,
    ) -> None:
        named = (bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token)
        given = {
            f"{name}_token": text
            for name, text in zip(NAMES, named, strict=True)
            if text is not None
        }
        including = {"include_special_tokens": True} if include_special_tokens else {}
        file = find_tokenizer_file(local_path(path, "a tokenizer"))
        super().__init__(load_tokenizer_file(file), file, **given, **including)
        self._includes = include_special_tokens
        settings = read_tokenizer_settings(file)
        self.chat_template = settings.default_template
        known = {f"{name}_token": settings.special_tokens.get(f"{name}_token") for name in NAMES}
        known |= given
        if eos_token is None:
            share_name(known, "eos_token", "sep_token")
        if bos_token is None or cls_token is None:
            share_name(known, "bos_token", "cls_token")
        tokens = {name: text for name, text in known.items() if text is not None}
        self._name_tokens(tokens | {ADDITIONAL: settings.additional_tokens})

    def text_to_ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([text], add_special_tokens=self._includes)[0]

    def kept_files(self) -> KeptFiles:
        """Return the ``tokenizer.json`` and the settings of its folder."""
        [file] = self.files
        beside = [file.parent / name for name in SETTINGS_FILES]
        contents = {path.name: path.read_bytes() for path in beside if path.is_file()}
        return KeptFiles({TOKENIZER_FILE: file.read_bytes()} | contents, "", self.options)


def share_name(known: dict[str, Any], one: str, other: str) -> None:
    """Copy the token of one name to the other if only one of them is set."""
    first, second = known.get(one), known.get(other)
    known[one], known[other] = first or second, second or first


class BytePairTokenizer(RustTokenizer):
    """GPT-2's byte-pair encoding: a ``vocab.json`` and a ``merges.txt``.

    Parameters
    ----------
    vocab_file
        JSON file of all token ids; or the folder of both files, or the path of the merges in it.
    merges_file
        Merges in order of precedence; None uses ``merges.txt`` in the vocabulary's folder.

    Raises
    ------
    ConfigError
        If a file is missing or damaged.

    Notes
    -----
    ``<|endoftext|>`` marks the end of a document if the vocabulary has it. Source: Megatron-LM's
    ``_GPT2BPETokenizer``.
    """

    library = "bpe"

    def __init__(
        self, vocab_file: str | os.PathLike[str], merges_file: str | os.PathLike[str] | None = None
    ) -> None:
        path = Path(vocab_file)
        folder = path if path.is_dir() else path.parent
        if path.is_dir() or path.suffix == ".txt":
            path = folder / "vocab.json"
        vocab = local_file(path, "the vocabulary of byte pairs")
        merges = local_file(merges_file or folder / "merges.txt", "the merges of byte pairs")
        library = need("tokenizers", "a tokenizer of byte pairs")
        try:
            tokenizer = library.Tokenizer(library.models.BPE.from_file(str(vocab), str(merges)))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(
                f"{vocab} and {merges} must be a vocabulary and its merges: {error}; save them "
                "again"
            ) from error
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        super().__init__(tokenizer, vocab, merges)
        if self.token_to_id(_END_OF_TEXT) is not None:
            self._name_tokens({"eos_token": _END_OF_TEXT})

    def kept_files(self) -> KeptFiles:
        """Return both files, under the names that their folder must have."""
        vocab, merges = (file.read_bytes() for file in self.files)
        return KeptFiles({"vocab.json": vocab, "merges.txt": merges}, "")


class WordPieceTokenizer(RustTokenizer):
    """WordPiece with a ``vocab.txt``, as in BERT and Megatron's BERT and T5.

    Parameters
    ----------
    vocab_file
        One piece per line, whose id is the line number; pieces inside words start with ``##``.
    lower_case
        Whether texts are lowercased and accents stripped (``BertWordPieceLowerCase``) or not
        (``BertWordPieceCase``).
    vocab_extra_ids
        Number of sentinel tokens ``<extra_id_0>`` and so on to add, for T5.

    Raises
    ------
    ConfigError
        If the file is missing, repeats a piece, or lacks [UNK], [CLS], [SEP], [PAD] or [MASK].

    Notes
    -----
    ``[BOS]``, ``[EOS]`` and the sentinels get the next ids if the file lacks them. Special tokens
    in a text are encoded as such. Source: Megatron-LM's
    ``_BertWordPieceTokenizer``; words of more than 100 characters are unknown, as in transformers.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] un ##able a"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "vocab.txt")
    ...     _ = file.write_text(pieces.replace(" ", chr(10)))
    ...     tokenizer = WordPieceTokenizer(file)
    >>> tokenizer.text_to_ids("A unable [MASK]")
    [7, 5, 6, 4]
    """

    library = "wordpiece"

    def __init__(
        self, vocab_file: str | os.PathLike[str], lower_case: bool = True, vocab_extra_ids: int = 0
    ) -> None:
        file = local_file(vocab_file, "a WordPiece vocabulary")
        library = need("tokenizers", "a WordPiece vocabulary")
        vocab = _read_pieces(file)
        tokenizer = library.Tokenizer(
            library.models.WordPiece(vocab, unk_token=_WORDPIECE_TOKENS["unk_token"])
        )
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece(cleanup=False)
        options = {"lower_case": lower_case, "vocab_extra_ids": vocab_extra_ids}
        super().__init__(tokenizer, vocab_file, **options)
        extra = [f"<extra_id_{number}>" for number in range(vocab_extra_ids)]
        self._name_tokens(_WORDPIECE_TOKENS | _WORDPIECE_ENDS | {ADDITIONAL: extra})


def _read_pieces(file: Path) -> dict[str, int]:
    """Read the pieces of a WordPiece vocabulary and their ids."""
    # Other line separators may be pieces: only \n ends a line here.
    lines = read_text(file).removesuffix("\n").split("\n")
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines):
        piece = line.removesuffix("\r")
        if piece in vocab:
            raise ConfigError(
                f"{file} must name each piece once, {piece!r} is in lines {vocab[piece] + 1:,} and "
                f"{number + 1:,}; remove one of them"
            )
        vocab[piece] = number
    missing = [text for text in _WORDPIECE_TOKENS.values() if text not in vocab]
    if missing:
        raise ConfigError(
            f"{file} must be a WordPiece vocabulary with {', '.join(_WORDPIECE_TOKENS.values())}, "
            f"there is no {missing[0]}; is it the vocab.txt of a BERT model?"
        )
    return vocab


def find_tokenizer_file(path: Path) -> Path:
    """Return a tokenizer file, given its path or that of its folder.

    Raises
    ------
    ConfigError
        If the file does not exist.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    return local_file(file, f"a tokenizer, {TOKENIZER_FILE} or a folder with one,")


def load_tokenizer_file(file: Path) -> Any:
    """Load a tokenizer from a file, without truncation and padding.

    Raises
    ------
    ConfigError
        If the library is not installed, or the file is damaged.
    """
    library = need("tokenizers", f"reading {file}")
    try:
        tokenizer = library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"{file} must be a file of the tokenizers library: {error}; save the tokenizer again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
