"""Two nodes that train on what they build."""

import json
from pathlib import Path

from tests.cloud.servers import free_port
from tests.examples.running import run_example


def test_two_nodes_build_what_they_train_on(tmp_path: Path) -> None:
    folder = tmp_path / "alongside"
    done = run_example(
        "04_alongside",
        *(
            "--folder",
            folder,
            "--files",
            "20",
            "--steps",
            "4",
            "--vocab-size",
            "300",
            "--port",
            str(free_port()),
        ),
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
