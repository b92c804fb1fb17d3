"""Runs of parts of a source that one task reads each, and what is counted before they are read."""

from collections.abc import Iterator
from typing import Any

from zindex.building.executor import Executor, run_together
from zindex.building.records.reading import Portion
from zindex.building.records.record_files import (
    ExactJsonlFiles,
    LineRange,
    count_lines,
    join_counts,
    line_ranges,
    share_nbytes,
)
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.identity import fingerprint

#: Most stored bytes of the source that one task reads; small files are read together.
PORTION_NBYTES = 1 << 26
#: Most parts of the source that one task reads.
MAX_PARTS = 4096
# Parts whose lines one task counts.
_MAX_RANGES = 4


def cut_portions(
    source: SampleFiles,
    identity: dict[str, Any],
    portion_nbytes: int,
    max_parts: int,
    least_nbytes: int | None = None,
) -> Iterator[Portion]:
    """Yield runs of parts that are read together.

    Parameters
    ----------
    source
        The files.
    identity
        What decides the records: with the parts it names the portions.
    portion_nbytes, max_parts
        Most bytes and parts of a portion.
    least_nbytes
        See `zindex.building.records.record_files.share_nbytes`.
    """
    inner = source
    while isinstance(inner, WrappedFiles):  # which do not say how their files are cut
        inner = inner.files
    sizes = list(map(source.part_nbytes, range(source.num_parts)))
    most = share_nbytes(sum(size or 0 for size in sizes), portion_nbytes, least_nbytes)
    facts = {"parts": inner.fingerprint(), "portion_nbytes": most}
    tag = fingerprint(facts | identity)[:12]
    start, nbytes, urls = 0, 0, list[int]()
    for number in range(len(source.urls)):
        for part in source.url_parts(number):
            urls.append(number)
            size = sizes[part]
            nbytes += most if size is None else size
            if nbytes >= most or len(urls) >= max_parts:
                yield Portion(f"{tag}-{start:09d}", start, tuple(urls))
                start, nbytes, urls = part + 1, 0, []
    if urls:
        yield Portion(f"{tag}-{start:09d}", start, tuple(urls))


def return_value(value: Any) -> Any:
    """Task: leave a value with the workers, where every later task finds it."""
    return value


async def count_all_lines(source: SampleFiles, executor: Executor, name: str) -> SampleFiles:
    """Return jsonl files with the lines before each part counted; others as they are."""
    if isinstance(source, WrappedFiles):
        return source.over(await count_all_lines(source.files, executor, name))
    if not isinstance(source, JsonlFiles):
        return source
    found = []
    for number, ranges in line_ranges(source).items():
        batches = [ranges[i : i + _MAX_RANGES] for i in range(0, len(ranges), _MAX_RANGES)]
        found += [(number, i, batch) for i, batch in enumerate(batches)]

    async def count(number: int, i: int, batch: list[LineRange]) -> tuple[int, list[int]]:
        key = f"lines-{name[:28]}-{number}-{i}"
        return number, await executor.run(count_lines, batch, key=key)

    counts: dict[int, list[int]] = {}
    for number, lines in await run_together(count(*item) for item in found):
        counts.setdefault(number, []).extend(lines)
    return ExactJsonlFiles(source, join_counts(counts))
