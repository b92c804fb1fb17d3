"""A worker beside training: priorities, processors, control groups and pauses."""

import os
import random
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import psutil
import pytest

from tests.cluster.processes import find_members, wait_for
from zindex.cluster import alongside, isolation, resources
from zindex.cluster.isolation import LEAST_SHARE, StepFeedback, Throttle, least_weight_group
from zindex.io import machine

PRIORITIES = """
import ctypes, os, platform
from pathlib import Path
from zindex.cluster.isolation import lower_priority
if os.fork() == 0:
    lower_priority({nice})
    assert os.nice(0) == {nice}
    number = {{"x86_64": 252, "aarch64": 31}}[platform.machine()]
    print(os.sched_getscheduler(0) == os.SCHED_IDLE, ctypes.CDLL(None).syscall(number, 1, 0) >> 13)
    group = Path("/proc/self/autogroup")
    print(group.read_text().split("nice ")[1] if group.exists() else {nice})
else:
    os.wait()
"""


@pytest.mark.parametrize(("nice", "expected"), [(19, "True 3\n19"), (7, "False 0\n7")])
def test_priorities(nice: int, expected: str) -> None:
    """The niceness is that of the session: alone it would change nothing between sessions."""
    done = subprocess.run(
        [sys.executable, "-c", PRIORITIES.format(nice=nice)],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_workers_stay_off_the_memory_nodes_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_PCI_DRIVERS", tmp_path)
    monkeypatch.setattr(resources, "usable_cpus", lambda: set(range(96)))
    monkeypatch.setattr(machine, "_read_quotas", lambda: iter(()))
    assert resources.choose_cpus(80) == set(range(96))
    for number, cpus in enumerate(["0-15,48-63", "16-31,64-79"]):
        folder = tmp_path / "nvidia" / f"0000:{number}b:00.0"
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(cpus + "\n")
    others = {*range(32, 48), *range(80, 96)}
    assert resources.choose_threads(None, 8) == 32
    assert resources.choose_threads(None, 40) == 16
    assert resources.choose_cpus(32) == others
    assert resources.choose_cpus(33) == set(range(96))  # as many threads were asked for
    # Where all memory nodes have GPUs, there are no others.
    folder = tmp_path / "amdgpu" / "0000:cb:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("32-47,80-95")
    assert resources.choose_threads(None, 8) == 80
    assert resources.choose_cpus(80) == set(range(96))


@pytest.mark.parametrize("line", ["0::/job", "3:cpu,cpuacct:/job"])
def test_a_control_group_where_one_can_be_made(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(line)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    own = tmp_path / ("job" if line.startswith("0") else "cpu/job")
    with least_weight_group("a") as group:  # there is no such tree
        assert group is None
    (own / "zindex-killed").mkdir(parents=True)
    with least_weight_group("a") as group:  # no controller of processors
        assert group is None
    assert list(own.iterdir()) == []

    def make(path: Path, *arguments: object) -> None:
        os.mkdir(path)
        (path / "cpu.weight").write_text("100\n")

    monkeypatch.setattr(Path, "mkdir", make)
    with least_weight_group("a") as group:
        assert group == own / "zindex-a"
        assert (group / "cpu.weight").read_text() == "1"


def test_a_real_control_group() -> None:
    with least_weight_group(f"test-{os.getpid()}") as group:
        if group is None:
            pytest.skip("this user may not make control groups")
        with least_weight_group(f"other-{os.getpid()}"):
            assert group.exists()  # although it has no processes yet
        procs = str(group / "cgroup.procs")
        command = f"from zindex.cluster.isolation import *; lower_priority(0, [{procs!r}])"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{command}; print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            assert str(process.pid) in (group / "cgroup.procs").read_text().split()
            process.kill()
    assert not group.exists()


def test_a_process_that_runs_for_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle()
    with subprocess.Popen(["sleep", "1000"]) as process:
        status = psutil.Process(process.pid).status
        throttle.watch(process)
        throttle.share = 0.5
        for _ in range(3):
            wait_for(lambda: status() == psutil.STATUS_STOPPED, "it pauses")
            wait_for(lambda: status() == psutil.STATUS_SLEEPING, "it runs")
        throttle.share = 1
        wait_for(lambda: throttle._thread is None, "the pauses end")
        assert status() == psutil.STATUS_SLEEPING
        throttle.share = 0
        assert throttle.share == LEAST_SHARE
        monkeypatch.setattr(throttle, "_expires", 0.0)  # no step for two minutes
        wait_for(lambda: throttle._thread is None, "the pauses end")
        assert throttle.share == 1
        process.kill()


def run_steps(feedback: StepFeedback, cost: float, noise: float, seed: int) -> list[float]:
    """Run 2,000 steps that a running worker makes longer; return the shares of the last 1,000."""
    rng = random.Random(seed)
    shares, now = [], 0.0
    for _ in range(2000):
        feedback.step(now)
        shares.append(feedback.share)
        now += max(0.1, 1 + cost * feedback.share + rng.gauss(0, noise))
    return shares[1000:]


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.02])
@pytest.mark.parametrize("seed", range(5))
def test_a_worker_yields_while_it_costs_time(noise: float, seed: int) -> None:
    feedback = StepFeedback()
    free = run_steps(feedback, 0, noise, seed)
    assert sum(free) / 1000 > 0.7
    feedback = StepFeedback()
    assert sum(run_steps(feedback, 0.3, noise, seed)) / 1000 < 0.25
    # It comes back once it costs nothing.
    feedback._last = None
    assert sum(run_steps(feedback, 0, noise, seed)) / 1000 > 0.7


def test_steps_of_a_rank_throttle_the_worker_of_its_node() -> None:
    with alongside(threads=1) as cluster:
        client = cluster.client
        assert client.submit(os.sched_getscheduler, 0).result() == os.SCHED_IDLE
        worker = find_members()["worker"]
        cluster.step()
        wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, "the worker pauses")
        # Beside the worker, steps are as fast as without it.
        for now in accumulate([1.0] * 10, initial=cluster._feedback._last):
            cluster._feedback.step(now)
        assert cluster._feedback.share == 1
        cluster.step()
        assert client.submit(len, "abc", pure=False).result() == 3
