"""Format the results of verification and repair."""

from collections.abc import Iterator, Sequence

from zindex.maintenance.repairs.repair import RepairResult
from zindex.store.verify import StoreReport
from zindex.wording import count_noun


def describe_reports(reports: Sequence[StoreReport]) -> Iterator[str]:
    """Yield a line for each damaged file and each note, and a summary."""
    for report in reports:
        for damage in report.damages:
            yield f"{report.root}: {damage.key} {damage.problem}"
        for item in report.invalid:
            yield f"{report.root}: {item.key}: {item.problem}"
        for note in report.notes:
            yield f"{report.root}: note: {note}"
    num_shards = sum(report.num_shards for report in reports)
    stores = f"{count_noun(len(reports), 'store')} of {count_noun(num_shards, 'shard')}"
    num_damaged = sum(bool(report.damages) for report in reports)
    num_invalid = sum(bool(report.invalid) for report in reports)
    if num_invalid:
        yield f"{stores}: {num_invalid:,} with invalid values; fix the source and make them again"
    if num_damaged:
        yield f"{stores}: {num_damaged:,} damaged; `zindex repair` rebuilds damaged shards"
        if any(report.is_tokenized and report.damages for report in reports):
            yield (
                "a store of tokenised texts is repaired from another one of the same: tokenise "
                "them again with the same settings at another place, and give `zindex repair` "
                "--source OTHER_STORE"
            )
    elif not num_invalid:
        yield f"{stores} and {sum(report.nbytes for report in reports):,} bytes: sound"


def describe_repair(result: RepairResult) -> str:
    """Describe the repair of one store."""
    if not result.is_built:
        return f"{result.root} is not built"
    if not result.rebuilt:
        verb = "is" if result.num_shards == 1 else "are"
        return f"{result.root}: {count_noun(result.num_shards, 'shard')} {verb} sound"
    metadata = result.rebuilt[result.num_rebuilt :]
    return f"{result.root}: {result.num_rebuilt:,} of {result.num_shards:,} shards rebuilt" + (
        f", and {', '.join(metadata)}" if metadata else ""
    )
