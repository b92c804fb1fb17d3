"""BERT's tokenizer: words into pieces of a ``vocab.txt``."""

import os
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.text.tokenizers.rust_tokenizer import RustTokenizer
from zindex.text.tokenizers.text_tokenizer import ADDITIONAL, local_file, need

_SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# Megatron gives the next ids to these where the vocabulary lacks them.
_ENDS = {"bos_token": "[BOS]", "eos_token": "[EOS]"}


class WordPieceTokenizer(RustTokenizer):
    """WordPiece over a ``vocab.txt``, as BERT and Megatron's BERT and T5 use it.

    Parameters
    ----------
    vocab_file
        A piece a line; pieces within words begin with ``##``. The line's number is the id.
    lower_case
        Whether texts become lower case and lose their accents (``BertWordPieceLowerCase``), or not
        (``BertWordPieceCase``).
    vocab_extra_ids
        Sentinels ``<extra_id_0>`` and so on to add, which T5 needs.

    Raises
    ------
    ConfigError
        If the file is missing, names a piece twice, or lacks [UNK], [CLS], [SEP], [PAD] or [MASK].

    Notes
    -----
    ``[BOS]`` and ``[EOS]`` and then the sentinels get the ids behind the file's where it lacks
    them. Special tokens that are written in a text become such tokens. Source: Megatron-LM's
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

    skips_special = False

    def __init__(
        self,
        vocab_file: str | os.PathLike[str],
        lower_case: bool = True,
        vocab_extra_ids: int = 0,
    ) -> None:
        file = local_file(vocab_file, "a WordPiece vocabulary")
        library = need("tokenizers", "a WordPiece vocabulary")
        vocab = _read_vocab(file)
        tokenizer = library.Tokenizer(
            library.models.WordPiece(vocab, unk_token=_SPECIAL["unk_token"])
        )
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece(cleanup=False)
        options: dict[str, Any] = {"lower_case": lower_case, "vocab_extra_ids": vocab_extra_ids}
        super().__init__(tokenizer, file, **options)
        extra = [f"<extra_id_{number}>" for number in range(vocab_extra_ids)]
        self.add_special_tokens(_SPECIAL | _ENDS | {ADDITIONAL: extra})
        self._added.clear()  # the constructor does this again


def _read_vocab(file: Path) -> dict[str, int]:
    """Return the pieces of a file with their ids."""
    # Pieces may be characters that end a line elsewhere: only \n does here.
    lines = file.read_text("utf-8").removesuffix("\n").split("\n")
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines):
        piece = line.removesuffix("\r")
        if piece in vocab:
            raise ConfigError(
                f"{file} must name each piece once, {piece!r} is in lines {vocab[piece] + 1:,} and "
                f"{number + 1:,}; remove one of them"
            )
        vocab[piece] = number
    missing = [text for text in _SPECIAL.values() if text not in vocab]
    if missing:
        raise ConfigError(
            f"{file} must be a WordPiece vocabulary with {', '.join(_SPECIAL.values())}, there is "
            f"no {missing[0]}; is it the vocab.txt of a BERT model?"
        )
    return vocab
