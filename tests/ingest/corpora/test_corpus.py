"""Concatenated corpora, by position."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from zindex.errors import SourceError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.ingest.corpora.corpus import join_corpora, store_corpus
from zindex.ingest.corpora.pairs import open_pair
from zindex.store.layout import ChunkGrid

LENGTHS = [[5, 0, 7], [3, 12]]


@pytest.mark.parametrize("stored", [False, True])
def test_spans_of_the_parts(write_corpus: WriteCorpus, tmp_path: Path, stored: bool) -> None:
    prefixes = [
        write_corpus(
            part, name=f"p{i}", tokens=np.arange(sum(part)) + 12 * i, modes=[i] * len(part)
        )
        for i, part in enumerate(LENGTHS)
    ]
    joined = join_corpora(
        [
            store_corpus(store)
            for store in convert(prefixes, tmp_path, client=SerialExecutor(), grid=ChunkGrid(2, 4))
        ]
        if stored
        else [open_pair(path) for path in prefixes],
        "all",
        has_modes=True,
    )
    joined = pickle.loads(pickle.dumps(joined))
    assert joined.prefix == "all"
    assert (joined.num_tokens, joined.num_sequences, joined.num_documents) == (27, 5, 5)
    rows = {
        "tokens": list(range(27)),
        "sequence_length": [5, 0, 7, 3, 12],
        "sequence_offset": [0, 5, 5, 12, 15, 27],
        "document_offset": [0, 1, 2, 3, 4, 5],
        "sequence_mode": [0, 0, 0, 1, 1],
    }
    for name, right in rows.items():
        assert joined.shape_of(name)[0] == len(right)
        for start in range(len(right) + 1):
            for stop in range(start, len(right) + 1):
                assert joined.read(name, start, stop).tolist() == right[start:stop]


def test_modes_that_a_part_lacks(write_corpus: WriteCorpus) -> None:
    parts = [write_corpus([1], name="a", modes=[1]), write_corpus([2], name="b")]
    corpora = [open_pair(path) for path in parts]
    with pytest.raises(SourceError, match=r"but \S+/b has none; leave the modes out with multimod"):
        join_corpora(corpora, "all", has_modes=True)
    assert join_corpora(corpora, "all", has_modes=False).num_sequences == 2


def test_more_tokens_than_their_dtype_counts(write_corpus: WriteCorpus) -> None:
    parts = [write_corpus([40_000], name=name, dtype=np.uint16) for name in "ab"]
    joined = join_corpora([open_pair(path) for path in parts], "all", has_modes=False)
    assert joined.read("tokens", 39_999, 40_002).tolist() == [39_999, 0, 1]
