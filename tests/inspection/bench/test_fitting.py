"""Known costs are recovered from builds that take exactly those."""

from dataclasses import replace

import pytest

from zindex.execution.timeline import Span
from zindex.forecast.cost_model import Costs, Machines, StageCost, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench.fitting import (
    MeasuredBuild,
    calibrate,
    fit_costs,
    fit_stage,
    keep_medians,
    prediction_error,
)

CLUSTER = Machines(1, 2, scheduler_in_client=True)
JOBS = [
    Job(1e9, num_datasets=1),
    Job(1e9, num_datasets=1, shard_length=1 << 14),
    Job(1e9, num_datasets=8),
    Job(3e7, num_datasets=40),
]


def made_up(job: Job, costs: Costs) -> MeasuredBuild:
    """A build whose seconds are the forecast, and whose stages take their cost."""
    sums = {
        stage: cost.task_seconds * num_tasks + cost.element_seconds * num_elements
        for stage, (num_tasks, num_elements) in job.loads().items()
        for cost in [costs.stage(stage, job.order)]
    }
    bundles = 0.0
    if job.bundle_tasks(2):
        inner = ("documents", "count", "shuffle", "samples")
        bundles = sum(sums.get(stage, 0.0) for stage in inner)
        bundles += costs.index_seconds * job.num_datasets
    return MeasuredBuild(job, forecast_build(job, CLUSTER, costs).seconds, sums, bundles)


def test_a_line_is_found_and_no_part_is_negative() -> None:
    cost = fit_stage([(1, 10**6, 0.011), (100, 10**6, 0.11), (10, 10**5, 0.011)])
    assert cost.task_seconds == pytest.approx(1e-3, rel=0.2)
    assert cost.element_seconds == pytest.approx(1e-8, rel=0.2)
    assert fit_stage([(10, 0, 0.1), (20, 0, 0.2)]) == StageCost(pytest.approx(0.01), 0.0)
    # Fewer seconds with more tasks: elements explain it alone.
    only = fit_stage([(1, 1000, 1.0), (100, 1000, 0.9)])
    assert only.task_seconds == 0
    assert only.element_seconds > 0
    assert fit_stage([(2, 100, 1.0)]).element_seconds == pytest.approx(0.01)


@pytest.mark.parametrize("order", ["scalable", "megatron"])
def test_known_costs_are_found_again(order: str) -> None:
    true = Costs(index_seconds=0.02)
    builds = [made_up(replace(job, order=order), true) for job in JOBS]
    found = fit_costs(builds, Costs(stages={}, megatron={}))
    for stage in JOBS[0].loads():
        cost, expected = found.stage(stage, order), true.stage(stage, order)
        assert cost.task_seconds == pytest.approx(expected.task_seconds, rel=1e-3)
        assert cost.element_seconds == pytest.approx(expected.element_seconds, rel=1e-3)
        assert cost.memory_nbytes == expected.memory_nbytes
    assert found.index_seconds == pytest.approx(0.02)


def test_costs_outside_timelines_are_calibrated() -> None:
    true = Costs()
    builds = [made_up(job, true) for job in JOBS]
    wrong = replace(
        true,
        client_task_seconds=true.client_task_seconds / 3,
        scheduler_task_seconds=true.scheduler_task_seconds / 3,
        client_index_seconds=true.client_index_seconds * 2,
        base_seconds=true.base_seconds * 2,
    )
    before = prediction_error(builds, wrong, CLUSTER)
    after = prediction_error(builds, calibrate(builds, wrong, CLUSTER), CLUSTER)
    assert prediction_error(builds, true, CLUSTER) == 0
    assert before > 0.2
    assert after < 0.1


def test_a_timeline_is_summed_by_stage() -> None:
    spans = [
        Span("documents-gpt-train-0", 0.0, 1.0, "here", 1),
        Span("documents-gpt-train-1", 0.0, 2.0, "here", 2),
        Span("describe_blend-x-0", 1.0, 1.5, "here", 1),
        Span("bundle-x-3", 0.0, 4.0, "here", 1),
        Span("open-datasets", 0.0, 9.0, "here", 1),
    ]
    build = MeasuredBuild.of(JOBS[0], 5.0, spans)
    assert build.stage_seconds == {"documents": 3.0, "describe": 0.5}
    assert build.bundle_seconds == 4.0
    assert build.seconds == 5.0


def test_medians_are_of_each_job() -> None:
    builds = [MeasuredBuild(job, seconds, {}) for seconds in (3.0, 1.0, 2.0) for job in JOBS[:2]]
    assert [(build.job, build.seconds) for build in keep_medians(builds)] == [
        (JOBS[0], 2.0),
        (JOBS[1], 2.0),
    ]
