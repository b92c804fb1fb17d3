"""Every benchmark runs, on little data: nothing about time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "bench_ahead": ["--datasets", "3", "--documents", "1000", "--samples", "1000", "--runs", "1"],
    "bench_blend": [
        *["--datasets", "9", "--samples", "1e4", "--runs", "1"],
        *["--contenders", "helpers_cpp", "megatron order", "scalable order, uniform"],
    ],
    "bench_build": ["--documents", "20000", "--runs", "1"],
    "bench_follow": ["--datasets", "2", "--documents", "500", "--samples", "2e4", "--runs", "1"],
    "bench_kernels": ["--size", "1e5", "--runs", "1"],
    "bench_load": [
        *["--tokens", "1e5", "--length", "64", "--batch", "4", "--seconds", "0.05"],
        *["--dtypes", "uint16", "--contenders"],
        *["megatron-core, no attention mask", "zindex store, no attention mask"],
    ],
    "bench_packing": ["--documents", "20000", "--python", "2000", "--runs", "1"],
    "bench_remote": ["--tokens", "2e5", "--length", "64", "--seconds", "0.2", "--latency", "0.001"],
    "bench_read": ["--tokens", "2e5", "--members", "3", "--runs", "1"],
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of these processes keep what they compile: it takes longer than what they do."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("name", COMMANDS)
def test_benchmark_runs(tmp_path: Path, kernels: Path, name: str) -> None:
    run_benchmark(name, COMMANDS[name], tmp_path, kernels)


@pytest.mark.slow
def test_every_blend_is_measured(tmp_path: Path, kernels: Path) -> None:
    """Each contender is a process of its own; half of them run by default."""
    everyone = COMMANDS["bench_blend"][: COMMANDS["bench_blend"].index("--contenders")]
    run_benchmark("bench_blend", everyone, tmp_path, kernels)


def run_benchmark(name: str, arguments: list[str], tmp_path: Path, kernels: Path) -> None:
    pytest.importorskip("megatron.core")
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.{name}"]
    done = subprocess.run(
        [*command, *arguments, "--json", str(figures)],
        check=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(kernels)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert json.loads(figures.read_text())
    assert "x" in done.stdout
