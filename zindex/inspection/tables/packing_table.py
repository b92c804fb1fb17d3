"""Table of packed indices: documents, samples and padding."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from zindex.indexing.packing import Basis, measure_packing, read_packing_sizes
from zindex.indexing.run_plan import PlannedIndex
from zindex.indexing.store_build import find_index
from zindex.inspection.tables.dataset_table import IndexRow, dataset_lines, index_fields
from zindex.inspection.tables.formatting import format_share
from zindex.plan.packing import PackingPlan
from zindex.store.commit import StoreStatus

#: Documents to pack for an estimate: of all datasets together, and at least of each.
NUM_PACKED, _LEAST_PACKED = 1 << 22, 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRow(IndexRow):
    """One packed index of a run."""

    max_documents: int
    long_documents: str
    #: Whether the sizes are read from the index, computed, or estimated.
    basis: Basis
    #: Documents, or parts of long ones, in the samples.
    num_parts: int
    #: Share of padding in all samples.
    padding_share: float

    def to_cells(self) -> dict[str, str]:
        """Return the cells of the row by header."""
        mark = "~" if self.basis == "estimated" else ""
        return self.join_cells(mark, padding=mark + format_share(self.padding_share))


def make_packing_rows(
    items: Sequence[PlannedIndex[PackingPlan]],
    statuses: Sequence[StoreStatus],
    folder: str,
    num_packed: int,
) -> tuple[PackingRow, ...]:
    """Return the rows of a run's packed indices.

    Parameters
    ----------
    items, statuses
        The indices, and the status of each.
    folder
        Directory of the index stores.
    num_packed
        Documents to pack for an estimate.
    """
    length = max(min(_LEAST_PACKED, num_packed), num_packed // max(1, len(items)))
    planned = zip(items, statuses, strict=True)
    return tuple(_make_row(item, status, folder, length) for item, status in planned)


def _make_row(
    item: PlannedIndex[PackingPlan], status: StoreStatus, folder: str, length: int
) -> PackingRow:
    """Return the row of one packed index, estimated until the index is built."""
    plan = item.plan
    store = find_index(plan.store_plan(folder)) if status.committed else None
    if store is None:
        sizes = measure_packing(plan, item.source, length)
    else:
        sizes = read_packing_sizes(store)
    num_partitions = sizes.num_epochs * plan.partitions_per_epoch
    layouts = plan.layouts_of(num_partitions, sizes.num_samples, sizes.num_parts)
    nbytes = sum(layout.nbytes for layout in layouts)
    num_shards = sum(layout.num_shards for layout in layouts)
    fields = index_fields(item, status, nbytes, num_shards, plan.tokens_per_epoch, sizes)
    fields |= {name: getattr(sizes, name) for name in ("basis", "num_parts", "padding_share")}
    return PackingRow(**fields, **asdict(plan.rules))


def packing_lines(rows: Sequence[PackingRow]) -> list[str]:
    """Return the packing rules and the table of datasets and their splits."""
    first = rows[0]
    lines = [
        f"packed: at most {first.max_documents:,} documents in a sample, long documents "
        f"{_LONG[first.long_documents]}",
        "",
        *dataset_lines(rows),
    ]
    if any(row.basis == "estimated" for row in rows):
        lines += ["", "~: estimated from some of the documents, until the index is built"]
    return lines


_LONG = {"split": "split", "truncate": "truncated", "drop": "dropped"}
