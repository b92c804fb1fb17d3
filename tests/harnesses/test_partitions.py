"""Builds whose workers are cut off for moments; see the module for many, and for longer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PROBE = "ip netns add zindex-probe && ip netns del zindex-probe"


def test_a_build_survives_workers_that_are_cut_off() -> None:
    isolated = ["unshare", "--net"]
    if not (shutil.which("unshare") and shutil.which("ip") and os.geteuid() == 0):
        pytest.skip("needs root, unshare and iproute2")
    if subprocess.run([*isolated, "sh", "-c", _PROBE], capture_output=True).returncode:
        pytest.skip("needs network namespaces")
    command = [sys.executable, "-m", "tests.harnesses.partitions", "--trials", "2"]
    done = subprocess.run([*isolated, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trials 2" in done.stdout
