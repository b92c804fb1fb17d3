"""Byte-pair encoding with the `tiktoken` library, from Megatron's JSON or a plain rank file."""

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.lazy import need
from zindex.text.tokenizers.text_tokenizer import TextTokenizer, local_file

#: Regular expressions that split texts before merging; v1 and v2 are Megatron's.
PATTERNS = {
    "v1": (r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"),
    "v2": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "gpt2": (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"),
    "cl100k": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}
# Megatron's special tokens, which have the first ids, by name.
_NAMED = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
    "pad_token": "<pad>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}
_FILLER = "<SPECIAL_{}>"
#: End-of-document tokens of vocabularies that name none, in order of precedence.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>")
_MAX_VOCAB = 1 << 17
_NUM_SPECIAL = 1000
_NUM_BYTES = 256


class TikTokenTokenizer(TextTokenizer):
    """Byte-pair encoding by rank.

    Parameters
    ----------
    path
        Megatron's JSON list of ``rank``, ``token_bytes`` and ``token_str``, or a plain file with
        base64 bytes and a rank per line.
    special_tokens
        For Megatron's vocabulary, its first special tokens, which must include <unk>, <s>, </s>,
        <mask>, <pad>, <cls> and <sep>; None uses these. For plain ranks, tokens after the highest
        rank, or a mapping from token to id.
    num_special_tokens
        Number of special tokens in Megatron's vocabulary, before all others; unnamed ones are
        called <SPECIAL_i>. Plain ranks have none.
    pattern
        How texts are split: ``"v1"``, ``"v2"``, ``"gpt2"``, ``"cl100k"``, or a regular expression.
        None is v2 for Megatron's vocabulary; plain ranks need one unless the file name implies it.
    vocab_size
        Number of ids in Megatron's vocabulary, including special tokens; higher ranks are dropped.

    Raises
    ------
    ConfigError
        If the file is missing or damaged, or a setting does not match it.

    Notes
    -----
    Special tokens in a text are encoded as such. Unlike in Megatron, ids are decoded together,
    so that characters split over several tokens survive. Source: Megatron Core
    ``tokenizers/text/libraries/tiktoken_tokenizer.py``.
    """

    library = "tiktoken"

    def __init__(
        self,
        path: str | os.PathLike[str],
        special_tokens: Sequence[str] | Mapping[str, int] | None = None,
        num_special_tokens: int = _NUM_SPECIAL,
        pattern: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        file = local_file(path, "a tiktoken vocabulary")
        library = need("tiktoken", "a tiktoken vocabulary")
        super().__init__(
            file,
            special_tokens=_plain_copy(special_tokens),
            num_special_tokens=num_special_tokens,
            pattern=pattern,
            vocab_size=vocab_size,
        )
        with open(file, "rb") as stream:
            is_list = stream.read(1 << 12).lstrip()[:1] == b"["
        if is_list:
            size = _MAX_VOCAB if vocab_size is None else vocab_size
            self._ranks = _read_list(file, size, num_special_tokens)
            special = _name_special(list(special_tokens or _NAMED.values()), num_special_tokens)
            self.special_tokens_map = dict(_NAMED)
            named = ("<unk>", "<s>", "</s>")
            self.additional_special_tokens = [
                text for text in special_tokens or _NAMED.values() if text not in named
            ]
        else:
            self._ranks = _read_ranks(file)
            size = max(self._ranks.values()) + 1
            if not isinstance(special_tokens, Mapping):
                special_tokens = {text: size + at for at, text in enumerate(special_tokens or ())}
            special = dict(special_tokens)
            size = max([size, *(number + 1 for number in special.values())])
            self._name_ends(special)
        self._set_special(special, size)
        expression = _find_pattern(file, pattern, is_list)
        try:
            self.encoding = library.Encoding(
                file.parent.name,
                pat_str=expression,
                mergeable_ranks=self._ranks,
                special_tokens=special,
            )
        except ValueError as error:
            raise ConfigError(
                f"pattern of {file} must be an expression that the library takes, got "
                f"{expression!r}: {error}; fix it"
            ) from error

    def _set_special(self, special: dict[str, int], num_ids: int) -> None:
        """Set the ids of special tokens, and the total number of ids."""
        self._num_ids = num_ids
        self._special = special
        self._texts = {number: text for text, number in special.items()}

    def _name_ends(self, special: dict[str, int]) -> None:
        """Name the end-of-document token among unnamed special tokens."""
        self.additional_special_tokens = list(special)
        ends = [text for text in ENDS if text in special]
        self.special_tokens_map = {"eos_token": ends[0]} if ends else {}

    @property
    def vocab(self) -> dict[str, int]:
        """Mapping from token text to id, sorted by id; bytes that are not UTF-8 are escaped."""
        found = self._special | {_text_of(token): at for token, at in self._ranks.items()}
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    def _encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = self.encoding.encode(text, allowed_special="all")
        return ids

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Decode ids to text, including special tokens."""
        return str(self.encoding.decode([int(number) for number in ids]))

    ids_to_full_text = ids_to_text

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        found = self._special.get(token)
        return self._ranks.get(token.encode()) if found is None else found

    def id_to_token(self, number: int) -> str | None:
        """Return the token of an id, or None."""
        if number in self._texts:
            return self._texts[number]
        try:
            return _text_of(self.encoding.decode_single_token_bytes(number))
        except (KeyError, OverflowError):
            return None

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the offset of the first character of each token."""
        found: list[int] = self.encoding.decode_with_offsets(list(ids))[1]
        return found


def _plain_copy(tokens: Sequence[str] | Mapping[str, int] | None) -> Any:
    """Copy special tokens to a dict or a list."""
    if tokens is None:
        return None
    return dict(tokens) if isinstance(tokens, Mapping) else list(tokens)


def _text_of(token: bytes) -> str:
    """Convert bytes to text, injectively."""
    return token.decode(errors="backslashreplace")


def _find_pattern(file: Path, pattern: str | None, is_list: bool) -> str:
    """Return the regular expression that splits texts."""
    if pattern is not None:
        return PATTERNS.get(pattern, pattern)
    if is_list:
        return PATTERNS["v2"]
    for known, name in {"cl100k": "cl100k", "gpt2": "gpt2", "r50k": "gpt2", "p50k": "gpt2"}.items():
        if file.name.startswith(known):
            return PATTERNS[name]
    raise ConfigError(
        f"{file} must come with a pattern, for ranks do not say how texts are split before bytes "
        f"are joined; give one of {', '.join(PATTERNS)}, or an expression"
    )


def _name_special(given: list[str], num_special: int) -> dict[str, int]:
    """Return Megatron's special tokens and their ids, padded to their number."""
    missing = [text for text in _NAMED.values() if text not in given]
    if missing or len(set(given)) != len(given) or len(given) > num_special:
        raise ConfigError(
            f"special_tokens must be at most {num_special:,} different texts with "
            f"{', '.join(_NAMED.values())} among them, got {given}; add what is missing"
        )
    filler = [_FILLER.format(number) for number in range(len(given), num_special)]
    return {text: number for number, text in enumerate(given + filler)}


def _read_list(file: Path, vocab_size: int, num_special: int) -> dict[bytes, int]:
    """Read Megatron's JSON list; ids follow those of the special tokens."""
    num_tokens = vocab_size - num_special
    try:
        rows = json.loads(file.read_bytes())[: max(0, num_tokens)]
        tokens = [
            (base64.b64decode(row["token_bytes"], validate=True), row["rank"]) for row in rows
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"{file} must be a JSON list of rank, token_bytes and token_str: {error!r}; save the "
            "tokenizer again"
        ) from error
    if len(tokens) != num_tokens or num_tokens < _NUM_BYTES:
        raise ConfigError(
            f"{file} must have {num_tokens:,} tokens besides {num_special:,} special ones, and at "
            f"least {_NUM_BYTES}, it has {len(tokens):,}; give its vocab_size and "
            "num_special_tokens"
        )
    ranks: dict[bytes, int] = {}
    for number, (token, rank) in enumerate(tokens):
        is_byte = number >= _NUM_BYTES or token == bytes([number])
        if rank != number or not is_byte or token in ranks:
            raise ConfigError(
                f"{file} must have the 256 bytes first and each token once, at its rank, entry "
                f"{number:,} is {token!r} of rank {rank!r}; save the tokenizer again"
            )
        ranks[token] = number + num_special
    return ranks


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Read the tokens and ranks of a plain file."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ConfigError(
                f"{file} must have bytes in base64 and their rank in each line, line {number:,} is "
                f"{line[:40]!r}; save the tokenizer again"
            ) from error
    if not ranks or len(set(ranks.values())) != len(ranks):
        raise ConfigError(
            f"{file} must have ranks, each once, it has {len(ranks):,} tokens; save it again"
        )
    return ranks
