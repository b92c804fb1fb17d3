"""Sequences of tokens in corpora, wherever tasks meet."""

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from zindex import schema
from zindex.arrays import AnyArray
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.ingest.corpora.pairs import open_corpus
from zindex.inspection.answers.search_text import search_corpus


@pytest.mark.parametrize("task_length", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_all_matches_within_documents(
    write_corpus: WriteCorpus, task_length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = [0, *rng.integers(0, 9, 30).tolist(), 0]
    tokens = rng.integers(0, 3, sum(lengths))
    corpus = open_corpus(write_corpus(lengths, tokens=tokens))
    matches: set[tuple[int, int, int]] = set()
    wanted = [rng.integers(0, 3, size) for size in (1, 2, 3, 12)]
    first = 0
    for document, length in enumerate(lengths):
        text = tokens[first : first + length]
        matches |= {
            (document, start, start + len(each))
            for each in wanted
            for start in range(length - len(each) + 1)
            if np.array_equal(text[start : start + len(each)], each)
        }
        first += length
    search = search_corpus(corpus, wanted, SerialExecutor(), task_length=task_length)
    assert [*map(tuple, run_builds(search).tolist())] == sorted(matches)
    for each in wanted:
        alone = search_corpus(corpus, [each], SerialExecutor(), task_length=task_length)
        own = {match for match in matches if match[2] - match[1] == len(each)}
        assert [*map(tuple, run_builds(alone).tolist())] == sorted(own)


def test_several_sequences_take_one_pass(write_corpus: WriteCorpus) -> None:
    corpus = open_corpus(write_corpus([50] * 20))
    counts: list[int] = []

    def count(name: str, start: int, stop: int) -> AnyArray:
        counts.append(stop - start if name == schema.TOKENS.name else 0)
        return corpus.read(name, start, stop)

    wanted = [np.array([1, 2]), np.array([3, 4]), np.array([5])]
    counted = replace(corpus, read=count)
    run_builds(search_corpus(counted, wanted, SerialExecutor(), task_length=100))
    assert sum(counts) == corpus.num_tokens + 9  # each task but the last reads one token more
