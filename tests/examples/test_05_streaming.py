"""Streams: three jobs on one epoch."""

import json
import re
from pathlib import Path

import torch

from tests.examples.running import run_example
from zindex.streaming.state import load_state


def test_three_jobs_train_on_one_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "streaming"
    done = run_example(
        "05_streaming",
        *("--folder", folder, "--images", "160", "--files", "10", "--vocab-size", "400"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    assert "Traceback" not in done.stderr
    counts = re.search(r"tokens in an epoch, ([\d,]+) trained on\n", done.stdout)
    assert counts is not None
    assert re.search(r"lost: [0-8], repeated: [0-2] \(", done.stdout)
    # The first job had two ranks, and so on; sources may end before the last job does.
    files = sorted(path.name for path in folder.glob("samples-*.txt"))
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert files == [f"samples-{job}-{rank}.txt" for job, rank in places]
    for file in files[:5]:
        lines = (folder / file).read_text().splitlines()
        assert {line.split()[0] for line in lines} == {"shapes", "reference", "code"}
    assert (folder / "lengths.svg").stat().st_size > 10_000
    assert (folder / "unpacked.svg").stat().st_size > 10_000
    # The advice and the progress are those of this data.
    assert "- 'reference' comes " in done.stdout
    assert "   shapes: 0." in done.stdout
    found = re.findall(r"   step +(\d+)  loss ([\d.]+)", done.stdout)
    assert float(found[0][1]) > 5.9  # ln 400 is 5.99
    saved = torch.load(folder / "checkpoint.pt")
    loaded = load_state(json.loads(saved["data"]))
    assert (loaded.num_ranks, loaded.num_slots) == (1, 1)
    assert len(loaded.origin.ancestors) == 2
