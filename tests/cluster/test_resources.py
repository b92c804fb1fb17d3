"""Processors, memory and scratch directories of a node."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from zindex.cluster import resources
from zindex.cluster.resources import open_scratch
from zindex.errors import ConfigError
from zindex.io import machine


def test_training_keeps_two_processors_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "usable_cpus", lambda: set(range(96)))
    monkeypatch.setattr(machine, "_read_quotas", lambda: iter(()))
    assert resources.choose_threads(None, 8) == 80
    assert resources.choose_threads(None, 60) == 1
    assert resources.choose_threads(5, 8) == 5
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        resources.choose_threads(0, 1)


def test_the_job_has_the_processors_of_its_launcher() -> None:
    cpus = os.sched_getaffinity(0)
    assert cpus <= resources.usable_cpus()


def test_memory_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "usable_memory", lambda: 1 << 40)
    assert resources.choose_memory(None) == 1 << 38
    assert resources.choose_memory(0.5) == 1 << 39
    assert resources.choose_memory("16GiB") == resources.choose_memory(1 << 34) == 1 << 34
    assert resources.choose_memory("512 MB") == 1 << 29
    # An idle worker takes more than a quarter of a small job.
    monkeypatch.setattr(resources, "usable_memory", lambda: 1 << 30)
    assert resources.choose_memory(None) == 1 << 29


@pytest.mark.parametrize("memory", ["16 apples", "1 KB", 7, -0.5, 2.5, True])
def test_memory_that_is_none(memory: object) -> None:
    with pytest.raises(ConfigError, match="memory must be at least 512 MiB"):
        resources.choose_memory(memory)  # type: ignore[arg-type]


def test_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.choose_scratch(tmp_path / "a" / "b") == str(tmp_path / "a" / "b")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "slurm"))
    assert resources.choose_scratch(None) == str(tmp_path / "slurm")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"scratch .*must be a directory"):
        resources.choose_scratch(tmp_path / "file")


HOLDER = """
import os, signal, sys
from pathlib import Path
from zindex.cluster.resources import open_scratch
with open_scratch(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    signal.pause()
"""


def test_the_scratch_of_a_killed_node_is_removed_by_the_next(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        with open_scratch(tmp_path) as folder:
            assert left.is_dir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not folder.exists()
        holder.send_signal(signal.SIGKILL)
    with open_scratch(tmp_path):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []
