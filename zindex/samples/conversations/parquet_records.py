"""Records of Parquet files by number."""

import os
from collections.abc import Sequence
from typing import Any

from zindex.errors import SourceError, StoreNotFoundError
from zindex.samples.batch import resolve_positions
from zindex.sources.parquet_files import load_parquet


class ParquetRecords:
    """The rows of a Parquet file by number, in memory; reread after unpickling."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.isfile(path):
            raise StoreNotFoundError(f"{path} must be a file, there is none; check the path")
        parquet = load_parquet()
        try:
            self._table = parquet.read_table(path)
        except (ValueError, OSError) as error:
            raise SourceError(
                f"{path} must be a file of Parquet, but: {error}; write it again"
            ) from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read_many(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows as dicts."""
        if not len(indices):
            return []
        numbers, _ = resolve_positions(indices, len(self), self.path)
        # Arrow's take() would copy the whole table.
        return [self._table.slice(number, 1).to_pylist()[0] for number in numbers.tolist()]

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRecords, (self.path,)
