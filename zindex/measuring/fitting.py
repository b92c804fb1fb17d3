"""The costs of steps from measured builds: a fixed part for each task, and one for each element.

Builds of the same data that are cut into few and into many tasks tell the two apart.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zindex.building.timeline import Span
from zindex.measuring.build_model import Cluster, Costs, Job, StageCost, stage_cost
from zindex.measuring.simulate import simulate

#: Stages of a timeline by the names of the model; others are not tasks, or repetitions.
STAGES = {
    name: name for name in ("check", "documents", "count", "shuffle", "samples", "blend", "store")
} | {"describe_blend": "describe"}


@dataclass(frozen=True)
class MeasuredBuild:
    """A build that ran, and what its tasks took."""

    job: Job
    seconds: float
    #: Stage -> seconds of all its tasks together, as they passed on the threads.
    stage_seconds: Mapping[str, float]
    #: Seconds of the tasks that build several small indices each; 0 if there were none.
    bundle_seconds: float = 0.0
    #: Seconds of processors that this process used, workers in it included.
    process_seconds: float = 0.0

    @classmethod
    def of(cls, job: Job, seconds: float, spans: Iterable[Span]) -> "MeasuredBuild":
        """Return the build that a timeline shows."""
        sums: dict[str, float] = {}
        for span in spans:
            name = "bundle" if span.stage == "bundle" else STAGES.get(span.stage)
            if name is not None:
                sums[name] = sums.get(name, 0.0) + span.stop - span.start
        bundles = sums.pop("bundle", 0.0)
        return cls(job, seconds, sums, bundle_seconds=bundles)


def fit_costs(builds: Sequence[MeasuredBuild], costs: Costs) -> Costs:
    """Return costs with those parts that measured builds show.

    Parameters
    ----------
    builds
        Builds of one order and one way to store.
    costs
        Where the rest comes from.

    Notes
    -----
    Law: builds whose tasks take exactly a fixed time and a time per element give those times.
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
            fitted = fit_stage(rows)
            stages[stage] = stage_cost(stage, fitted.task_seconds, fitted.element_seconds)
    bundles = [build for build in builds if build.bundle_seconds]
    index_seconds = costs.index_seconds
    if bundles:
        inner = ("documents", "count", "shuffle", "samples")
        index_seconds = max(
            0.0,
            sum(
                build.bundle_seconds - sum(build.stage_seconds.get(name, 0.0) for name in inner)
                for build in bundles
            )
            / sum(build.job.num_datasets for build in bundles),
        )
    return replace(costs, stages=stages, megatron={}, index_seconds=index_seconds)


def fit_stage(rows: Sequence[tuple[int, int, float]]) -> StageCost:
    """Return the cost that explains measured sums best, neither part below 0.

    Parameters
    ----------
    rows
        Of each build: tasks, elements, and seconds of all of them together. Errors count in
        proportion to the seconds.

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
        # One part explains it alone, whichever does better.
        single = []
        for column in range(2):
            load = loads[:, column]
            scale = float(load @ seconds / (load @ load)) if load.any() else 0.0
            error = float(np.sum((load * scale - seconds) ** 2))
            single.append((round(error, 9), -column, scale))
        # If there is no telling, it is the elements.
        _, negative, scale = min(single)
        best = np.zeros(2)
        best[-negative] = scale
    return StageCost(float(best[0]), float(best[1]))


def fit_dataset_seconds(
    one: MeasuredBuild, many: MeasuredBuild, costs: Costs, cluster: Cluster
) -> float:
    """Return what a dataset costs the client, from builds whose workers are other processes.

    Parameters
    ----------
    one, many
        Builds of one dataset, and of many small ones that tasks build several at a time.
    costs
        What a task costs the client and the scheduler, which share its process.
    cluster
        Where the builds ran.
    """
    task_seconds = costs.client_task_seconds + costs.scheduler_task_seconds
    num_tasks = [simulate(build.job, cluster, costs).num_tasks for build in (one, many)]
    seconds = many.process_seconds - one.process_seconds
    seconds -= task_seconds * (num_tasks[1] - num_tasks[0])
    return max(0.0, seconds / (many.job.num_datasets - one.job.num_datasets))


# Costs that no timeline shows, each with the factors within which it is looked for.
_HIDDEN = (
    ("client_task_seconds", "scheduler_task_seconds"),
    ("client_index_seconds",),
    ("base_seconds",),
)
_FACTORS = [2 ** (step / 3) for step in range(-6, 10)]
_NUM_ROUNDS = 2


def calibrate(builds: Sequence[MeasuredBuild], costs: Costs, cluster: Cluster) -> Costs:
    """Return costs with which the simulator gives the seconds of measured builds best.

    What the client does for a task, an index and a build is no step of a timeline. These three are
    moved in turn, within a quarter and eight times of what they were.

    Parameters
    ----------
    builds, costs
        Measured builds, and their costs as of `fit_costs`.
    cluster
        Where they ran.
    """
    start = best = costs
    for _ in range(_NUM_ROUNDS):
        for names in _HIDDEN:
            tried = [
                replace(best, **{name: getattr(start, name) * factor for name in names})
                for factor in _FACTORS
            ]
            best = min([best, *tried], key=lambda each: prediction_error(builds, each, cluster))
    return best


def prediction_error(builds: Sequence[MeasuredBuild], costs: Costs, cluster: Cluster) -> float:
    """Return by which factor the simulator is off, as a rule: 0.1 is 10 percent."""
    squares = [
        math.log(simulate(build.job, cluster, costs).seconds / build.seconds) ** 2
        for build in builds
    ]
    return math.expm1(math.sqrt(sum(squares) / len(squares)))


def keep_medians(builds: Sequence[MeasuredBuild]) -> list[MeasuredBuild]:
    """Return of each job the build of median seconds."""
    by_job: dict[Job, list[MeasuredBuild]] = {}
    for build in builds:
        by_job.setdefault(build.job, []).append(build)
    return [sorted(runs, key=lambda run: run.seconds)[len(runs) // 2] for runs in by_job.values()]
