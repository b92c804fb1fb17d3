"""The blend, in both orders."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.examples.running import EXAMPLES, run_example
from zindex.store.open import open_store


def test_blend_keeps_to_the_weights_in_both_orders(tmp_path: Path) -> None:
    folder = tmp_path / "blend"
    done = run_example(
        "02_blend",
        *("--folder", folder, "--files", "30", "--samples", "5000", "--vocab-size", "300"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    # Three indices and a blend of each order; the torch datasets opened these and built none.
    stores = [open_store(path, kind="index") for path in (folder / "index").glob("*-*/")]
    assert len(stores) == 8
    blends = {store.spec["algorithm"]: store for store in stores if "dataset_index" in store}
    farthest = {}
    for order, store in blends.items():
        drawn = np.cumsum(store["dataset_index"][:][:, None] == np.arange(3), axis=0)
        asked = np.outer(np.arange(1, len(drawn) + 1), [0.7, 0.2, 0.1])
        farthest[order] = np.abs(drawn - asked).max()
        assert np.abs(drawn - asked)[-1].max() <= 1
    # Two standard deviations of 5,000 draws of one in ten are at most 30 samples.
    assert farthest["megatron"] < 1 < 10 < farthest["scalable"] < 150
    assert "       100      0.7000      0.2000      0.1000" in done.stdout
    assert f"Plot: {folder}/blend.png" in done.stdout
    picture = (folder / "blend.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


def test_a_missing_plot_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    example = import_module("02_blend")
    said = example.show_picture({}, tmp_path / "blend.png")
    assert said.startswith("No plot (import of matplotlib halted")
    assert said.endswith("install zindex[quickstart]")
