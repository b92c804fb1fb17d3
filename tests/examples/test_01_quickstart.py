"""The quickstart: real text to a falling loss."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_example
from tests.forked import ROOT, run_python
from zindex.store.open import open_store


def test_quickstart_ends_in_a_falling_loss(tmp_path: Path) -> None:
    folder, kernels = tmp_path / "quickstart", tmp_path / "kernels"
    # A new interpreter, whose imports may warn.
    done = subprocess.run(
        [
            *(sys.executable, str(EXAMPLES / "01_quickstart.py"), "--folder", str(folder)),
            *("--files", "30", "--steps", "40", "--vocab-size", "300"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(kernels)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"The loss fell from ([\d.]+) to ([\d.]+) in 40 steps", done.stdout)
    assert found is not None
    start, end = map(float, found.groups())
    assert start == pytest.approx(5.704, abs=0.001)  # ln 300
    assert end < 0.8 * start
    assert re.search(r"the first sample: ['\"].*[a-z]{3}", done.stdout)  # as text
    # The blends of two splits and the indices of their three datasets were built ahead; the torch
    # datasets opened these and built none.
    indices = [open_store(path, kind="index") for path in (folder / "index").glob("*-*/")]
    assert sorted(store.spec["split"] for store in indices) == ["train"] * 4 + ["valid"] * 4
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    assert not kernels.exists()  # so little data needs none


@pytest.mark.slow
def test_quickstart_says_when_the_loss_does_not_fall(tmp_path: Path) -> None:
    done = run_python(
        *("-c", "from zindex.cli import main; main()", "quickstart"),
        *("--folder", str(tmp_path / "new"), "--files", "20", "--steps", "1"),
        *("--vocab-size", "300"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the loss must fall by at least a fifth; train for more --steps" in done.stdout


def test_quickstart_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = run_example("01_quickstart", "--folder", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"Error: {tmp_path} holds other files; choose another one with --folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
