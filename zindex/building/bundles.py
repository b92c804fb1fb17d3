"""Small indices, many to a task.

An index whose arrays are one shard each is built in less time than Dask needs for the tasks that it
would be cut into. Where there are many, one task builds several, each from its beginning to its
commit, and all that Python does for them is done by the workers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zindex.building.executor import Executor, SerialExecutor, run_builds, run_together
from zindex.building.index import build_index, index_store_plan
from zindex.building.index_store import BuildResult, task_key
from zindex.building.source import LengthSource
from zindex.building.timeline import Span, Timeline
from zindex.plan.index_plan import IndexPlan
from zindex.store.layout import SHARD_LENGTH
from zindex.store.objects import Place, PlaceLike, place_of

#: Of fewer small indices each is cut into tasks like a large one.
MIN_SMALL = 16
#: Indices of a task at most; a worker that dies loses the one that it was at.
MAX_INDICES = 32
#: Documents and samples of a task, as far as it has several indices.
MAX_ROWS = 2 * SHARD_LENGTH
#: Tasks for each thread, so that all end at about the same time.
TASKS_PER_THREAD = 8

#: An index, and the lengths that it is made of.
SmallIndex = tuple[IndexPlan, LengthSource]


@dataclass(frozen=True, slots=True)
class BuiltBundle:
    """What became of the indices of a bundle, in order, and when."""

    results: list[BuildResult]
    spans: list[Span]


def is_small(plan: IndexPlan) -> bool:
    """Return whether an index is one shard of documents and one of samples."""
    layouts = (plan.document_layout, plan.sample_layout, plan.shuffle_layout)
    return all(layout.num_shards <= 1 for layout in layouts)


def cut_bundles(plans: Sequence[IndexPlan], num_threads: int) -> list[range]:
    """Return runs of small indices, each the work of one task.

    Parameters
    ----------
    plans
        The small indices.
    num_threads
        Tasks that run at a time.

    Notes
    -----
    Law: the runs follow each other and cover all.
    """
    longest = min(MAX_INDICES, max(1, len(plans) // (TASKS_PER_THREAD * num_threads)))
    bundles, start, num_rows = [], 0, 0
    for number, plan in enumerate(plans):
        rows = plan.num_rows + plan.num_samples
        if number > start and (number - start == longest or num_rows + rows > MAX_ROWS):
            bundles.append(range(start, number))
            start, num_rows = number, 0
        num_rows += rows
    return [*bundles, range(start, len(plans))] if plans else []


async def build_small(
    indices: Sequence[SmallIndex],
    folder: PlaceLike,
    executor: Executor,
    advance: Callable[[int], None] = lambda num_shards: None,
) -> list[BuildResult]:
    """Build and commit small indices, or what is missing of them, several to a task.

    Parameters
    ----------
    indices
        What to build, from which lengths.
    folder, executor, advance
        As of `build_index`.

    Returns
    -------
    results
        Of each index, in order.
    """
    place = place_of(folder)

    async def one(bundle: range) -> list[BuildResult]:
        part = [indices[number] for number in bundle]
        key = task_key(index_store_plan(part[0][0], place).root, "bundle", len(part))
        built = await executor.run(build_bundle, part, place, key=key)
        executor.timeline.add(built.spans)
        advance(sum(result.num_shards for result in built.results))
        return built.results

    bundles = cut_bundles([plan for plan, _ in indices], executor.num_threads)
    return [result for built in await run_together(map(one, bundles)) for result in built]


def build_bundle(indices: Sequence[SmallIndex], folder: Place) -> BuiltBundle:
    """Task: build and commit small indices, one after the other; those that are there are kept."""
    timeline = Timeline()

    async def build() -> list[BuildResult]:
        executor = SerialExecutor(timeline)
        return [await build_index(plan, source, folder, executor) for plan, source in indices]

    return BuiltBundle(run_builds(build()), timeline.spans)
