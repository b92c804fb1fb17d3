"""Directories of one machine for what a node writes."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from zindex.cluster.scratch import numba_cache, open_scratch

HOLDER = """
import os, signal, sys
from pathlib import Path
from zindex.cluster.scratch import open_scratch
with open_scratch(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    signal.pause()
"""


def test_what_a_killed_node_left_is_removed_by_the_next(tmp_path: Path) -> None:
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


def test_compiled_kernels_are_kept_where_nobody_else_writes(tmp_path: Path) -> None:
    kept = numba_cache(tmp_path)
    assert numba_cache(tmp_path) == kept
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    kept.chmod(0o777)
    other = numba_cache(tmp_path)
    assert other != kept
    assert stat.S_IMODE(other.stat().st_mode) == 0o700


def test_a_link_in_the_place_of_the_kernels_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o777)
    target.chmod(0o777)
    (tmp_path / f"zindex-numba-{os.geteuid()}").symlink_to(target)
    assert target not in {numba_cache(tmp_path), numba_cache(tmp_path).resolve()}
