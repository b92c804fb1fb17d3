"""Choose how many nodes to use for the unbuilt part of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from zindex.config import RunConfig
from zindex.forecast.cost_model import Costs, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.indexing.run_plan import PlannedBlend, PlannedStore, RunPlan
from zindex.indexing.store_build import find_index

# Minimum saving for more nodes, as a share of the time and in seconds.
_LEAST_GAIN, _LEAST_SECONDS = 0.1, 1.0

# Maximum number of nodes, as in a large site.
_MANY_NODES = 1024


@dataclass(frozen=True, slots=True)
class NodeForecast:
    """Forecast on one node, and on as many nodes as the build can use."""

    seconds_alone: float
    num_nodes: int
    #: Number of nodes of that forecast.
    seconds: float


def forecast_nodes(job: Job, *, num_threads: int) -> NodeForecast:
    """Forecast a build on one node with the given threads, and on more nodes like it."""
    number = count_useful_nodes(job, _MANY_NODES, num_threads=num_threads)
    alone, together = (
        forecast_build(job, Machines(each, num_threads)).seconds for each in (1, number)
    )
    return NodeForecast(alone, number, together)


def describe_missing(config: RunConfig, plan: RunPlan) -> Job | None:
    """Describe the unbuilt indices and blends of a run, as a job to forecast.

    Parameters
    ----------
    config
        The run.
    plan
        The plan from `plan_run`.

    Returns
    -------
    job
        None if everything is built. Treats all datasets as equally large, and all blends as one.
    """
    missing = [item for item in plan if find_index(item.plan.store_plan(config.index)) is None]
    return describe_stores(config, missing) if missing else None


def describe_stores(config: RunConfig, stores: Sequence[PlannedStore]) -> Job:
    """Describe stores as a job to forecast; see `describe_missing`."""
    blends = [item for item in stores if isinstance(item, PlannedBlend)]
    plans = [item.plan for item in stores if not isinstance(item, PlannedBlend)]
    num_samples = sum(item.plan.num_samples for item in blends)
    num_rows = 0
    if plans:
        num_samples = sum(plan.layouts[-1].shape[0] for plan in plans)
        num_rows = sum(plan.num_build_rows for plan in plans) - num_samples
    num_tokens = max(1, num_samples) * config.sequence_length
    return Job(
        num_tokens,
        num_datasets=max(1, len(plans)),
        document_length=num_tokens / max(1, num_rows),
        sequence_length=config.sequence_length,
        order=config.order,
        stored=config.store,
        blend=bool(blends),
    )


def count_useful_nodes(
    job: Job,
    maximum: int,
    *,
    num_threads: int,
    first: int = 1,
    start_seconds: float = 0.0,
    costs: Costs | None = None,
) -> int:
    """Return the fewest nodes whose build time is within a tenth, or a second, of the best.

    Parameters
    ----------
    job
        The build.
    maximum
        Maximum number of nodes.
    num_threads
        Threads of each node.
    first, start_seconds
        Number of nodes already running, and seconds to start others.
    costs
        Costs of the steps of a build; None uses the defaults.

    Examples
    --------
    >>> count_useful_nodes(Job(1e9, num_datasets=10), 100, num_threads=16)
    1
    >>> count_useful_nodes(Job(1e13, num_datasets=100), 1000, num_threads=16)
    64
    """
    numbers = sorted({min(first << power, maximum) for power in range(maximum.bit_length())})
    seconds = {
        number: forecast_build(job, Machines(number, num_threads), costs).seconds
        + (start_seconds if number > first else 0.0)
        for number in numbers
    }
    best = min(seconds.values())
    enough = max(best / (1 - _LEAST_GAIN), best + _LEAST_SECONDS)
    return next(number for number, each in seconds.items() if each <= enough)
