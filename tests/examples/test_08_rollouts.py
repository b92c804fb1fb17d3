"""Rollouts that a killed trainer follows, and an equal replay."""

import re
from pathlib import Path

from tests.examples.running import run_example


def test_a_killed_run_is_replayed(tmp_path: Path) -> None:
    done = run_example("08_rollouts", "--folder", tmp_path / "rollouts", "--steps", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found = re.search(r"killed after step (\d+); the last checkpoint is of step (\d+)", done.stdout)
    assert found is not None
    killed, kept = map(int, found.groups())
    assert killed >= 20 > 7 <= kept <= killed
    assert "'generation': " in done.stdout
    assert "generations were moved to 1 Zarr stores" in done.stdout
    assert "The replay had equal records, rewards and weights in all" in done.stdout
    assert re.search(r"[1-9]\d* files and stores were removed", done.stdout)
