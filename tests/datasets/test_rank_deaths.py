"""Ranks that are killed, paused or late, before any step: the others end right, and soon.

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
from tests.datasets.configs import plain_config
from tests.datasets.rank_process import open_directly, summarize
from tests.datasets.test_many_ranks import Ranks, expected, meeting_place
from tests.datasets.test_many_ranks import ranks as ranks
from tests.datasets.test_many_ranks import run_config as run_config

# Seconds within which the ranks that live must end. Slow tests run alone; others may run beside
# many.
LIMIT, LOADED_LIMIT = 10.0, 100.0
# How often a rank takes a step, about: the builder, others, and one of datasets without a builder.
BUILDER = {"begin": 1, "agree": 1, "task": 14, "commit": 42, "beat": 2, "end": 1}
OTHER = {"begin": 1, "agree": 1, "look": 10, "end": 1}
DIRECT = {"task": 3, "commit": 15}


def start(ranks: Ranks, kind: str, num_ranks: int, tmp_path: Path, **settings: Any) -> None:
    """Start ranks whose store an agent or rank 0 serves, and wait until all are there."""
    if kind == "agent":
        ranks.start_under_agent(num_ranks, **settings)
    else:
        ranks.start_all(num_ranks, meeting_place("tcp", tmp_path), **settings)
    for process in ranks.processes:
        assert "joined" in json.loads(process.stdout.readline())


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> float:
    return LIMIT if request.node.get_closest_marker("slow") else LOADED_LIMIT


def check_others(ranks: Ranks, wanted: Any, limit: float, *victims: int) -> None:
    """Check that all ranks but the victims end right within the limit."""
    begin = time.monotonic()
    for rank in range(len(ranks.processes)):
        if rank not in victims:
            facts = ranks.outcome(rank)
            assert facts["datasets"] == wanted, facts
            assert facts["seconds"] < limit
    assert time.monotonic() - begin < limit


def draw_death(
    draw: random.Random, rank: int, counts: dict[str, int], *signals: int
) -> dict[str, Any]:
    """Return before which of its steps a rank dies, or stands still."""
    step = draw.choice([*counts])
    number, kind = draw.randrange(counts[step]), draw.choice(signals or [signal.SIGKILL])
    return {"rank": rank, "step": step, "number": number, "signal": kind}


@pytest.mark.parametrize("number", numbers(3, 120))
def test_a_rank_is_killed_before_any_step(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, limit: float, number: int
) -> None:
    """The builder more often than others."""
    draw = random.Random(number)
    num_ranks, kind = draw.choice([2, 4, 8] if number else [4]), draw.choice(["agent", "tcp"])
    victim = draw.choice([0, draw.randrange(num_ranks)])
    wanted = expected(run_config, tmp_path)
    steps = OTHER if victim else BUILDER
    death = draw_death(draw, victim, steps, signal.SIGKILL, signal.SIGSTOP)
    own = {"config": run_config, "task_seconds": 0.05, "timed": True}
    start(ranks, kind, num_ranks, tmp_path, death=death, **own)
    check_others(ranks, wanted, limit, victim)


@pytest.mark.parametrize("number", numbers(1, 12))
def test_the_builder_of_datasets_without_a_builder_is_killed(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, limit: float, number: int
) -> None:
    """Datasets that each rank constructs itself."""
    draw = random.Random(number)
    alone = plain_config(**(run_config | {"path_to_cache": str(tmp_path / "alone")}))
    wanted = json.loads(json.dumps(summarize(open_directly(alone))))
    death = draw_death(draw, 0, DIRECT)
    own = {"config": run_config, "task_seconds": 0.05, "timed": True, "direct": True}
    start(ranks, draw.choice(["agent", "tcp"]), draw.choice([2, 4]), tmp_path, death=death, **own)
    check_others(ranks, wanted, limit, 0)
    assert ranks.processes[0].wait(limit) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_the_rank_that_took_over_is_killed_too(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, number: int
) -> None:
    draw = random.Random(number)
    wanted = expected(run_config, tmp_path)
    death = draw_death(draw, 0, {"task": 3})
    own = {"config": run_config, "task_seconds": 0.4, "timed": True}
    start(ranks, "agent", 4, tmp_path, death=death, **own)
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
    limit: float,
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
        assert facts["seconds"] < limit
