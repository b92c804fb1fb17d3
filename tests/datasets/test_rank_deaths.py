"""Ranks that are killed, paused or late, at any moment: the others end right, and soon.

Each rank is a separate process, as under torchrun.
"""

import json
import os
import random
import signal
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import numbers
from tests.datasets.test_many_ranks import Ranks, expected, meeting_place
from tests.datasets.test_many_ranks import ranks as ranks
from tests.datasets.test_many_ranks import run_config as run_config

# Seconds within which the ranks that live must end.
LIMIT = 10.0


def start(ranks: Ranks, kind: str, num_ranks: int, tmp_path: Path, **settings: Any) -> None:
    """Start ranks whose store an agent or rank 0 serves, and wait until all are there."""
    if kind == "agent":
        ranks.start_under_agent(num_ranks, **settings)
    else:
        ranks.start_all(num_ranks, meeting_place("tcp", tmp_path), **settings)
    for process in ranks.processes:
        assert "joined" in json.loads(process.stdout.readline())


def check_others(ranks: Ranks, wanted: Any, *victims: int) -> None:
    """Check that all ranks but the victims end right within the limit."""
    begin = time.monotonic()
    for rank in range(len(ranks.processes)):
        if rank not in victims:
            facts = ranks.outcome(rank)
            assert facts["datasets"] == wanted, facts
            assert facts["seconds"] < LIMIT
    assert time.monotonic() - begin < LIMIT


@pytest.mark.parametrize("number", numbers(3, 120))
def test_a_rank_is_killed_at_any_moment(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, number: int
) -> None:
    """The builder more often than others, and of those that take over as well."""
    draw = random.Random(number)
    num_ranks, kind = draw.choice([2, 4, 8] if number else [4]), draw.choice(["agent", "tcp"])
    victim = draw.choice([0, draw.randrange(num_ranks)])
    wanted = expected(run_config, tmp_path)
    start(ranks, kind, num_ranks, tmp_path, config=run_config, task_seconds=0.05, timed=True)
    time.sleep(draw.uniform(0, 1.2))
    with suppress(ProcessLookupError):  # it has ended
        os.kill(ranks.processes[victim].pid, draw.choice([signal.SIGKILL, signal.SIGSTOP]))
    check_others(ranks, wanted, victim)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_the_rank_that_took_over_is_killed_too(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, number: int
) -> None:
    draw = random.Random(number)
    wanted = expected(run_config, tmp_path)
    start(ranks, "agent", 4, tmp_path, config=run_config, task_seconds=0.4, timed=True)
    time.sleep(draw.uniform(0, 0.6))
    os.kill(ranks.processes[0].pid, signal.SIGKILL)
    streams = {process.stdout: process for process in ranks.processes[1:]}
    first: list[Any] = wait(list(streams), LIMIT)
    lines = {streams[stream]: json.loads(stream.readline()) for stream in first}
    [builder] = [facts["rank"] for facts in lines.values() if "took_over" in facts]
    with suppress(ProcessLookupError):  # it has ended
        os.kill(ranks.processes[builder].pid, signal.SIGKILL)
    begin = time.monotonic()
    for rank in {1, 2, 3} - {builder}:
        assert ranks.outcome(rank)["datasets"] == wanted
    assert time.monotonic() - begin < LIMIT


@pytest.mark.parametrize(
    ("kind", "num_ranks", "late_on"),
    [
        ("agent", 2, 0),
        pytest.param("tcp", 4, 0, marks=pytest.mark.slow),
        pytest.param("agent", 8, 5, marks=pytest.mark.slow),
    ],
)
def test_a_late_rank(
    run_config: dict[str, Any],
    ranks: Ranks,
    tmp_path: Path,
    kind: str,
    num_ranks: int,
    late_on: int,
) -> None:
    """No rank waits for it longer than the limit, and it finds what they have built."""
    wanted = expected(run_config, tmp_path)
    late = {"late_on": late_on, "late": 7.0, "grace": 3.0}
    start(ranks, kind, num_ranks, tmp_path, config=run_config, timed=True, **late)
    for rank in range(num_ranks):
        facts = ranks.outcome(rank)
        assert facts["datasets"] == wanted
        assert facts["seconds"] < LIMIT
