"""One short measurement for all tests: it compiles every kernel of every order."""

from pathlib import Path

import pytest

from zindex.inspection.bench.bench import BenchResult, measure


@pytest.fixture(scope="session")
def bench_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it was measured."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="session")
def result(bench_folder: Path) -> BenchResult:
    """What was measured."""
    return measure(bench_folder, seconds=0.05, num_tokens=1e11, num_datasets=50, nodes=(1, 4))
