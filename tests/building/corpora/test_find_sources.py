"""Corpora by path, glob and folder."""

from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from zindex.building.corpora.find_sources import find_sources
from zindex.errors import SourceError


def test_sources_by_folder_and_glob(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    sources = [write_corpus([3, 1], name=f"part{number}") for number in range(4)]
    (tmp_path / "README").write_text("not a pair")
    assert find_sources(tmp_path) == sources
    assert find_sources(f"{tmp_path}/part[13]") == [sources[1], sources[3]]
    assert find_sources([f"{sources[2]}.idx", sources[0]]) == [sources[2], sources[0]]
    Path(f"{sources[1]}.bin").rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=r"has part1\.idx alone; restore the other file"):
        find_sources(tmp_path)
    Path(f"{sources[0]}.idx").unlink()
    with pytest.raises(SourceError, match=r"has part0\.bin alone; restore the other file"):
        find_sources(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty must hold \.bin/\.idx pairs or Zarr .* none; ch"):
        find_sources(tmp_path / "empty")
    with pytest.raises(SourceError, match=r"at least one corpus must be named, got none; name pa"):
        find_sources([])
