"""How many nodes a build can use, by a forecast of what a run has not built yet."""

from collections.abc import Sequence

from zindex.config import RunConfig
from zindex.indexing.forecast.cost_model import Costs, Machines, forecast_build
from zindex.indexing.forecast.job import Job
from zindex.indexing.run_plan import PlannedBlend, PlannedStore, RunPlan
from zindex.indexing.store_build import find_index

# More nodes must save this share of the time; see `count_useful_nodes`.
_LEAST_GAIN = 0.1


def describe_missing(config: RunConfig, plan: RunPlan) -> Job | None:
    """Return the unbuilt indices and blends of a run, as a job to forecast.

    Parameters
    ----------
    config
        The run.
    plan
        Its stores, as of `plan_run`.

    Returns
    -------
    job
        None if everything is built. Datasets count as equally large, and blends as one.
    """
    missing = [item for item in plan if find_index(item.plan.store_plan(config.index)) is None]
    return describe_stores(config, missing) if missing else None


def describe_stores(config: RunConfig, stores: Sequence[PlannedStore]) -> Job:
    """Return stores as a job to forecast; see `describe_missing`."""
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
    """Return the fewest nodes whose build takes at most a tenth longer than the fastest.

    Parameters
    ----------
    job
        The build.
    maximum
        Maximum number of nodes.
    num_threads
        Threads of each node.
    first, start_seconds
        Nodes that are already running, and seconds until others have started.
    costs
        Costs of the steps of a build; plausible defaults if None.

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
    enough = min(seconds.values()) / (1 - _LEAST_GAIN)
    return next(number for number, each in seconds.items() if each <= enough)
