"""Corpora and a run as xarray and Dask show them."""

from pathlib import Path

from tests.examples.running import run_example


def test_a_run_is_looked_at_before_it_is_built(tmp_path: Path) -> None:
    folder = tmp_path / "xarray"
    sizes = ("--files", "30", "--samples", "5000", "--vocab-size", "300")
    done = run_example("07_xarray", "--folder", folder, *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert "dask.array<dataset_index-blend-train, shape=(5000,), dtype=int16" in done.stdout
    for row in ("code        0.7000", "docstrings  0.2000", "reference   0.1000"):
        assert row in done.stdout
    assert (folder / "run.png").stat().st_size > 20_000
    assert not (folder / "index").exists()
