"""Fit the costs of steps to measured builds: a fixed cost per task, and one per element.

Builds of the same data in few and in many tasks separate the two.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zindex.execution.timeline import Span
from zindex.forecast.cost_model import (
    STAGE_COSTS,
    Costs,
    Machines,
    StageCost,
    forecast_build,
)
from zindex.forecast.job import Job

#: Cost model stage of each timeline stage; other stages are not tasks, or contain these.
STAGES = {
    name: name for name in ("check", "documents", "count", "shuffle", "samples", "blend", "store")
} | {"describe_blend": "describe"}


@dataclass(frozen=True)
class MeasuredBuild:
    """A measured build, and the seconds of its tasks."""

    job: Job
    seconds: float
    #: Total wall-clock seconds of the tasks of each stage.
    stage_seconds: Mapping[str, float]
    #: Seconds of the tasks that build bundles of small indices; 0 without bundles.
    bundle_seconds: float = 0.0
    #: CPU seconds of this process, including its worker threads.
    process_seconds: float = 0.0

    @classmethod
    def of(cls, job: Job, seconds: float, spans: Iterable[Span]) -> "MeasuredBuild":
        """Create a measured build from its timeline."""
        sums: dict[str, float] = {}
        for span in spans:
            name = "bundle" if span.stage == "bundle" else STAGES.get(span.stage)
            if name is not None:
                sums[name] = sums.get(name, 0.0) + span.stop - span.start
        bundles = sums.pop("bundle", 0.0)
        return cls(job, seconds, sums, bundle_seconds=bundles)


def fit_costs(builds: Sequence[MeasuredBuild], costs: Costs) -> Costs:
    """Fit the costs of stages and bundles to measured builds.

    Parameters
    ----------
    builds
        Builds with the same order and ``store`` setting.
    costs
        Costs that the builds do not determine.

    Notes
    -----
    Law: if tasks take exactly a fixed time plus a time per element, these times are returned.
    """
    stages = dict(costs.stages)
    if any(build.job.order == "megatron" for build in builds):
        stages |= costs.megatron
    for stage in STAGES.values():
        rows = [
            (*build.job.loads()[stage], build.stage_seconds[stage])
            for build in builds
            if stage in build.job.loads() and build.stage_seconds.get(stage)
        ]
        if rows:
            memory_nbytes = STAGE_COSTS[stage].memory_nbytes
            stages[stage] = replace(fit_stage(rows), memory_nbytes=memory_nbytes)
    bundles = [build for build in builds if build.bundle_seconds]
    index_seconds = costs.index_seconds
    if bundles:
        inner = ("documents", "count", "shuffle", "samples")
        seconds = sum(
            build.bundle_seconds - sum(build.stage_seconds.get(name, 0.0) for name in inner)
            for build in bundles
        )
        index_seconds = max(0.0, seconds / sum(build.job.num_datasets for build in bundles))
    return replace(costs, stages=stages, megatron={}, index_seconds=index_seconds)


def fit_stage(rows: Sequence[tuple[int, int, float]]) -> StageCost:
    """Return the non-negative least-squares cost of measured totals.

    Parameters
    ----------
    rows
        Tasks, elements and total seconds of each build. Errors are relative to the seconds.

    Examples
    --------
    >>> fitted = fit_stage([(10, 1000, 10.1), (100, 1000, 100.1)])
    >>> round(fitted.task_seconds, 6), round(fitted.element_seconds, 6)
    (1.0, 0.0001)
    """
    table = np.array(rows, np.float64)
    loads, seconds = table[:, :2] / table[:, 2:], np.ones(len(table))
    best, *_ = np.linalg.lstsq(loads, seconds, rcond=1e-9)
    if (best < 0).any() or len(rows) == 1:
        # Fit only one of the two parts, whichever is better.
        single = []
        for column in range(2):
            load = loads[:, column]
            scale = float(load @ seconds / (load @ load)) if load.any() else 0.0
            error = float(np.sum((load * scale - seconds) ** 2))
            single.append((round(error, 9), -column, scale))
        # Ties go to the cost per element.
        _, negative, scale = min(single)
        best = np.zeros(2)
        best[-negative] = scale
    return StageCost(float(best[0]), float(best[1]))


# Costs that no timeline shows, and the factors to try.
_HIDDEN = (
    ("client_task_seconds", "scheduler_task_seconds"),
    ("client_index_seconds",),
    ("base_seconds",),
)
_FACTORS = [2 ** (step / 3) for step in range(-6, 10)]
_NUM_ROUNDS = 2


def calibrate(builds: Sequence[MeasuredBuild], costs: Costs, machines: Machines) -> Costs:
    """Fit the client costs so that forecasts match the measured builds.

    Timelines do not show the client's work per task, index and build. These three costs are
    varied in turn, between a quarter and eight times their values.

    Parameters
    ----------
    builds, costs
        Measured builds, and their costs from `fit_costs`.
    machines
        The machines that they ran on.
    """
    start = best = costs
    for _ in range(_NUM_ROUNDS):
        for names in _HIDDEN:
            tried = [
                replace(best, **{name: getattr(start, name) * factor for name in names})
                for factor in _FACTORS
            ]
            best = min([best, *tried], key=lambda each: prediction_error(builds, each, machines))
    return best


def prediction_error(builds: Sequence[MeasuredBuild], costs: Costs, machines: Machines) -> float:
    """Return the typical relative error of forecasts of measured builds: 0.1 is 10 percent."""
    squares = [
        math.log(forecast_build(build.job, machines, costs).seconds / build.seconds) ** 2
        for build in builds
    ]
    return math.expm1(math.sqrt(sum(squares) / len(squares)))


def keep_medians(builds: Sequence[MeasuredBuild]) -> list[MeasuredBuild]:
    """Return the build with the median duration for each job."""
    by_job: dict[Job, list[MeasuredBuild]] = {}
    for build in builds:
        by_job.setdefault(build.job, []).append(build)
    return [sorted(runs, key=lambda run: run.seconds)[len(runs) // 2] for runs in by_job.values()]
