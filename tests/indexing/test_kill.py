"""``kill -9`` of the building process at random moments."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from tests.forked import run_python


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_kills", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_builds_are_never_half_read_and_always_resumed(
    write_corpus: WriteCorpus, tmp_path: Path, num_kills: int
) -> None:
    """The bar is 200 kills (slow); a fifth of them, the first ones, are tried by default."""
    prefix = write_corpus([3 + i % 29 for i in range(1200)])
    command = ["-m", "tests.indexing.kill_loop", prefix, str(tmp_path), str(num_kills)]
    done = run_python(*command, check=True)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    seen = Counter(report["seen"] for report in reports)
    assert len(reports) == num_kills
    assert seen.keys() <= {"absent", "not ready", "exact"}
    assert seen["not ready"] > num_kills // 8, seen
    assert sum(report["rewritten"] for report in reports) == 0
    assert all(report["second"] == 0 and report["final"] == "exact" for report in reports)
    assert sum(report["finished"] for report in reports) > 0
