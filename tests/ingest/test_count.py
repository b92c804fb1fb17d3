"""Sequences and documents of corpora, as Megatron's file of counts has them."""

import sys
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from tests.io.test_remote_files import make_msc
from zindex.errors import SourceError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.ingest.corpora.pairs import count_sequences

SERIAL = SerialExecutor()


def test_pairs_and_stores(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus([3, 4, 5], name="a", sequences_per_document=2)
    write_corpus([1], name="b")
    convert(f"{tmp_path}/a", tmp_path / "a.zarr", client=SERIAL)
    monkeypatch.chdir(tmp_path)
    counts = count_sequences(["a", "./b", "a.zarr", "a"], client=SERIAL)
    assert counts == {"a": (3, 3), "./b": (1, 2), "a.zarr": (3, 3)}
    assert list(counts) == ["a", "./b", "a.zarr"]
    assert count_sequences(["?", "a"], client=SERIAL) == {"a": (3, 3), "b": (1, 2)}
    assert count_sequences(".", client=SERIAL) == {"./a": (3, 3), "./b": (1, 2)}
    url = f"file://{tmp_path}/b"
    assert count_sequences(url, client=SERIAL) == {url: (1, 2)}
    Path("b.idx").write_bytes(Path("b.idx").read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"must have 62 bytes \(63 with modes\), but \S+b\.idx "):
        count_sequences(["a", "b"], client=SERIAL)
    with pytest.raises(SourceError, match=r"c\.idx is not \(No such file or directory\)"):
        count_sequences("c", client=SERIAL)
    with pytest.raises(SourceError, match=r"at least one corpus must be named, got none; name p"):
        count_sequences([])


@pytest.mark.parametrize("has_size", [True, False])
def test_pairs_elsewhere(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_size: bool
) -> None:
    write_corpus([3, 4, 5], name="a", sequences_per_document=2, modes=[1, 2, 3])
    package = make_msc(tmp_path, tells=has_size)
    monkeypatch.setitem(sys.modules, "multistorageclient", package)
    assert count_sequences("msc://profile/a", client=SERIAL) == {"msc://profile/a": (3, 3)}
    if has_size:
        with pytest.raises(SourceError, match=r"there must be an \.idx at msc://profile/b\.idx"):
            count_sequences("msc://profile/b", client=SERIAL)
        (tmp_path / "a.idx").write_bytes((tmp_path / "a.idx").read_bytes()[:-1])
        with pytest.raises(SourceError, match=r"but msc://profile/a\.idx has 96; the file is cut"):
            count_sequences("msc://profile/a", client=SERIAL)
    (tmp_path / "a.idx").write_bytes(b"MMI")
    with pytest.raises(SourceError, match=r"must begin with the 34 bytes of a header .* b'MMI'"):
        count_sequences("msc://profile/a", client=SERIAL)
