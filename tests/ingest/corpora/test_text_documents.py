"""Any span of a corpus from its scratch files."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.ingest.records.sources import ListFiles
from zindex.errors import NotReadyError
from zindex.ingest.corpora.text_documents import (
    LENGTHS,
    TOKENS,
    encoded_corpus,
    load_table,
    text_records,
)
from zindex.ingest.records.read_partitions import Partition, read_partition

SETTINGS = text_records("uint16")


def test_spans_equal_slices(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    streams, tokens, lengths, counts = [], [], [], []
    for number in range(4):
        records = []
        for count in rng.integers(0, 4, rng.integers(1, 6)).tolist():
            sizes = rng.integers(1, 7, count).astype(np.int32)
            content = rng.integers(0, 60000, sizes.sum()).astype(np.uint16)
            records.append({TOKENS: content, LENGTHS: sizes})
            tokens.append(content)
            lengths.append(sizes)
            counts.append(count)
        partition = Partition(f"s{number}", 0, (0,))
        result = read_partition(ListFiles({"a": [records]}), tmp_path, partition, SETTINGS)
        streams += result.streams
    flat, sizes = np.concatenate(tokens), np.concatenate(lengths)
    offsets = np.cumsum([0, *sizes.tolist()])
    bounds = np.cumsum([0, *counts])
    corpus = encoded_corpus(tmp_path, "tag", "uint16", streams)
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.num_tokens, again.num_sequences) == (len(flat), len(sizes))
    assert again.num_documents == len(bounds) - 1
    for name, wanted in (
        ("sequence_length", sizes),
        ("sequence_offset", offsets),
        ("document_offset", bounds),
        ("tokens", flat),
    ):
        for start in range(len(wanted) + 1):
            for stop in range(start, len(wanted) + 1):
                np.testing.assert_array_equal(again.read(name, start, stop), wanted[start:stop])


def test_the_table_may_be_gone(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="must be there until it is committed, they are gone"):
        load_table(tmp_path, "none")
