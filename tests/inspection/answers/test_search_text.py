"""Sequences of tokens in corpora, wherever tasks meet."""

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.ingest.corpora.pairs import open_corpus
from zindex.inspection.answers.search_text import Match, search_corpus


@pytest.mark.parametrize("task_length", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_all_matches_within_documents(
    write_corpus: WriteCorpus, task_length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = [0, *rng.integers(0, 9, 30).tolist(), 0]
    tokens = rng.integers(0, 3, sum(lengths))
    corpus = open_corpus(write_corpus(lengths, tokens=tokens))
    for size in (1, 2, 3, 12):
        wanted = rng.integers(0, 3, size)
        matches, first = [], 0
        for document, length in enumerate(lengths):
            text = tokens[first : first + length]
            matches += [
                Match(document, start, start + size)
                for start in range(length - size + 1)
                if np.array_equal(text[start : start + size], wanted)
            ]
            first += length
        search = search_corpus(corpus, wanted, SerialExecutor(), task_length=task_length)
        assert run_builds(search) == matches
