"""Corpora one after the other, by position."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from zindex.building.convert import Corpus, convert
from zindex.building.corpora.joined_corpus import JoinedCorpus, StoreCorpus
from zindex.building.corpora.parted_corpus import cut_span
from zindex.building.executor import SerialExecutor
from zindex.errors import SourceError
from zindex.formats.bin_idx import read_index
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
    joined = JoinedCorpus(
        [
            StoreCorpus(store)
            for store in convert(prefixes, tmp_path, client=SerialExecutor(), grid=ChunkGrid(2, 4))
        ]
        if stored
        else [Corpus(path, read_index(path)) for path in prefixes],
        "all",
        has_modes=True,
    )
    joined = pickle.loads(pickle.dumps(joined))
    assert (joined.prefix, joined.path, joined.index, joined.tokens) == (
        "all",
        "all",
        joined,
        joined,
    )
    assert (joined.num_tokens, joined.num_sequences, joined.num_documents) == (27, 5, 5)
    assert joined.bin_nbytes == 108
    rows = {
        "sequence_lengths": [5, 0, 7, 3, 12],
        "sequence_pointers": [0, 20, 20, 48, 60],
        "document_indices": [0, 1, 2, 3, 4, 5],
        "sequence_modes": [0, 0, 0, 1, 1],
    }
    for name, right in rows.items():
        for start in range(len(right) + 1):
            for stop in range(start, len(right) + 1):
                assert getattr(joined, name)(start, stop).tolist() == right[start:stop]
    raw = np.arange(27, dtype="<i4").tobytes()
    for start in range(0, 108, 5):
        for stop in range(start, 109, 7):
            assert joined.read(np.uint8, stop - start, start).tobytes() == raw[start:stop]
    assert joined.read(np.int32, 4, 40).tolist() == [10, 11, 12, 13]


def test_spans_are_cut() -> None:
    assert list(cut_span([0, 3, 3, 5], 1, 9)) == [(0, 1, 3, 0), (2, 0, 2, 2)]
    assert list(cut_span([0, 3, 3, 5], 3, 4)) == [(2, 0, 1, 0)]
    assert list(cut_span([0, 3, 3, 5], 2, 2)) == []
    assert list(cut_span([0, 0], 0, 1)) == []


def test_modes_that_a_part_lacks(write_corpus: WriteCorpus) -> None:
    parts = [write_corpus([1], name="a", modes=[1]), write_corpus([2], name="b")]
    corpora = [Corpus(path, read_index(path)) for path in parts]
    with pytest.raises(SourceError, match=r"but \S+/b has none; leave the modes out with multimod"):
        JoinedCorpus(corpora, "all", has_modes=True)
    assert JoinedCorpus(corpora, "all", has_modes=False).num_sequences == 2
