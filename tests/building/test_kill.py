"""``kill -9`` of the building process at random moments."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus

NUM_KILLS = 200


@pytest.mark.timeout(600)
def test_killed_builds_are_never_half_read_and_always_resumed(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    prefix = write_corpus([3 + i % 29 for i in range(3000)])
    command = [sys.executable, "-m", "tests.building.kill_loop", prefix, str(tmp_path)]
    done = subprocess.run(
        [*command, str(NUM_KILLS)], check=True, stdout=subprocess.PIPE, text=True, timeout=580
    )
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    seen = Counter(report["seen"] for report in reports)
    assert len(reports) == NUM_KILLS
    assert seen.keys() <= {"absent", "not ready", "exact"}
    assert seen["not ready"] > NUM_KILLS // 4, seen
    assert sum(report["rewritten"] for report in reports) == 0
    assert all(report["second"] == 0 and report["final"] == "exact" for report in reports)
    assert sum(report["finished"] for report in reports) > 0
