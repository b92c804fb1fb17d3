"""Fit the costs of steps to measured builds: a fixed cost per task, and one per element.

Builds of the same data in few and in many tasks separate the two.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zindex.execution.timeline import Span
from zindex.indexing.forecast.cost_model import (
    STAGE_COSTS,
    Costs,
    Machines,
    StageCost,
    forecast_build,
)
from zindex.indexing.forecast.job import Job

#: Stages of a timeline -> stages of the cost model; the others are no tasks, or contain these.
STAGES = {
    name: name for name in ("check", "documents", "count", "shuffle", "samples", "blend", "store")
} | {"describe_blend": "describe"}


@dataclass(frozen=True)
class MeasuredBuild:
    """A build that ran, and the seconds of its tasks."""

    job: Job
    seconds: float
    #: Stage -> wall-clock seconds of all its tasks together.
    stage_seconds: Mapping[str, float]
    #: Seconds of the tasks that build bundles of small indices; 0 without any.
    bundle_seconds: float = 0.0
    #: Processor seconds of this process, including workers in it.
    process_seconds: float = 0.0

    @classmethod
    def of(cls, job: Job, seconds: float, spans: Iterable[Span]) -> "MeasuredBuild":
        """Return a build from its timeline."""
        sums: dict[str, float] = {}
        for span in spans:
            name = "bundle" if span.stage == "bundle" else STAGES.get(span.stage)
            if name is not None:
                sums[name] = sums.get(name, 0.0) + span.stop - span.start
        bundles = sums.pop("bundle", 0.0)
        return cls(job, seconds, sums, bundle_seconds=bundles)


def fit_costs(builds: Sequence[MeasuredBuild], costs: Costs) -> Costs:
    """Return costs whose stages and bundles are fitted to measured builds.

    Parameters
    ----------
    builds
        Builds of one order and one setting of ``store``.
    costs
        The costs that builds do not show.

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
    """Return the least-squares cost of measured sums, with no negative part.

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
        # Fit one part alone, the better one.
        single = []
        for column in range(2):
            load = loads[:, column]
            scale = float(load @ seconds / (load @ load)) if load.any() else 0.0
            error = float(np.sum((load * scale - seconds) ** 2))
            single.append((round(error, 9), -column, scale))
        # A tie goes to the elements.
        _, negative, scale = min(single)
        best = np.zeros(2)
        best[-negative] = scale
    return StageCost(float(best[0]), float(best[1]))


# Costs that no timeline shows, and the factors by which they are varied.
_HIDDEN = (
    ("client_task_seconds", "scheduler_task_seconds"),
    ("client_index_seconds",),
    ("base_seconds",),
)
_FACTORS = [2 ** (step / 3) for step in range(-6, 10)]
_NUM_ROUNDS = 2


def calibrate(builds: Sequence[MeasuredBuild], costs: Costs, machines: Machines) -> Costs:
    """Return the costs whose forecasts are closest to the seconds of measured builds.

    No timeline shows the work of the client for a task, an index and a build. These three costs are
    varied in turn, between a quarter and eight times of their values.

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
    """Return the build of median seconds of each job."""
    by_job: dict[Job, list[MeasuredBuild]] = {}
    for build in builds:
        by_job.setdefault(build.job, []).append(build)
    return [sorted(runs, key=lambda run: run.seconds)[len(runs) // 2] for runs in by_job.values()]
