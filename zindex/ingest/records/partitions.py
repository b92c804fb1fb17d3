"""The read stage of an import: one task per partition of the source, a sequence of parts."""

import asyncio
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any

from zindex.execution.executor import Executor, run_together
from zindex.ingest.driver import Claim, Workers
from zindex.ingest.records.open_files import share_nbytes
from zindex.ingest.records.read_partitions import Partition, ReadResult, Settings, read_partition
from zindex.sources.jsonl_files import JsonlFiles, count_breaks
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.commit import fingerprint

#: Maximum stored bytes of the source per task; small files are read together.
PARTITION_NBYTES = 1 << 26
#: Maximum parts of the source per task.
MAX_PARTS = 4096
# Parts whose lines one task counts.
_MAX_RANGES = 4


async def read_source(
    source: SampleFiles,
    claim: Claim,
    workers: Workers,
    settings: Settings,
    *,
    stage: str,
    verb: str,
    least_nbytes: int | None = None,
) -> list[ReadResult]:
    """Parse a source into scratch files, and return the results in order.

    Parameters
    ----------
    source
        The files.
    claim
        The claimed location; it is checked after each task.
    workers
        Where tasks run and progress is shown.
    settings
        How to read.
    stage, verb
        First word of the task keys, and last word of the name of the step.
    least_nbytes
        See `share_nbytes`.
    """
    name, executor = claim.root.name, workers.executor
    partitions = list(plan_partitions(source, claim.identity, stage, least_nbytes))
    source = await count_all_lines(source, executor, name)
    shared = await executor.hold(return_value, source, key=f"{stage}-{name[:28]}-files")
    with workers.shown.step(f"{name}: {verb}", len(partitions)) as advance:

        async def read(partition: Partition) -> ReadResult:
            key = f"{stage}-{partition.name}"
            result = await executor.run(
                read_partition, shared, claim.root, partition, settings, key=key
            )
            await asyncio.to_thread(claim.check)
            advance(1)
            return result

        return await run_together(map(read, partitions))


def plan_partitions(
    source: SampleFiles, identity: dict[str, Any], stage: str, least_nbytes: int | None = None
) -> Iterator[Partition]:
    """Yield partitions, named by their parts, an identity and the stage."""
    inner = source
    while isinstance(inner, WrappedFiles):  # the fingerprint does not depend on the parts
        inner = inner.files
    sizes = list(map(source.part_nbytes, range(source.num_parts)))
    most = share_nbytes(sum(size or 0 for size in sizes), PARTITION_NBYTES, least_nbytes)
    facts = {"parts": inner.fingerprint(), "portion_nbytes": most, "stage": stage}
    tag = fingerprint(facts | identity)[:12]
    start, nbytes, urls = 0, 0, list[int]()
    for number in range(len(source.urls)):
        for part in source.url_parts(number):
            urls.append(number)
            size = sizes[part]
            nbytes += most if size is None else size
            if nbytes >= most or len(urls) >= MAX_PARTS:
                yield Partition(f"{tag}-{start:09d}", start, tuple(urls))
                start, nbytes, urls = part + 1, 0, []
    if urls:
        yield Partition(f"{tag}-{start:09d}", start, tuple(urls))


def return_value(value: Any) -> Any:
    """Task: send a value to the workers, for all later tasks."""
    return value


async def count_all_lines(source: SampleFiles, executor: Executor, name: str) -> SampleFiles:
    """Return jsonl files with the lines before each part counted by tasks; others unchanged.

    Otherwise each process counts the lines before a part itself, which dominates if there are many
    parts.
    """
    if isinstance(source, WrappedFiles):
        return source.over(await count_all_lines(source.files, executor, name))
    if not isinstance(source, JsonlFiles):
        return source

    async def count(number: int) -> list[int]:
        file, edges = source.part_edges(number)
        batches = [edges[i : i + _MAX_RANGES + 1] for i in range(0, len(edges) - 1, _MAX_RANGES)]
        found = await run_together(
            executor.run(count_breaks, file, batch, key=f"lines-{name[:28]}-{number}-{i}")
            for i, batch in enumerate(batches)
        )
        return list(accumulate(chain.from_iterable(found), initial=0))

    breaks = await run_together(map(count, range(len(source.urls))))
    return source.with_breaks(dict(enumerate(breaks)))
