"""Processors and memory of a process: limits of nested control groups, of containers and Slurm."""

import os
from pathlib import Path

import pytest

from zindex.io import machine

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups without limits, and the file that names this process's."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    for name in ("SLURM_MEM_PER_NODE", "ZINDEX_CPUS", "ZINDEX_MEMORY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "own").write_text("")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_without_groups_the_machine_is_the_limit(groups: Path) -> None:
    (groups / "own").unlink()
    assert machine.usable_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.count_cpus() == len(os.sched_getaffinity(0))
    assert machine.count_cpus(set(range(96))) == 96


@pytest.mark.parametrize("is_nested", [False, True])
def test_groups_of_version_2(groups: Path, is_nested: bool) -> None:
    write(groups / "own", "0::/job/step")
    step = groups / "cgroup" / "job" / "step"
    limited = step.parent if is_nested else step
    for group in (step, step.parent):
        write(group / "memory.max", "max")
        write(group / "cpu.max", "max 100000")
    write(limited / "memory.max", str(2 * GIB))
    write(limited / "cpu.max", "350000 100000")
    assert machine.usable_memory() == 2 * GIB
    assert machine.count_cpus(set(range(16))) == 3
    assert machine.count_cpus({0}) == 1


def test_groups_of_version_1(groups: Path) -> None:
    write(groups / "own", "4:memory:/job/step\n2:cpu,cpuacct:/job\n1:cpuset:/\n0::/")
    tree = groups / "cgroup"
    write(tree / "memory/job/step/memory.limit_in_bytes", str(2**63 - 4096))
    write(tree / "memory/job/memory.limit_in_bytes", str(GIB))
    write(tree / "cpu/job/cpu.cfs_quota_us", "50000")
    write(tree / "cpu/job/cpu.cfs_period_us", "100000")
    write(tree / "cpu/cpu.cfs_quota_us", "-1")
    write(tree / "cpu/cpu.cfs_period_us", "100000")
    assert machine.usable_memory() == GIB
    assert machine.count_cpus(set(range(16))) == 1


def test_a_container_shows_only_its_own_root(groups: Path) -> None:
    write(groups / "own", "0::/../../kubepods/pod7")
    write(groups / "cgroup/memory.max", str(3 * GIB))
    assert machine.usable_memory() == 3 * GIB


def test_slurm_limits_a_job(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert machine.usable_memory() == GIB // 2
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")
    assert machine.usable_memory() > GIB


def test_a_pod_requests_less_than_the_machine(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZINDEX_CPUS", "3")
    monkeypatch.setenv("ZINDEX_MEMORY", str(GIB))
    assert machine.count_cpus(set(range(16))) == 3
    assert machine.usable_memory() == GIB
