"""Table of the indices of a run: a line per dataset, followed by a row per split."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from zindex.inspection.tables.blend_table import StoreSize, largest_rows, size_fields
from zindex.inspection.tables.formatting import format_count, format_nbytes, table_lines
from zindex.store.commit import StoreStatus
from zindex.wording import count_noun


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow(StoreSize):
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

    @property
    def mark(self) -> str:
        """Prefix of estimated sizes."""
        return ""

    def to_cells(self) -> dict[str, str]:
        """Return the cells by header; cells that only other kinds of rows have are empty."""
        mark = self.mark
        return {
            "split": self.split,
            "documents": format_count(self.documents_per_epoch),
            "tokens": format_count(self.tokens_per_epoch),
            "wanted": "all" if self.num_requested is None else format_count(self.num_requested),
            "epochs": mark + format_count(self.num_epochs),
            "last epoch": "",
            "samples": mark + format_count(self.num_samples),
            "padding": "",
            "to write": mark + format_nbytes(self.missing_nbytes),
            "shards": "built" if self.committed else f"{self.num_done}/{mark}{self.num_shards}",
        }


def index_fields(
    item: Any, status: StoreStatus, nbytes: int, num_shards: int, tokens_per_epoch: int, sizes: Any
) -> dict[str, Any]:
    """Return the fields of an `IndexRow`.

    Parameters
    ----------
    item, status
        A planned index, and the status of its store.
    nbytes, num_shards
        Size of the whole store.
    sizes
        ``tokens_per_epoch``, ``num_epochs`` and ``num_samples``.
    """
    plan = item.plan
    return {
        "dataset": item.dataset,
        "num_documents": plan.source.num_sequences,
        "num_tokens": plan.source.num_tokens,
        "split": plan.split,
        "documents_per_epoch": plan.num_documents,
        "tokens_per_epoch": tokens_per_epoch,
        "num_requested": item.num_requested,
        "num_epochs": sizes.num_epochs,
        "num_samples": sizes.num_samples,
        **size_fields(nbytes, num_shards, status),
    }


def dataset_lines(rows: Sequence[IndexRow]) -> list[str]:
    """Format a line per dataset followed by its rows, in aligned columns with a header.

    Parameters
    ----------
    rows
        Grouped by dataset. Of many datasets, the largest are shown.
    """
    by_dataset = [list(group) for _, group in groupby(rows, key=lambda row: row.dataset)]
    shown = [by_dataset[i] for i in largest_rows([group[0].num_tokens for group in by_dataset])]
    cells = [row.to_cells() for group in shown for row in group]
    texts = table_lines(cells, text_columns=("split", "last epoch"))
    lines, remaining = texts[:1], iter(texts[1:])
    for group in shown:
        first = group[0]
        documents = count_noun(
            first.num_documents, "document", shown=format_count(first.num_documents)
        )
        tokens = count_noun(first.num_tokens, "token", shown=format_count(first.num_tokens))
        lines.append(f"{first.dataset}: {documents}, {tokens}")
        lines += islice(remaining, len(group))
    if len(shown) < len(by_dataset):
        datasets = count_noun(len(by_dataset) - len(shown), "smaller dataset")
        indices = count_noun(len(rows) - len(cells), "index", "indices")
        lines.append(f"and {datasets} with {indices}; --json lists all")
    return lines
