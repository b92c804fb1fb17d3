"""Every example, run as its first line says."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.cloud.servers import free_port
from zindex.store.open import open_store

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
    )


def test_quickstart_ends_in_a_falling_loss(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    done = run_example(
        [sys.executable, str(EXAMPLES / "01_quickstart.py"), "--folder", str(folder)],
        *("--files", "60", "--steps", "70", "--vocab-size", "300"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"The loss fell from ([\d.]+) to ([\d.]+) in 70 steps", done.stdout)
    assert found is not None
    start, end = map(float, found.groups())
    assert start == pytest.approx(5.704, abs=0.001)  # ln 300
    assert end < 0.8 * start
    # The blends of two splits and the indices of their three datasets were built ahead; the torch
    # datasets opened these and built none.
    indices = [open_store(path, kind="index") for path in (folder / "index").iterdir()]
    assert sorted(store.spec["split"] for store in indices) == ["train"] * 4 + ["valid"] * 4
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


def test_quickstart_says_when_the_loss_does_not_fall(tmp_path: Path) -> None:
    done = run_example(
        [sys.executable, "-c", "from zindex.cli import main; main()", "quickstart"],
        *(
            "--folder",
            str(tmp_path / "new"),
            "--files",
            "20",
            "--steps",
            "1",
            "--vocab-size",
            "300",
        ),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the loss must fall by a fifth at least; train for more --steps" in done.stdout


def test_quickstart_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = run_example(
        [sys.executable, str(EXAMPLES / "01_quickstart.py"), "--folder", str(tmp_path)]
    )
    assert done.returncode == 1
    assert done.stderr == f"Error: {tmp_path} holds other files; choose another one with --folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_blend_keeps_to_the_weights_in_both_orders(tmp_path: Path) -> None:
    folder = tmp_path / "blend"
    done = run_example(
        [sys.executable, str(EXAMPLES / "02_blend.py"), "--folder", str(folder)],
        *("--files", "30", "--samples", "5000", "--vocab-size", "300"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    # Three indices and a blend of each order; the torch datasets opened these and built none.
    stores = [open_store(path, kind="index") for path in (folder / "index").iterdir()]
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
    assert f"The same as a picture: {folder}/blend.png" in done.stdout
    picture = (folder / "blend.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


def test_blend_says_why_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    example = import_module("02_blend")
    said = example.show_picture({}, tmp_path / "blend.png")
    assert said.startswith("The table has no picture (import of matplotlib halted")
    assert said.endswith("install zindex[quickstart] for one")


def test_a_killed_job_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    done = run_example(
        [sys.executable, str(EXAMPLES / "03_train.py"), "--folder", str(folder)],
        *("--files", "30", "--steps", "12", "--vocab-size", "300"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    # Killed after step 8, with a checkpoint of step 5: steps 6 to 8 were trained on twice.
    assert "SIGKILL" in (folder / "broken" / "errors.txt").read_text()
    assert '"consumed_samples": 80' in done.stdout
    assert "rank 0 of 1 goes on from {'version': 1" in done.stdout
    samples = {
        file.name: [int(line.split()[0]) for line in file.read_text().splitlines()]
        for file in (folder / "broken").glob("samples-*.txt")
    }
    assert samples["samples-1-0.txt"] == list(range(80, 192))
    assert samples["samples-2-0.txt"] == [16 * step + i for step in range(8) for i in range(8)]
    assert "   192 samples without a break, 192 with one\nsame token stream: True" in done.stdout


def test_two_nodes_build_what_they_train_on(tmp_path: Path) -> None:
    folder = tmp_path / "alongside"
    done = run_example(
        [sys.executable, str(EXAMPLES / "04_alongside.py"), "--folder", str(folder)],
        *("--files", "20", "--steps", "4", "--vocab-size", "300", "--port", str(free_port())),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the last loss of 64 samples" in done.stdout
    steps = [
        event["name"] for event in json.loads((folder / "timeline.json").read_text())["traceEvents"]
    ]
    assert {"make-model", "open-loader", "train"} < set(steps)
    assert (folder / "timeline.png").stat().st_size > 1000
    (meeting,) = (folder / "cluster").iterdir()
    assert sorted(path.name for path in meeting.iterdir()) == ["logs", "nodes", "stop"]
    assert list((meeting / "nodes").iterdir()) == []


def test_a_model_is_tuned_and_taught_to_prefer(tmp_path: Path) -> None:
    folder = tmp_path / "sft"
    done = run_example(
        [sys.executable, str(EXAMPLES / "06_sft_dpo.py"), "--folder", str(folder)],
        *("--questions", "600", "--steps", "40", "--pair-steps", "24", "--vocab-size", "320"),
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
        r"fell from ([\d.]+) to ([\d.]+) .* the margin is ([\d.]+), and (\d+)% lean", done.stdout
    )
    assert found is not None, done.stdout
    first, last, margin, share = map(float, found.groups())
    assert first == pytest.approx(np.log(320), abs=1e-3)
    assert last < 0.8 * first
    assert margin > 0.1
    assert share > 60
    chats, pairs = (open_store(folder / f"{name}.zarr") for name in ("chats", "pairs"))
    assert chats.spec["num_records"] == pairs.spec["num_records"] == 600
