"""The share of the memory bandwidth that a worker may use, throttled or by fewer threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zindex.cluster.bandwidth import Traffic, guard_bandwidth, measure_traffic

# A server of two sockets.
SERVER = Traffic(all_threads=300e9, copying_thread=12e9, gathering_thread=7e9)


def measure_server(threads: int) -> Traffic:
    assert threads == 80
    return SERVER


def measure_nothing(threads: int) -> Traffic:
    raise AssertionError("nothing is measured")


@pytest.fixture
def resctrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose new groups list what the file ``schemata`` of its root does."""

    def make(path: Path, *arguments: object) -> None:
        os.mkdir(path)
        if path.name.startswith("zindex-"):
            shutil.copy(tmp_path / "schemata", path)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)  # the kernel's files cannot be removed
    (tmp_path / "info").mkdir()
    (tmp_path / "info" / "MB").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("schemata", "least", "step", "limits"),
    [
        # 150 of the 80 * 12 GB/s that 80 cores may take are 15.6 %.
        ("    L3:0=fff;1=fff\n    MB:0=100;1= 100\n", 10, 10, "MB:0=10;1=10"),
        ("MB:0=100;1=100\n", 1, 2, "MB:0=15;1=15"),
        ("MB:0=100\n", 20, 10, "MB:0=20"),
        # 75 GB/s for each socket.
        ("MB:0=4294967295;1=4294967295\n", 10, 10, "MB:0=71520;1=71520"),
        # 37.5 GB/s for each of four caches, in units of 1/8 GB/s.
        ("MB:0=2048;1=2048;2=2048;3=2048\nL3:0=ffff\n", 1, 1, "MB:0=300;1=300;2=300;3=300"),
    ],
)
def test_resctrl_throttles_where_it_may_be_set(
    schemata: str, least: int, step: int, limits: str, resctrl: Path
) -> None:
    (resctrl / "schemata").write_text(schemata)
    (resctrl / "info" / "MB" / "min_bandwidth").write_text(f"{least}\n")
    (resctrl / "info" / "MB" / "bandwidth_gran").write_text(f"{step}\n")
    (resctrl / "zindex-999999999").mkdir()  # of a supervisor that was killed
    (resctrl / f"zindex-{os.getppid()}").mkdir()  # of one that runs
    with guard_bandwidth(0.5, 80, resctrl=resctrl, measure=measure_server) as guard:
        assert guard.threads == 80
        assert guard.group == resctrl / f"zindex-{os.getpid()}"
        assert (guard.group / "schemata").read_text() == f"{limits}\n"
        assert guard.sentence == (
            f"resctrl limits the worker to 50% of 300.0 GB/s memory bandwidth: {limits}"
        )
    assert [path.name for path in resctrl.glob("zindex-*")] == [f"zindex-{os.getppid()}"]


@pytest.mark.parametrize("schemata", [None, "L3:0=fff\n", "MB:0=100;1=100\n"])
def test_elsewhere_fewer_threads_run(schemata: str | None, resctrl: Path) -> None:
    """There is no resctrl, or it does not throttle, or it does not tell its limits."""
    root = resctrl / "missing"
    if schemata is not None:
        root = resctrl
        (root / "schemata").write_text(schemata)
    for share, threads in [(0.5, 21), (0.01, 1), (1.0, 42)]:
        with guard_bandwidth(share, 80, resctrl=root, measure=measure_server) as guard:
            assert (guard.threads, guard.group) == (threads, None)
            assert guard.sentence == (
                f"the worker runs {threads} of 80 threads, which take up to 7.0 GB/s each, because "
                f"of a limit of {share:.0%} of 300.0 GB/s memory bandwidth"
            )
    assert not list(resctrl.glob("zindex-*"))


@pytest.mark.parametrize(
    ("share", "threads", "is_fixed", "reason"),
    [
        (None, 80, False, ""),
        (0.5, 80, True, ": resctrl cannot be used, and its number of threads is given"),
        (0.5, 1, False, ": resctrl cannot be used, and it has one thread"),
    ],
)
def test_no_limit(
    share: float | None, threads: int, is_fixed: bool, reason: str, tmp_path: Path
) -> None:
    with guard_bandwidth(
        share, threads, is_fixed=is_fixed, resctrl=tmp_path / "none", measure=measure_nothing
    ) as guard:
        assert guard.threads == threads
        assert guard.sentence == f"the memory bandwidth of the worker is not limited{reason}"


def test_traffic_of_this_machine() -> None:
    traffic = measure_traffic(2)
    # Between a broken measurement and more than any machine has.
    for value in (traffic.all_threads, traffic.copying_thread, traffic.gathering_thread):
        assert 1e5 < value < 1e13


def test_a_worker_joins_its_groups_while_it_has_one_thread(tmp_path: Path) -> None:
    files = [
        str(tmp_path / "cgroup.procs"),
        str(tmp_path / "tasks"),
        str(tmp_path / "no" / "tasks"),
    ]
    code = (
        "import os, zindex.cluster.member as member\n"
        f"member.lower_priority(0, {files})\n"
        "print(os.getpid(), os.listdir('/proc/self/task'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    process = done.stdout.split()[0]
    assert done.stdout == f"{process} ['{process}']\n"
    assert [Path(file).read_text() for file in files[:2]] == [process] * 2
