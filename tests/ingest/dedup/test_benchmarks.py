"""The n-grams of benchmarks, and the search for them."""

import random
from pathlib import Path

import pytest

from tests.sources.archives import write_jsonl
from zindex.errors import ConfigError
from zindex.ingest.dedup.benchmarks import Benchmarks, read_benchmarks
from zindex.text.ngrams import WordHashes


def search(benchmarks: Benchmarks, text: str) -> tuple[int, int] | None:
    return benchmarks.find(WordHashes().read(text.split()))


def test_every_text_of_a_file_is_searched(tmp_path: Path) -> None:
    rows = [{"q": "a b c", "choices": ["d e f", {"deep": "g h i j"}], "id": 7}, {"q": "k l"}]
    first = write_jsonl(tmp_path / "q.jsonl", rows)
    second = tmp_path / "t.txt"
    second.write_text("A, b.\nC! x y\n")
    found = read_benchmarks([first], 3)
    [file] = found.files
    assert (file.num_texts, file.num_short, file.num_ngrams) == (4, 1, 4)
    assert search(found, "x d e f") == (0, 1)
    assert search(found, "c d e") is None
    assert search(found, "k l") is None
    assert search(read_benchmarks(second, 3), "b c x") == (0, 0)


def test_found_ngrams_equal_those_of_naive_search(tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = [[rng.choice("abcd") for _ in range(9)] for _ in range(40)]
    paths = [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]
    halves = (texts[:20], texts[20:])
    for path, own in zip(paths, halves, strict=True):
        write_jsonl(path, [{"text": " ".join(text)} for text in own])
    found = read_benchmarks(paths, 6)
    grams = [{tuple(text[i : i + 6]) for text in texts for i in range(4)} for texts in halves]
    num_found = 0
    for _ in range(300):
        words = [rng.choice("abcd") for _ in range(20)]
        spans = enumerate(tuple(words[i : i + 6]) for i in range(15))
        owners = ((n, i) for i, span in spans for n in (0, 1) if span in grams[n])
        naive = next(owners, None)
        assert found.find(WordHashes().read(words)) == naive
        num_found += naive is not None
    assert 50 < num_found < 250


def test_identity_depends_on_texts_only(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a b c"}])
    first = read_benchmarks(path, 2).identity()
    assert read_benchmarks(path, 2).identity() == first
    write_jsonl(path, [{"text": "a b d"}])
    assert read_benchmarks(path, 2).identity() != first


def test_a_file_without_long_texts(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a b c"}])
    with pytest.raises(ConfigError, match=r"at least 13 words, .*a.jsonl has 1 texts, all of them"):
        read_benchmarks(path, 13)
