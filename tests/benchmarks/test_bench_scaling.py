"""The predicted tables of ``bench_scaling``, without the real builds of its short form."""

from dataclasses import replace

import pytest

from tests.benchmarks.bench_scaling import (
    Work,
    compare,
    compare_designs,
    compare_losses,
    describe_bound,
    draw_curves,
    fit_dataset_seconds,
    make_node_costs,
    name_nodes,
    one_machine,
)
from zindex.forecast.cost_model import Costs, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench.fitting import MeasuredBuild
from zindex.inspection.bench.short_builds import SyntheticData

COSTS = make_node_costs(Costs(), 1e9)


def test_a_curve_for_each_size_has_a_row_for_each_number_of_nodes() -> None:
    tables = draw_curves(COSTS, [1e11, 1e12], [1, 1000], num_datasets=100)
    assert [table.key for table in tables] == ["curve-1e11", "curve-1e12"]
    for table in tables:
        assert [row.contender for row in table.rows] == ["1 node", "1,000 nodes"]
        assert {"seconds", "num_tasks"} <= table.rows[0].figures.keys()
        assert "bound by" in table.notes[0]
    seconds = [table.rows[0].figures["seconds"][0] for table in tables]
    assert seconds == sorted(seconds)


def test_designs_are_compared_at_each_size() -> None:
    tables = compare_designs(COSTS, [1e11, 1e12], 3, num_datasets=100)
    assert [table.key for table in tables] == ["design-1e11", "design-1e12"]
    assert all(table.rows[0].contender == "as it is" for table in tables)
    assert all(len(table.notes) == len(table.rows) for table in tables)


def test_losses_are_counted() -> None:
    table = compare_losses(COSTS, 1e12, 100, num_datasets=10)
    lost = [row.figures["num_lost_tasks"][0] for row in table.rows]
    assert lost[0] == 0
    assert lost == sorted(lost)


def test_a_build_is_compared_with_the_median_of_its_runs() -> None:
    job = Job(1e10, num_datasets=2)
    predicted = forecast_build(job, one_machine(2), COSTS).seconds
    runs = [MeasuredBuild(job, factor * predicted, {}) for factor in (2.0, 9.0, 1.0)]
    row = compare(Work("work", SyntheticData((), 0, 0)), 2, "scalable", runs, COSTS)
    assert row.contender == "2 workers, scalable, work"
    assert row.figures["error_percent"] == [pytest.approx(50)]
    assert len(row.figures["seconds"]) == 3


def test_the_bottleneck_of_a_build_is_described() -> None:
    assert name_nodes(1) == "1 node"
    assert name_nodes(1000) == "1,000 nodes"
    text = describe_bound(forecast_build(Job(1e12, num_datasets=5), Machines(2)))
    assert text.startswith(("bound by ", "stages wait"))
    assert text.count("%") == 3


def test_the_cost_of_datasets_is_what_tasks_do_not_explain() -> None:
    costs = Costs(client_task_seconds=1e-3, scheduler_task_seconds=1e-3)
    machines = Machines(1, 2, scheduler_in_client=True)
    builds = []
    for job in (Job(1e9, num_datasets=1), Job(3e7, num_datasets=41)):
        num_tasks = forecast_build(job, machines, costs).num_tasks
        used = 0.1 + 2e-3 * num_tasks + 5e-3 * job.num_datasets
        builds.append(MeasuredBuild(job, 1.0, {}, process_seconds=used))
    assert fit_dataset_seconds(*builds, costs, machines) == pytest.approx(5e-3)
    idle = replace(builds[1], process_seconds=0.0)
    assert fit_dataset_seconds(builds[0], idle, costs, machines) == 0
