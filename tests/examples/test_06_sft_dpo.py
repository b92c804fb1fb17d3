"""A model tuned on dialogues and pairs."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.examples.running import run_example
from zindex.store.open import open_store


def test_a_model_is_tuned_and_taught_to_prefer(tmp_path: Path) -> None:
    folder = tmp_path / "sft"
    done = run_example(
        "06_sft_dpo",
        *(
            "--folder",
            folder,
            "--questions",
            "600",
            "--steps",
            "40",
            "--pair-steps",
            "24",
            "--vocab-size",
            "320",
        ),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert "chats.zarr: 600 records for sft" in done.stdout
    assert "trained 'Return first release in which this feature was recognized.<|im_end|>'" in (
        done.stdout
    )
    counted = re.search(r"(\d+) windows to train on, (\d+) held out", done.stdout)
    assert counted is not None, done.stdout
    # Each dialogue is one window, of the same records in both stores.
    assert sum(map(int, counted.groups())) == 600
    found = re.search(
        r"fell from ([\d.]+) to ([\d.]+) .* the margin is ([\d.]+), and (\d+)% prefer", done.stdout
    )
    assert found is not None, done.stdout
    first, last, margin, share = map(float, found.groups())
    assert first == pytest.approx(np.log(320), abs=1e-3)
    assert last < 0.8 * first
    assert margin > 0.1
    assert share > 60
    chats, pairs = (open_store(folder / f"{name}.zarr") for name in ("chats", "pairs"))
    assert chats.spec["num_records"] == pairs.spec["num_records"] == 600
