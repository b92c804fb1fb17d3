"""How many nodes a build is worth."""

from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import make_run
from zindex.execution.executor import SerialExecutor
from zindex.forecast.cost_model import Machines, forecast_build
from zindex.forecast.job import Job
from zindex.forecast.nodes import count_useful_nodes, describe_missing, forecast_nodes
from zindex.indexing.run_plan import plan_run
from zindex.plan.packing import PackingRules

LARGE = Job(5e12, num_datasets=1000)


def test_more_nodes_than_the_client_can_serve_are_of_no_use() -> None:
    number = count_useful_nodes(LARGE, 1000, num_threads=16)
    assert 10 < number < 200
    seconds = {n: forecast_build(LARGE, Machines(n)).seconds for n in (1, number, 1000)}
    assert seconds[number] < 1.25 * seconds[1000] < 0.1 * seconds[1]


def test_the_forecast_is_that_of_the_nodes() -> None:
    forecast = forecast_nodes(LARGE, num_threads=16)
    assert forecast.num_nodes == count_useful_nodes(LARGE, 1024, num_threads=16)
    assert forecast.seconds == forecast_build(LARGE, Machines(forecast.num_nodes)).seconds
    assert forecast.seconds_alone > 8 * forecast.seconds


@pytest.mark.parametrize(
    ("job", "settings", "expected"),
    [
        (LARGE, {"maximum": 8}, 8),  # all that there are
        (LARGE, {"maximum": 1}, 1),
        (LARGE, {"maximum": 1000, "start_seconds": 600.0}, 1),  # built before another starts
        (Job(1e8, num_datasets=3), {"maximum": 1000}, 1),
        (Job(1e8, num_datasets=3), {"maximum": 12, "first": 4}, 4),
        (LARGE, {"maximum": 12, "first": 4}, 12),
    ],
)
def test_nodes_that_a_build_makes_use_of(job: Job, settings: dict[str, Any], expected: int) -> None:
    assert count_useful_nodes(job, num_threads=16, **settings) == expected


@pytest.mark.parametrize(
    "settings",
    [{"order": "scalable"}, {"order": "scalable", "store": "minimal"}, {"packing": PackingRules()}],
    ids=["all", "minimal", "packed"],
)
def test_only_what_is_missing_counts(
    tmp_path: Path, write_corpus: WriteCorpus, settings: dict[str, Any]
) -> None:
    config = make_run(tmp_path, write_corpus, **settings)
    plan = plan_run(config)
    job = describe_missing(config, plan)
    assert job is not None
    assert (job.num_datasets, job.order, job.blend) == (len(plan.members), config.order, True)
    assert job.num_samples > 0
    assert job.dataset_documents > 0
    zindex.build(config, SerialExecutor())
    assert describe_missing(config, plan) is None
