"""Encode text by any kind of tokenizer, without downloads and without remote code."""

import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import ConfigError
from zindex.io.local import local_path
from zindex.io.request_threads import DaemonPool
from zindex.text import tokenizer_settings
from zindex.text.token_spans import Span, find_overlap, find_starts
from zindex.text.tokenizers.base import find_token
from zindex.text.tokenizers.open_tokenizer import find_library, open_text_tokenizer
from zindex.text.tokenizers.rust_tokenizers import find_tokenizer_file, load_tokenizer_file
from zindex.text.tokenizers.text_tokenizer import TextTokenizer
from zindex.text.tokenizers.wrapped import wrap_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

#: A path, an object with ``encode_batch`` or ``encode``, or a function from text to ids.
TokenizerLike = str | os.PathLike[str] | Callable[[str], Any] | Any

#: Seconds that a call may take, in addition to those for its characters.
MAX_SECONDS = 60.0
# Characters per second of the slowest tokenizers, a hundredth of the usual speed; and minimum
# characters of a call that uses a thread: for fewer, starting it would dominate.
_MIN_BANDWIDTH, _MIN_WATCHED = 10_000, 1 << 13
# The tokenizers library has 32-bit ids.
_MAX_ID = 1 << 32
# Attributes of tokenizers with the id of the end of a document.
_END_NAMES = ("eod", "eos_token_id", "eos_id", "eod_id")
# Methods of tokenizers that return the id of a token's text.
_FIND_NAMES = ("token_to_id", "convert_tokens_to_ids")
# A private-use character, which no tokenizer has learned to merge with the following text.
_LEAD = "\ue000"


# A text to encode: its number, and how many characters were put before it.
_Item = tuple[int, str, int]


class TextEncoder:
    """Encodes texts as token ids; a tokenizer of a file is pickled by its path.

    Parameters
    ----------
    tokenizer
        The path of a ``tokenizer.json``, of another file that
        `zindex.text.tokenizers.open_tokenizer` supports, or of a folder with one; an object of
        another library, see `zindex.text.tokenizers.wrapped`, or with ``encode_batch`` or
        ``encode``; or a function from a text to its ids.

    Raises
    ------
    ConfigError
        If it is none of these, or the file is missing or damaged.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.path: Path | None = None
        if isinstance(tokenizer, str | os.PathLike):
            if os.path.exists(tokenizer) and find_library(tokenizer) != "huggingface":
                tokenizer = open_text_tokenizer(tokenizer)
            else:
                self.path = find_tokenizer_file(local_path(tokenizer, "a tokenizer"))
                tokenizer = load_tokenizer_file(self.path)
        elif not hasattr(tokenizer, "encode_batch_fast"):  # it takes the same arguments
            tokenizer = wrap_tokenizer(tokenizer) or tokenizer
        if not callable(tokenizer) and not (
            hasattr(tokenizer, "encode") or hasattr(tokenizer, "encode_batch")
        ):
            raise ConfigError(
                "a tokenizer must be the path of a tokenizer.json, an object with encode, or a "
                f"function from text to ids, got {type(tokenizer).__name__}; pass one of these"
            )
        self.tokenizer: Any = tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "tokenizer": None if self.path else self.tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.path is not None:
            self.tokenizer = load_tokenizer_file(self.path)

    def identity(self) -> str:
        """Return the SHA-256 of a tokenizer's file, or the name of an object's class."""
        if self.path is not None:
            return hashlib.sha256(self.path.read_bytes()).hexdigest()
        if isinstance(self.tokenizer, TextTokenizer):
            return self.tokenizer.identity()
        if hasattr(self.tokenizer, "to_str"):
            return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
        named = self.tokenizer if hasattr(self.tokenizer, "__qualname__") else type(self.tokenizer)
        # In a spawned loader worker, the script of the main process has another name.
        module = named.__module__.replace("__mp_main__", "__main__")
        return f"{module}.{named.__qualname__}"

    def encode(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[Int64Array]:
        """Return the ids of each text.

        Parameters
        ----------
        texts
            The texts.
        special_tokens
            Whether the tokenizer may add its own tokens around a text. Tokens that are written in
            the text are always recognised.

        Raises
        ------
        ConfigError
            If the tokenizer returns anything but integers, or one of its patterns fails or does not
            terminate.
        """
        return self._within_limits(texts, partial(self._encode, texts, special_tokens))

    def _within_limits(self, texts: Sequence[str], encode: Callable[[], T]) -> T:
        """Return the result of a function that encodes texts; an error if it does not terminate."""
        if self.path is None and not isinstance(self.tokenizer, TextTokenizer):
            return encode()
        # Native code cannot be interrupted, but it releases the GIL.
        nbytes = sum(map(len, texts))
        seconds = MAX_SECONDS + nbytes / _MIN_BANDWIDTH
        cause: BaseException
        try:
            if nbytes < _MIN_WATCHED:
                return encode()
            return _pool.submit(encode).result(seconds)
        except TimeoutError as error:
            reason, cause = f"within {seconds:.0f} s, a pattern of it backtracks", error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # which is not an Exception
                raise
            reason, cause = f"but a pattern of it fails: {str(error)[:200]}", error
        raise ConfigError(
            f"the tokenizer {self.path or self.tokenizer!r} must encode {nbytes:,} characters "
            f"{reason}; take another tokenizer"
        ) from cause

    def _encode(self, texts: Sequence[str], special_tokens: bool) -> list[Int64Array]:
        """Return the ids of each text."""
        tokenizer = self.tokenizer
        plain = {} if special_tokens else {"add_special_tokens": False}
        if hasattr(tokenizer, "encode_batch_fast"):  # the same ids without offsets
            found: Any = tokenizer.encode_batch_fast(texts, **plain)
        elif hasattr(tokenizer, "encode_batch"):
            found = tokenizer.encode_batch(texts, **plain)
        else:
            encode = getattr(tokenizer, "encode", tokenizer)
            if plain and not _takes(encode, "add_special_tokens"):
                plain = {}
            found = [encode(text, **plain) for text in texts]
        lists = [getattr(ids, "ids", ids) for ids in found]
        if hasattr(tokenizer, "encode_batch_fast") and all(type(ids) is list for ids in lists):
            flat, bounds = _join_lists(lists)
            return [flat[start:stop] for start, stop in bounds]
        return [self._take_ids(ids) for ids in lists]

    def encode_parts(self, texts: Sequence[str], within: Sequence[bool]) -> list[Int64Array]:
        """Return the ids of parts of texts, with no special tokens except those written in them.

        Parameters
        ----------
        texts
            The parts.
        within
            Whether a part follows other text.

        Notes
        -----
        Some tokenizers add a blank before each text, and therefore before each part. If the decoded
        ids show that, parts within a text are encoded after another character, whose ids are
        removed again.
        """
        return self._encode_parts(texts, within, self._encode_items)

    def _encode_items(self, items: Sequence[_Item]) -> list[Int64Array]:
        """Return the ids of texts."""
        return self.encode([text for _, text, _ in items], special_tokens=False)

    def _encode_parts(
        self,
        texts: Sequence[str],
        within: Sequence[bool],
        encode: Callable[[Sequence[_Item]], list[Int64Array]],
    ) -> list[Int64Array]:
        """Return what a function gives for parts: their ids, or columns that begin with them."""
        lead = self._lead
        items = [*zip(range(len(texts)), texts, repeat(0))]
        if lead is None:
            return encode(items)
        marked = [
            (item[0], _LEAD + item[1], len(_LEAD)) if inside else item
            for item, inside in zip(items, within, strict=True)
        ]
        found = encode(marked)
        # A lead that was merged with the following text cannot be removed.
        merged = [
            number
            for number, inside in enumerate(within)
            if inside and not np.array_equal(_ids_of(found[number][: len(lead)]), lead)
        ]
        plain = encode([items[number] for number in merged])
        ids = [x[len(lead) :] if inside else x for x, inside in zip(found, within, strict=True)]
        for number, alone in zip(merged, plain, strict=True):
            ids[number] = alone
        return ids

    def encode_spans(
        self, texts: Sequence[str], within: Sequence[bool], spans: Sequence[Sequence[Span]]
    ) -> list[tuple[Int64Array, BoolArray]]:
        """Return the ids of parts of texts, and which of them have a character in a span.

        Parameters
        ----------
        texts, within
            As for ``encode_parts``.
        spans
            Starts and ends of characters of each text, in order; none of them is empty.

        Notes
        -----
        A text is encoded as a whole, so that its ids do not depend on the spans, and a token across
        the border of a span counts as inside, as in transformers'
        ``return_assistant_tokens_mask``. Only if the tokenizer does not report the offsets of its
        tokens, a text is encoded in pieces, cut at the borders.
        """
        pieces = list[list[tuple[str, bool, bool]]]()
        for text, follows, inside in zip(texts, within, spans, strict=True):
            edges = [0, *chain.from_iterable(inside), len(text)]
            cuts = [(*pair, number % 2 == 1) for number, pair in enumerate(pairwise(edges))]
            kept = [cut for cut in cuts if cut[0] < cut[1]] or [(0, 0, False)]
            pieces.append([(text[x:y], follows or x > 0, flag) for x, y, flag in kept])
        found = dict[int, tuple[Int64Array, BoolArray]]()
        cut = [number for number, parts in enumerate(pieces) if len(parts) > 1]
        if cut and self._has_offsets:
            chosen = [texts[i] for i in cut], [within[i] for i in cut]
            encode = partial(self._encode_masks, spans=[spans[i] for i in cut])
            columns = self._encode_parts(*chosen, encode)
            found = {i: (own[:, 0], own[:, 1] > 0) for i, own in zip(cut, columns, strict=True)}
        left = [number for number in range(len(texts)) if number not in found]
        parts = [part for number in left for part in pieces[number]]
        ids = iter(self.encode_parts([part[0] for part in parts], [part[1] for part in parts]))
        for number in left:
            own = [*islice(ids, len(pieces[number]))]
            flags = [part[2] for part in pieces[number]]
            found[number] = np.concatenate(own), np.repeat(flags, [len(x) for x in own])
        return [found[number] for number in range(len(texts))]

    @cached_property
    def _has_offsets(self) -> bool:
        """Whether the tokenizer reports where its tokens are in a text."""
        try:
            self._encode_masks([(0, "a", 0)], [[(0, 1)]])
        except (AttributeError, NotImplementedError):
            return False
        return True

    def _encode_masks(
        self, items: Sequence[_Item], spans: Sequence[Sequence[Span]]
    ) -> list[Int64Array]:
        """Return the tokens of texts: shape (tokens, 2), each with its id, and 1 if in a span."""
        texts = [text for _, text, _ in items]
        inside = [
            [(x + moved, y + moved) for x, y in spans[number]] if moved else spans[number]
            for number, _, moved in items
        ]
        rust = getattr(self.tokenizer, "tokenizer", self.tokenizer)
        if hasattr(rust, "encode_batch_fast"):
            encode = partial(rust.encode_batch, texts, add_special_tokens=False)
            found = self._within_limits(texts, encode)
            flat, bounds = _join_lists([encoding.ids for encoding in found])
            both = np.zeros((len(flat), 2), np.int64)
            both[:, 0] = flat
            pairs = [both[start:stop] for start, stop in bounds]
            for pair, encoding, text, own in zip(pairs, found, texts, inside, strict=True):
                for start, stop in find_overlap(encoding, len(text), own):
                    pair[start:stop, 1] = 1
            return pairs
        columns = []
        encoded = self.encode(texts, special_tokens=False)
        for text, ids, own in zip(texts, encoded, inside, strict=True):
            starts = self.tokenizer.offsets(ids.tolist(), text)
            mask = find_starts(starts, len(text), own)
            columns.append(np.stack((ids, mask.astype(np.int64)), 1))
        return columns

    @cached_property
    def _lead(self) -> Int64Array | None:
        """Ids of the lead if the tokenizer adds a blank before texts, otherwise None."""
        decode: Any = getattr(self.tokenizer, "decode", None)
        if decode is None:
            return None
        lead, word, both = self.encode([_LEAD, "a", f"{_LEAD}a"], special_tokens=False)
        joined = np.concatenate((lead, word))
        return None if decode(joined.tolist()) == decode(both.tolist()) else lead

    def special_texts(self) -> list[str]:
        """Return the texts of all special tokens that the tokenizer lists."""
        if hasattr(self.tokenizer, "get_added_tokens_decoder"):
            added = self.tokenizer.get_added_tokens_decoder().values()
            return sorted({token.content for token in added if token.special})
        return sorted(map(str, getattr(self.tokenizer, "all_special_tokens", ())))

    def vocab_size(self) -> int | None:
        """Return the number of ids including added tokens; None if unknown."""
        for name in ("get_vocab_size", "__len__"):
            if hasattr(self.tokenizer, name):
                return int(getattr(self.tokenizer, name)())
        return None

    def _take_ids(self, ids: Any) -> Int64Array:
        """Return ids as an array."""
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ConfigError(
                "a tokenizer must give a list of whole numbers for a text, "
                f"{type(self.tokenizer).__name__} gives {type(ids).__name__} of {array.dtype} and "
                f"shape {array.shape}; wrap it in a function that returns ids"
            )
        return array.astype(np.int64, copy=False)

    def settings(self) -> tokenizer_settings.TokenizerSettings:
        """Return the tokenizer's special tokens and chat templates.

        Raises
        ------
        ConfigError
            If a file in its folder is damaged.
        """
        if self.path is not None:
            return tokenizer_settings.read_tokenizer_settings(self.path)
        return tokenizer_settings.settings_of_object(self.tokenizer)

    def find_end(self, token: bool | int | str, what: str) -> int | None:
        """Return the end id of documents: as `find_id`, but True prefers the ``eos_token``.

        Raises
        ------
        ConfigError
            If the tokenizer has no such token.
        """
        if token is True:
            token = self.settings().special_tokens.get("eos_token", True)
        return self.find_id(token, what)

    def find_begin(self, token: bool | int | str, what: str) -> int | None:
        """Return the begin id of documents: as `find_id`, but True is the ``bos_token``.

        Raises
        ------
        ConfigError
            If the tokenizer has no such token.
        """
        if token is True:
            token = self.settings().special_tokens.get("bos_token", "")
            if not token:
                raise ConfigError(
                    f"{what} needs the bos_token of the tokenizer, which names none; give the id "
                    "or the text of a token"
                )
        return self.find_id(token, what)

    def find_template(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer adds before and after each text."""
        # Tokenizers of numbers accept a digit, too.
        [text], [whole] = (self.encode(["0"], special_tokens=added) for added in (False, True))
        for start in range(len(whole) - len(text) + 1):
            stop = start + len(text)
            if np.array_equal(whole[start:stop], text):
                return whole[:start].tolist(), whole[stop:].tolist()
        return [], []

    def find_id(self, token: bool | int | str, what: str) -> int | None:
        """Return the id of a special token.

        Parameters
        ----------
        token
            Its id, its text, True for the tokenizer's own end of a document, or False for none.
        what
            Name of the user's argument, for messages.

        Raises
        ------
        ConfigError
            If the tokenizer has no such token.
        """
        if token is False:
            return None
        if not isinstance(token, bool | str):
            return self._check_id(token, what)
        if token is True:
            ids = (find_token(self.tokenizer, name) for name in _END_NAMES)
        else:
            methods = (getattr(self.tokenizer, name, None) for name in _FIND_NAMES)
            ids = (find(token) for find in methods if find is not None)
        found = next((number for number in ids if number is not None), None)
        if found is None:
            sought = "a named end-of-text token" if token is True else f"the token {token!r}"
            kind = type(self.tokenizer).__name__
            owner: Any = self.path or getattr(self.tokenizer, "path", None) or kind
            raise ConfigError(
                f"{what} needs {sought}, {owner} has none; give the text or id of a token, such as "
                "'<|endoftext|>', or False (none) to do without"
            )
        return int(found)

    def _check_id(self, number: Any, what: str) -> int:
        """Return an id given by a user, if it is valid."""
        size = self.vocab_size()
        is_whole = isinstance(number, int | np.integer)
        if not is_whole or number < 0 or (size is not None and not self._has_id(number, size)):
            bound = "of the vocabulary" if size is None else f"below {size:,}"
            raise ConfigError(
                f"{what} must be the text of a token or an id from 0 on, {bound}, got {number!r}; "
                "look it up in the tokenizer"
            )
        return int(number)

    def _has_id(self, number: int, size: int) -> bool:
        """Return whether a tokenizer has an id; with gaps, some ids exceed the size."""
        if number < size or number >= _MAX_ID or not hasattr(self.tokenizer, "id_to_token"):
            return number < size
        return self.tokenizer.id_to_token(int(number)) is not None


def _join_lists(lists: Sequence[list[int]]) -> tuple[Int64Array, Iterable[Span]]:
    """Return lists of ids as one array, in a fifth of the time of one each, and their bounds."""
    flat = np.fromiter(chain.from_iterable(lists), np.int64, sum(map(len, lists)))
    return flat, pairwise(accumulate(map(len, lists), initial=0))


def _ids_of(found: Int64Array) -> Int64Array:
    """Return the ids of tokens with or without another column."""
    return found if found.ndim == 1 else found[:, 0]


# A thread is used again, as its memory is: in a new one, each page would be mapped again.
_pool = DaemonPool(name="zindex-tokenizer")


def _renew() -> None:
    """Reset in a forked child, which has no such threads."""
    global _pool
    _pool = DaemonPool(name="zindex-tokenizer")


os.register_at_fork(after_in_child=_renew)


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of a name."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    return name in found or any(item.kind is item.VAR_KEYWORD for item in found.values())
