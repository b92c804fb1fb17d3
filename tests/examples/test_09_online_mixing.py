"""Percents that a bandit sets while loader workers prefetch."""

import re
from pathlib import Path

from tests.examples.running import run_example


def test_a_bandit_sets_percents_and_a_resumed_job_repeats_them(tmp_path: Path) -> None:
    folder = tmp_path / "mixing"
    done = run_example("09_online_mixing", "--folder", folder, "--rounds", "8", "--files", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "samples that differ: 0" in done.stdout
    shares = re.findall(r"sentence (0\.\d\d)", done.stdout)
    assert len(shares) == 2
    assert float(shares[0]) > 0.5  # the sentence is learned first
