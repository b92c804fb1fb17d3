"""Read rates of loaders."""

from pathlib import Path

import pytest

from zindex.inspection.bench import bench
from zindex.inspection.bench.bench import can_load, measure_loading, write_tokens


def test_batches_are_read_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert can_load()
    run = write_tokens(tmp_path, num_tokens=300_000, document_length=200)
    rate = measure_loading(run, 0.01, source="this")
    assert rate.num_batches >= 1
    assert rate.tokens_per_second == pytest.approx(4096 * rate.samples_per_second)
    assert rate.source == "this"


def test_a_corpus_of_few_tokens_still_makes_batches(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = write_tokens(tmp_path, num_tokens=1000, document_length=100)
    assert measure_loading(run, 1e-6).num_batches >= 1


def test_without_torch_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert not can_load()
