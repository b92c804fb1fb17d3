"""Words and hashes of n-grams."""

import random

import pytest

from zindex.text.ngrams import WordHashes, hash_ngrams, normalise, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n", []),
        ("A b-C", ["a", "b", "c"]),
        ("cafe\u0301 CAF\u00c9", ["caf\u00e9", "caf\u00e9"]),
        ("\u4e2d\u6587 ab\u3042", ["\u4e2d", "\u6587", "ab", "\u3042"]),
        ("\ud800 x", ["x"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_white_space_and_composed_characters_are_normalised() -> None:
    assert normalise(" a\t\nb\u3000e\u0301 ") == "a b \u00e9"


@pytest.mark.parametrize("length", [1, 2, 5, 13])
def test_hashes_are_equal_where_ngrams_are(length: int) -> None:
    rng = random.Random(length)
    words = [rng.choice("abc") for _ in range(2_000)]
    grams = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
    hashes = hash_ngrams(WordHashes().read(words), length).tolist()
    assert len(hashes) == len(grams)
    assert len(set(hashes)) == len(set(grams)) == len(set(zip(hashes, grams, strict=True)))


def test_short_texts_have_no_ngrams() -> None:
    assert hash_ngrams(WordHashes().read(["a", "b"]), 3).tolist() == []


def test_hashes_do_not_depend_on_the_process() -> None:
    assert hash_ngrams(WordHashes().read(["a", "b"]), 2).tolist() == [2209930820001762973]


def test_words_of_plain_text_are_those_of_other_text() -> None:
    plain = "".join(map(chr, range(128))) + "A_b 3"
    assert split_words(plain) == split_words(f"{plain} \u2013")
