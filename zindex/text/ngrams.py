"""Words of a text, and 64-bit hashes of its n-grams, equal on every machine."""

import re
import unicodedata
from hashlib import blake2b

import numpy as np

from zindex.arrays import UInt64Array

# Scripts without blanks between words: each character is a word.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
# The lower case of each ASCII character of a word, and a blank for others: faster than a pattern.
_ASCII = "".join(chr(code).lower() if _WORD.match(chr(code)) else " " for code in range(128))
_FACTOR, _MIXER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
# Hashes of words that are kept.
_MAX_WORDS = 1 << 20


def split_words(text: str) -> list[str]:
    """Return the words of a text, in lower case and without punctuation.

    Chinese and Japanese characters are words of their own.

    Examples
    --------
    >>> split_words("It's 3.5% (of ALL).")
    ['it', 's', '3', '5', 'of', 'all']
    """
    if text.isascii():
        return text.translate(_ASCII).split()
    return _WORD.findall(normalise(text).casefold())


def normalise(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), with single blanks between its words."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


class WordHashes(dict[str, int]):
    """The hashes of words, computed when they are first asked for."""

    def __missing__(self, word: str) -> int:
        """Compute the hash of a word."""
        if len(self) > _MAX_WORDS:
            self.clear()
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        found = self[word] = int.from_bytes(digest, "little")
        return found

    def read(self, words: list[str]) -> UInt64Array:
        """Return the hash of each word."""
        return np.array([self[word] for word in words], np.uint64)


def hash_ngrams(words: UInt64Array, length: int) -> UInt64Array:
    """Return the hash of each n-gram.

    Parameters
    ----------
    words
        The hash of each word of a text.
    length
        Words of an n-gram, > 0.

    Returns
    -------
    hashes
        Shape (len(words) - length + 1,), uint64; empty if there are fewer words.

    Notes
    -----
    Two different n-grams have equal hashes with a probability of about 2**-64.
    """
    num_grams = max(0, len(words) - length + 1)
    hashes = words[:num_grams].copy()
    for offset in range(1, length if num_grams else 0):
        hashes *= _FACTOR
        hashes += words[offset : offset + num_grams]
    hashes ^= hashes >> _SHIFT
    hashes *= _MIXER
    hashes ^= hashes >> _SHIFT
    return hashes
