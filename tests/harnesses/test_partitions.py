"""Builds whose workers are cut off for moments; see the module for many, and for longer."""

import os
import shutil
import subprocess

import pytest

from tests.forked import run_python

_PROBE = "ip netns add zindex-probe && ip netns del zindex-probe"
_RUN = """
import ctypes
from tests.harnesses.partitions import main
new_network = 0x40000000
assert ctypes.CDLL(None).unshare(new_network) == 0
raise SystemExit(main())
"""


def test_a_build_survives_workers_that_are_cut_off() -> None:
    if not (shutil.which("unshare") and shutil.which("ip") and os.geteuid() == 0):
        pytest.skip("needs root, unshare and iproute2")
    if subprocess.run(["unshare", "--net", "sh", "-c", _PROBE], capture_output=True).returncode:
        pytest.skip("needs network namespaces")
    done = run_python("-c", _RUN, "--trials", "2", forks=True)
    assert done.returncode == 0, done.stderr
    assert "trials 2" in done.stdout
