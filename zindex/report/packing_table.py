"""What a run packs: documents into samples, with the padding that this leaves, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from zindex.building.index_store import find_index
from zindex.building.packing_sizes import (
    Basis,
    PackingSizes,
    measure_packing,
    read_packing_sizes,
)
from zindex.building.planning import PlannedPacking
from zindex.report.dataset_table import dataset_lines
from zindex.report.formatting import format_count, format_nbytes, format_share
from zindex.store.commit import StoreStatus

_HEADERS = (
    "split",
    "documents",
    "tokens",
    "wanted",
    "epochs",
    "samples",
    "padding",
    "to write",
    "shards",
)
# Documents that are packed to tell sizes, of all datasets together and of each at least.
_SAMPLE_LENGTH, _LEAST_LENGTH = 1 << 22, 1 << 14


@dataclass(frozen=True, slots=True)
class PackingRow:
    """One packed index of a run."""

    dataset: str
    #: Documents and tokens of the whole dataset.
    num_documents: int
    num_tokens: int
    split: str
    #: Documents and tokens of one epoch of the split.
    documents_per_epoch: int
    tokens_per_epoch: int
    #: Samples asked for; None means one epoch.
    num_requested: int | None
    max_documents: int
    long_documents: str
    #: Whether the next numbers are those of the index, computed without it, or an estimate.
    basis: Basis
    num_epochs: int
    #: Samples that all epochs give: at least the number asked for.
    num_samples: int
    #: Documents, or parts of long ones, that are in them.
    num_parts: int
    #: Share of the room of all samples that is padding.
    padding_share: float
    #: Bytes of values of the whole index.
    nbytes: int
    #: Bytes that are still to be written, counting finished shards as equally large.
    missing_nbytes: int
    num_shards: int
    num_done: int
    committed: bool


def make_packing_rows(
    items: Sequence[PlannedPacking], statuses: Sequence[StoreStatus], folder: str
) -> tuple[PackingRow, ...]:
    """Return the rows of a run's packed indices.

    Parameters
    ----------
    items, statuses
        The indices, and the state of each of them.
    folder
        Directory of the index stores.
    """
    length = max(_LEAST_LENGTH, _SAMPLE_LENGTH // max(1, len(items)))
    rows = []
    for item, status in zip(items, statuses, strict=True):
        store = find_index(item.store_plan(folder)) if status.committed else None
        sizes = (
            measure_packing(item.plan, item.source, length)
            if store is None
            else read_packing_sizes(store)
        )
        rows.append(_make_row(item, status, sizes))
    return tuple(rows)


def _make_row(item: PlannedPacking, status: StoreStatus, sizes: PackingSizes) -> PackingRow:
    """Return the row of one packed index."""
    plan = item.plan
    num_partitions = sizes.num_epochs * plan.partitions_per_epoch
    layouts = plan.layouts(num_partitions, sizes.num_samples, sizes.num_parts).stored
    nbytes = sum(layout.nbytes for layout in layouts)
    num_shards = sum(layout.num_shards for layout in layouts)
    num_missing = 0 if status.committed else max(0, num_shards - status.num_done)
    return PackingRow(
        dataset=item.dataset,
        num_documents=plan.source.num_sequences,
        num_tokens=plan.source.num_tokens,
        split=plan.split,
        documents_per_epoch=plan.num_documents,
        tokens_per_epoch=plan.tokens_per_epoch,
        num_requested=item.num_requested,
        max_documents=plan.rules.max_documents,
        long_documents=plan.rules.long_documents,
        basis=sizes.basis,
        num_epochs=sizes.num_epochs,
        num_samples=sizes.num_samples,
        num_parts=sizes.num_parts,
        padding_share=sizes.padding_share,
        nbytes=nbytes,
        missing_nbytes=nbytes * num_missing // max(1, num_shards),
        num_shards=num_shards,
        num_done=status.num_done,
        committed=status.committed,
    )


def packing_lines(rows: Sequence[PackingRow]) -> list[str]:
    """Return the rules, a header, a line per dataset, and below each its splits in columns."""
    first = rows[0]
    lines = [
        f"packed: at most {first.max_documents:,} documents in a sample, long documents "
        f"{_LONG[first.long_documents]}",
        "",
        *dataset_lines(rows, _HEADERS, _row_cells, text_columns=("split",)),
    ]
    if any(row.basis == "estimated" for row in rows):
        lines += ["", "~: estimated from some of the documents, until the index is built"]
    return lines


_LONG = {"split": "split", "truncate": "truncated", "drop": "dropped"}


def _row_cells(row: PackingRow) -> tuple[str, ...]:
    """Return one row's texts in the order of the headers."""
    mark = "~" if row.basis == "estimated" else ""
    return (
        row.split,
        format_count(row.documents_per_epoch),
        format_count(row.tokens_per_epoch),
        "all" if row.num_requested is None else format_count(row.num_requested),
        mark + format_count(row.num_epochs),
        mark + format_count(row.num_samples),
        mark + format_share(row.padding_share),
        mark + format_nbytes(row.missing_nbytes),
        "built" if row.committed else f"{row.num_done}/{mark}{row.num_shards}",
    )
