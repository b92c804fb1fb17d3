"""A table of a run's indices: a line per dataset, and below it a row for each of its splits."""

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Protocol, TypeVar

from zindex.report.blend_table import largest_rows
from zindex.report.formatting import align_columns, format_count


class DatasetRow(Protocol):
    """What a row tells of its dataset."""

    @property
    def dataset(self) -> str:
        """Its path."""

    @property
    def num_documents(self) -> int:
        """Documents of the whole dataset."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole dataset."""


RowT = TypeVar("RowT", bound=DatasetRow)


def dataset_lines(
    rows: Sequence[RowT],
    headers: Sequence[str],
    cells_of: Callable[[RowT], Sequence[str]],
    *,
    text_columns: Sequence[str],
) -> list[str]:
    """Return the header, a line per dataset, and below each its rows in aligned columns.

    Parameters
    ----------
    rows
        Those of one dataset after those of another. Of many datasets the largest are shown.
    headers
        Names of the columns.
    cells_of
        Returns a row's texts in the order of the headers.
    text_columns
        Headers of the columns of words.
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
