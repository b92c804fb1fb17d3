"""Pairs in object storage as corpora: the same rows as of files, and the same refusals."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.store import conftest
from zindex.building.corpora.remote_pair import open_remote_pair
from zindex.errors import SourceError
from zindex.formats.bin_idx import read_index
from zindex.store import object_client
from zindex.store.objects import ObjectPath

objects = conftest.objects


def upload(root: ObjectPath, prefix: str) -> str:
    for suffix in ("bin", "idx"):
        content = Path(f"{prefix}.{suffix}").read_bytes()
        object_client.put(root / f"a.{suffix}", [content], replace=True)
    return f"{root}/a"


def test_rows_are_those_of_the_files(objects: ObjectPath, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([5, 0, 7, 3], modes=[1, 2, 3, 4], sequences_per_document=2)
    pair = open_remote_pair(upload(objects, prefix), multimodal=True)
    pair = pickle.loads(pickle.dumps(pair))
    right = read_index(prefix)
    assert (pair.index.num_tokens, pair.index.bin_nbytes, pair.index.has_modes) == (15, 60, True)
    for name in ("sequence_lengths", "sequence_pointers", "sequence_modes"):
        for start, stop in ((0, 4), (1, 3), (2, 2)):
            rows = getattr(pair.index, name)(start, stop)
            assert rows.tolist() == getattr(right, name)(start, stop).tolist()
    assert pair.index.document_indices(0, 3).tolist() == [0, 2, 4]
    assert pair.tokens.read(np.int32, 4, 8).tolist() == [2, 3, 4, 5]
    with pytest.raises(IndexError, match=r"\[0, 5\) was asked of s3://memory/store/a\.idx"):
        pair.index.sequence_lengths(0, 5)


def test_what_is_refused(objects: ObjectPath, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([5, 7])
    url = upload(objects, prefix)
    with pytest.raises(SourceError, match=r"but s3://\S+/a\.idx has 82 and so no modes; open it w"):
        open_remote_pair(url, multimodal=True)
    object_client.put(objects / "a.bin", [b"cut"], replace=True)
    with pytest.raises(SourceError, match=r"a\.bin must have 48 bytes, .*a\.idx ends, but has 3"):
        open_remote_pair(url)
    object_client.delete(objects / "a.bin")
    with pytest.raises(SourceError, match=r"but there is no s3://memory/store/a\.bin;"):
        open_remote_pair(url)
