"""Tokenizers of the `tokenizers` library by their files, and GPT-2's byte pairs."""

import os
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.text.tokenizer_settings import DEFAULT, read_additional_tokens, read_tokenizer_settings
from zindex.text.tokenizers.rust_tokenizer import RustTokenizer
from zindex.text.tokenizers.text_tokenizer import ADDITIONAL, NAMES, local_file, need

#: What the file of a tokenizer is called in its folder.
TOKENIZER_FILE = "tokenizer.json"
_END_OF_TEXT = "<|endoftext|>"


class HuggingFaceTokenizer(RustTokenizer):
    """A ``tokenizer.json`` with the special tokens that are named beside it.

    Parameters
    ----------
    path
        The file, or its folder.
    bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token
        Special tokens by name, in place of those named beside the file; one that the vocabulary
        lacks gets the next id.
    include_special_tokens
        Whether a text gets the tokens that the tokenizer puts around one.

    Raises
    ------
    ConfigError
        If there is no such file, or it is damaged.

    Notes
    -----
    Where only one of ``eos_token`` and ``sep_token``, or of ``bos_token`` and ``cls_token`` is
    named, it stands for the other too, as in Megatron Core
    ``tokenizers/text/libraries/huggingface_tokenizer.py``. Nothing is downloaded, and no code that
    lies beside a tokenizer is run.
    """

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
        file = find_tokenizer_file(Path(path))
        given = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "unk_token": unk_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "cls_token": cls_token,
            "mask_token": mask_token,
        }
        options: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
        if include_special_tokens:
            options["include_special_tokens"] = True
        super().__init__(load_tokenizer_file(file), file, **options)
        self._includes = include_special_tokens
        settings = read_tokenizer_settings(file)
        self.chat_template = settings.chat_templates.get(DEFAULT)
        known = {name: settings.special_tokens.get(f"{name}_token") for name in NAMES}
        for name, text in given.items():
            if text is not None:
                known[name.removesuffix("_token")] = text
        if eos_token is None:
            _stand_in(known, "eos", "sep")
        if bos_token is None or cls_token is None:
            _stand_in(known, "bos", "cls")
        named = {f"{name}_token": text for name, text in known.items() if text is not None}
        self.add_special_tokens(named | {ADDITIONAL: read_additional_tokens(file)})
        self._added.clear()  # the constructor does this again

    def text_to_ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_batch([text], add_special_tokens=self._includes)[0]


def _stand_in(known: dict[str, str | None], one: str, other: str) -> None:
    """Give a special token to the one of two names that has none."""
    known[one], known[other] = known[one] or known[other], known[other] or known[one]


class BytePairTokenizer(RustTokenizer):
    """GPT-2's byte pairs: a ``vocab.json`` and a ``merges.txt``.

    Parameters
    ----------
    vocab_file
        Ids of all tokens; or the folder of both files, or the path of the merges beside it.
    merges_file
        Which pairs become one, the first first; None: ``merges.txt`` beside the vocabulary.

    Raises
    ------
    ConfigError
        If a file is missing or damaged.

    Notes
    -----
    ``<|endoftext|>`` ends documents where the vocabulary has it. Source: Megatron-LM's
    ``_GPT2BPETokenizer``.
    """

    skips_special = False

    def __init__(
        self,
        vocab_file: str | os.PathLike[str],
        merges_file: str | os.PathLike[str] | None = None,
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
            self.add_special_tokens({"eos_token": _END_OF_TEXT})
            self._added.clear()  # the constructor does this again


def find_tokenizer_file(path: Path) -> Path:
    """Return the file of a tokenizer by its path or that of its folder.

    Raises
    ------
    ConfigError
        If there is none.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"a tokenizer must be a {TOKENIZER_FILE}, or a folder with one, there is none at "
            f"{path}; nothing is downloaded: save it there first"
        )
    return file.absolute()


def load_tokenizer_file(file: Path) -> Any:
    """Return the tokenizer of a file; texts are neither cut nor filled up by it.

    Raises
    ------
    ConfigError
        If the library is not installed, or the file is damaged.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            f"reading {file} needs the tokenizers library; install tokenizers, or pass a function "
            "from text to ids"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"{file} must be a file of the tokenizers library: {error}; save the tokenizer again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
