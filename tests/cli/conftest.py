"""A run in the working directory, for tests of commands."""

from pathlib import Path

import pytest

from tests.conftest import WriteCorpus


@pytest.fixture
def run_file(write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a blend of two corpora, in the working directory."""
    for name in ("web", "code"):
        write_corpus([3] * 9, name=name)
    path = tmp_path / "run.yaml"
    path.write_text(
        "sequence_length: 4\nsplit: [1]\nsamples: 5\nindex: index\n"
        "datasets: [{path: web, weight: 1}, {path: code, weight: 1}]\n"
    )
    monkeypatch.chdir(tmp_path)
    return path
