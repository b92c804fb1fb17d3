"""Table of the indices of a run: a line per dataset, followed by a row per split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, TypeVar

from zindex.inspection.tables.blend_table import largest_rows, missing_nbytes
from zindex.inspection.tables.formatting import align_columns, format_count
from zindex.store.commit import StoreStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One index of a run."""

    dataset: str
    #: Documents and tokens of the whole dataset.
    num_documents: int
    num_tokens: int
    split: str
    #: Documents and tokens of one epoch of the split.
    documents_per_epoch: int
    tokens_per_epoch: int
    #: Requested samples; None means one epoch.
    num_requested: int | None
    num_epochs: int
    #: Samples of all epochs: at least the requested number.
    num_samples: int
    #: Bytes of values of the whole index.
    nbytes: int
    #: Bytes still to write, with all shards counted as equally large.
    missing_nbytes: int
    num_shards: int
    num_done: int
    committed: bool


RowT = TypeVar("RowT", bound=IndexRow)


def index_fields(item: Any, status: StoreStatus, **sizes: int) -> dict[str, Any]:
    """Return the fields of an `IndexRow`.

    Parameters
    ----------
    item, status
        A planned index, and the status of its store.
    sizes
        ``tokens_per_epoch``, ``num_epochs``, ``num_samples``, ``nbytes`` and ``num_shards``.
    """
    plan = item.plan
    return sizes | {
        "dataset": item.dataset,
        "num_documents": plan.source.num_sequences,
        "num_tokens": plan.source.num_tokens,
        "split": plan.split,
        "documents_per_epoch": plan.num_documents,
        "num_requested": item.num_requested,
        "missing_nbytes": missing_nbytes(sizes["nbytes"], sizes["num_shards"], status),
        "num_done": status.num_done,
        "committed": status.committed,
    }


def dataset_lines(
    rows: Sequence[RowT],
    headers: Sequence[str],
    cells_of: Callable[[RowT], Sequence[str]],
    *,
    text_columns: Sequence[str],
) -> list[str]:
    """Return the header, and a line per dataset followed by its rows in aligned columns.

    Parameters
    ----------
    rows
        Grouped by dataset. Of many datasets, the largest are shown.
    headers
        Names of the columns.
    cells_of
        Returns the cells of a row in the order of the headers.
    text_columns
        Headers of text columns.
    """
    by_dataset = [list(group) for _, group in groupby(rows, key=lambda row: row.dataset)]
    shown = [by_dataset[i] for i in largest_rows([group[0].num_tokens for group in by_dataset])]
    cells = [cells_of(row) for group in shown for row in group]
    header, *texts = align_columns([headers, *cells], text_columns=text_columns)
    lines, remaining = [header], iter(texts)
    for group in shown:
        documents = format_count(group[0].num_documents)
        tokens = format_count(group[0].num_tokens)
        lines.append(f"{group[0].dataset}: {documents} documents, {tokens} tokens")
        lines += islice(remaining, len(group))
    if len(shown) < len(by_dataset):
        num_rows = len(rows) - len(texts)
        lines.append(
            f"and {len(by_dataset) - len(shown):,} smaller datasets with {num_rows:,} indices; "
            "--json lists all"
        )
    return lines
