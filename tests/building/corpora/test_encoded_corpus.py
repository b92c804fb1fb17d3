"""Any span of a corpus out of its files of streams."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from zindex.building.corpora.encoded_corpus import EncodedCorpus, load_corpus
from zindex.building.corpora.text_documents import EncodedSegment
from zindex.errors import NotReadyError
from zindex.store.scratch import write_streams


def test_spans_equal_slices(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    segments, tokens, lengths, counts = [], [], [], []
    for number in range(4):
        documents = rng.integers(0, 4, rng.integers(1, 6))
        sequences = rng.integers(1, 7, documents.sum()).astype(np.int32)
        content = rng.integers(0, 60000, sequences.sum()).astype(np.uint16)
        write_streams(tmp_path, f"s{number}", [content.data, sequences.data, documents.data])
        segments.append(EncodedSegment(f"s{number}", len(content), len(sequences), len(documents)))
        tokens.append(content)
        lengths.append(sequences)
        counts.append(documents)
    flat, sizes = np.concatenate(tokens), np.concatenate(lengths)
    pointers = (np.cumsum(sizes, dtype=np.int64) - sizes) * 2
    bounds = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    corpus = EncodedCorpus(tmp_path, "tag", "uint16", segments).save()
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.num_tokens, again.num_sequences) == (len(flat), len(sizes))
    assert (again.num_documents, again.bin_nbytes) == (len(bounds) - 1, flat.nbytes)
    for found, wanted in (
        (again.sequence_lengths, sizes),
        (again.sequence_pointers, pointers),
        (again.document_indices, bounds),
        (lambda start, stop: again.read(np.uint16, stop - start, 2 * start), flat),
        (lambda start, stop: again.read(np.uint8, stop - start, start), flat.view(np.uint8)),
    ):
        for start in range(len(wanted) + 1):
            for stop in range(start, len(wanted) + 1):
                np.testing.assert_array_equal(found(start, stop), wanted[start:stop])


def test_the_table_may_be_gone(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="must be there until it is committed, they are gone"):
        load_corpus(tmp_path, "none")
