"""Pairs by path, glob and folder; those in object storage read as those of files."""

import pickle
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from zindex.errors import SourceError
from zindex.formats.bin_idx import read_index
from zindex.ingest.corpora.pairs import find_corpora, open_pair
from zindex.io import object_client
from zindex.io.objects import ObjectPath


def upload(root: ObjectPath, prefix: str) -> str:
    for suffix in ("bin", "idx"):
        content = Path(f"{prefix}.{suffix}").read_bytes()
        object_client.put(root / f"a.{suffix}", [content], replace=True)
    return f"{root}/a"


def test_rows_are_those_of_the_files(objects: ObjectPath, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([5, 0, 7, 3], modes=[1, 2, 3, 4], sequences_per_document=2)
    pair = open_pair(upload(objects, prefix), multimodal=True)
    pair = pickle.loads(pickle.dumps(pair))
    right = read_index(prefix)
    assert (pair.num_tokens, pair.num_documents, pair.has_modes) == (15, 2, True)
    rows = {
        "tokens": list(range(15)),
        "sequence_length": right.sequence_lengths(0, 4).tolist(),
        "sequence_offset": [0, 5, 5, 12, 15],
        "document_offset": [0, 2, 4],
        "sequence_mode": [1, 2, 3, 4],
    }
    for name, wanted in rows.items():
        for start, stop in ((0, len(wanted)), (1, 3), (2, 2)):
            assert pair.read(name, start, stop).tolist() == wanted[start:stop]
    with pytest.raises(IndexError, match=r"\[0, 5\) was asked of s3://memory/store/a\.idx"):
        pair.read("sequence_length", 0, 5)


def test_invalid_sources(objects: ObjectPath, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([5, 7])
    url = upload(objects, prefix)
    with pytest.raises(SourceError, match=r"but s3://\S+/a\.idx has 82 and so no modes; open it w"):
        open_pair(url, multimodal=True)
    object_client.put(objects / "a.bin", [b"cut"], replace=True)
    with pytest.raises(SourceError, match=r"a\.bin must have 48 bytes, .*a\.idx ends, but has 3"):
        open_pair(url)
    object_client.delete(objects / "a.bin")
    with pytest.raises(SourceError, match=r"but there is no s3://memory/store/a\.bin;"):
        open_pair(url)


def test_corpora_by_folder_and_glob(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    sources = [write_corpus([3, 1], name=f"part{number}") for number in range(4)]
    (tmp_path / "README").write_text("not a pair")
    assert find_corpora(tmp_path) == sources
    assert find_corpora(f"{tmp_path}/part[13]") == [sources[1], sources[3]]
    assert find_corpora([f"{sources[2]}.idx", sources[0]]) == [sources[2], sources[0]]
    Path(f"{sources[1]}.bin").rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=r"has part1\.idx alone; restore the other file"):
        find_corpora(tmp_path)
    Path(f"{sources[0]}.idx").unlink()
    with pytest.raises(SourceError, match=r"has part0\.bin alone; restore the other file"):
        find_corpora(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty must hold \.bin/\.idx pairs or Zarr .* none; ch"):
        find_corpora(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"at least one corpus must be named, got none; name pa"):
        find_corpora([])
