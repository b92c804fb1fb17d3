"""Commands of which one system call fails; see the module for many, and for every call."""

import shutil
import subprocess
import sys

import pytest


@pytest.mark.skipif(shutil.which("cc") is None, reason="the calls are counted by a C library")
def test_each_call_of_small_commands_fails() -> None:
    command = ["-m", "tests.harnesses.system_calls", "--every", "edit", "writer over"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
