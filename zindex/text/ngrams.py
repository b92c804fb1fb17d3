"""Words of a text, and 64-bit hashes of its n-grams, equal on every machine."""

import re
import unicodedata
from hashlib import blake2b

import numpy as np

from zindex.arrays import UInt64Array

# Scripts without blanks between words: each character is a word.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
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
    return _WORD.findall(normalise(text).casefold())


def normalise(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), with single blanks between its words."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


class NgramHasher:
    """Hashes the n-grams of words; keeps the hashes of common words."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def __reduce__(self) -> tuple[type["NgramHasher"], tuple[()]]:
        return NgramHasher, ()

    def hash(self, words: list[str], length: int) -> UInt64Array:
        """Return the hash of each n-gram.

        Parameters
        ----------
        words
            The words of a text.
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
        num_grams = len(words) - length + 1
        if num_grams < 1:
            return np.empty(0, np.uint64)
        known = self._words
        try:
            numbers = np.array([known[word] for word in words], np.uint64)
        except KeyError:
            numbers = self._add(words)
        hashes = numbers[:num_grams].copy()
        for offset in range(1, length):
            hashes *= _FACTOR
            hashes += numbers[offset : offset + num_grams]
        hashes ^= hashes >> _SHIFT
        hashes *= _MIXER
        hashes ^= hashes >> _SHIFT
        return hashes

    def _add(self, words: list[str]) -> UInt64Array:
        """Return the hashes of words of which some are new."""
        known = self._words
        if len(known) > _MAX_WORDS:
            known.clear()
        for word in words:
            if word not in known:
                digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
                known[word] = int.from_bytes(digest, "little")
        return np.array([known[word] for word in words], np.uint64)
