"""Parquet files, read by their row groups."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from zindex.errors import ConfigError, SourceError, StoreNotFoundError, StoreUnreadableError
from zindex.formats.damage import Damage
from zindex.sources.chunks import read_chunks
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.file_list import SourceFile, list_files
from zindex.sources.part_grid import PartGrid
from zindex.store.objects import ObjectPath

# Rows that are made objects at a time.
_NUM_ROWS = 1024
_WHOLE = 1 << 62


class ParquetFiles:
    """Files of Parquet: here, or in an object store, from where a file is fetched whole.

    Parameters
    ----------
    path
        Files, folders and brace patterns: one string with commas between them, or a list. Folders
        are searched for names that end in ``.parquet``.
    columns
        Columns to read; None: all.
    on_damage
        ``"error"``: a file that is no Parquet, or row groups that cannot be read, are an error.
        ``"skip"``: they are left out, counted in ``num_skipped``, and logged once per file.

    Raises
    ------
    ConfigError
        If pyarrow is not installed, a scheme is refused, or a file is named twice.
    StoreNotFoundError
        If a file or folder is not there.
    SourceError
        If nothing is named at all, a file is damaged, or one has no such column.

    Notes
    -----
    A part is a row group of a local file, or a whole file of an object store. Samples are the rows
    as JSON objects would be, with null read as ``""``, ``__url__``, and ``__key__``: the number of
    the row in its file from 0.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        on_damage: OnDamage = "error",
    ) -> None:
        _parquet()
        self.damage = DamageLog("a file of Parquet", on_damage)
        self.columns = None if columns is None else list(columns)
        self._files = list_files(path, [".parquet"])
        self.urls: Sequence[str] = [file.url for file in self._files]
        #: Of each file, the rows and the stored bytes of its row groups; None: not asked.
        self._groups = [self._look(file) for file in self._files]
        counts = [1 if groups is None else len(groups) for groups in self._groups]
        self._starts = list(accumulate(counts, initial=0))

    def _look(self, file: SourceFile) -> list[tuple[int, int]] | None:
        """Return rows and bytes of the row groups of a local file."""
        if isinstance(file.place, ObjectPath):
            return None
        try:
            with _open(file) as opened:
                self._check_columns(opened.schema_arrow.names, file.url)
                groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
                return [(group.num_rows, group.total_byte_size) for group in groups]
        except Damage as damage:
            self.damage.report(file.url, damage, "such files")
            return []

    def _check_columns(self, names: Sequence[str], url: str) -> None:
        """Refuse a file without a column that is asked for."""
        for name in self.columns or ():
            if name not in names:
                raise SourceError(
                    f"{url} must have a column {name!r}, it has {', '.join(names) or 'none'}; name "
                    "the one with the text (--column)"
                )

    @property
    def num_parts(self) -> int:
        """Parts of all files."""
        return self._starts[-1]

    @property
    def num_skipped(self) -> int:
        """What was damaged and left out so far in this process."""
        return self.damage.num_skipped

    def _locate(self, part: int) -> tuple[int, int]:
        """Return the number of a part's file, and which of its row groups it is."""
        if not 0 <= part < self.num_parts:
            raise IndexError(f"a part must be in [0, {self.num_parts}), got {part}")
        number = bisect_right(self._starts, part) - 1
        return number, part - self._starts[number]

    def part_url(self, part: int) -> str:
        """Return the file that a part belongs to."""
        return self.urls[self._locate(part)[0]]

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        return range(self._starts[url_number], self._starts[url_number + 1])

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a row group before compression; None in object stores."""
        number, inner = self._locate(part)
        groups = self._groups[number]
        return None if groups is None else groups[inner][1]

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a part, in the order of its file.

        Raises
        ------
        SourceError
            If it is damaged, unless that is skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        number, inner = self._locate(part)
        file, groups = self._files[number], self._groups[number]
        try:
            with _open(file) as opened:
                self._check_columns(opened.schema_arrow.names, file.url)
                before = 0 if groups is None else sum(rows for rows, _ in groups[:inner])
                wanted = None if groups is None else [inner]
                for key, row in enumerate(_read_rows(opened, wanted, self.columns), before):
                    sample = {name: "" if item is None else item for name, item in row.items()}
                    yield sample | {"__url__": file.url, "__key__": str(key)}
        except Damage as damage:
            self.damage.report(file.url, damage, "the rest of this row group")

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files and their sizes."""
        return PartGrid(self._files, _WHOLE).fingerprint(kind="parquet")


@cache
def _parquet() -> Any:
    """Return the library that reads Parquet."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "reading Parquet needs the library pyarrow, which is not installed; install pyarrow"
        ) from error
    return pyarrow.parquet


def _open(file: SourceFile) -> Any:
    """Open a file; `Damage` if it is no Parquet."""
    import pyarrow

    source: Any = file.place
    if isinstance(source, ObjectPath):
        source = pyarrow.BufferReader(b"".join(read_chunks(file)))
    try:
        return _parquet().ParquetFile(source)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no file {file.url} any more; restore it") from None
    except PermissionError as error:
        raise StoreUnreadableError(
            f"{file.url} must be readable, the system refuses it: {error}; give the right to read"
        ) from error
    except (pyarrow.ArrowException, OSError) as error:
        raise Damage(_first_line(error), 0) from error


def _read_rows(
    opened: Any, groups: list[int] | None, columns: list[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of row groups as mappings; `Damage` where they cannot be read."""
    import pyarrow

    wanted = range(opened.metadata.num_row_groups) if groups is None else groups
    try:
        for batch in opened.iter_batches(
            _NUM_ROWS, row_groups=list(wanted), columns=columns, use_threads=False
        ):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise Damage(_first_line(error), 0) from error


def _first_line(error: Exception) -> str:
    """Return what a library says, as the end of a sentence."""
    lines = str(error).splitlines()
    return f"there is none: {lines[0] if lines else type(error).__name__}"
