"""``kill -9`` of the importing process at random moments."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.forked import run_python
from tests.sources.archives import write_jsonl


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_kills", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_imports_are_never_half_read_and_always_finished(
    tmp_path: Path, num_kills: int
) -> None:
    rows = [{"text": f"née {i} " * (i % 40), "n": i / 7} for i in range(300)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    command = ["-m", "tests.ingest.records.kill_loop", str(path), str(tmp_path), str(num_kills)]
    done = run_python(*command, check=True)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == num_kills
    assert Counter(report["seen"] for report in reports).keys() <= {
        "absent",
        "not ready",
        "finished",
    }
    assert all(report["second"] == 0 and report["same"] for report in reports), reports
    assert sum(report["rewritten"] for report in reports) == 0
