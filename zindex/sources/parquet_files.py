"""Read Parquet files, one row group at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from zindex.errors import SourceError, StoreNotFoundError, StoreUnreadableError
from zindex.io.decompression import DamageError
from zindex.io.file_chunks import read_chunks
from zindex.io.file_list import SourceFile, list_files
from zindex.io.objects import ObjectPath
from zindex.lazy import need
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.part_files import PartFiles
from zindex.sources.sample_files import WHOLE_FILE, Paths

# Rows that are converted to objects at a time.
_NUM_ROWS = 1024


class ParquetFiles(PartFiles):
    """Parquet files: local, or in an object store, from which files are fetched whole.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas in one string or as a list. Folders
        are searched for names with the suffix ``.parquet``.
    columns, optional_columns
        Columns to read, and those to read where a file has them; None reads all.
    on_damage
        ``"error"``: a file that is not Parquet, or an unreadable row group, is an error.
        ``"skip"``: it is skipped, counted in ``num_skipped``, and logged once per file.

    Raises
    ------
    ConfigError
        If pyarrow is not installed, a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder is missing.
    SourceError
        If there are no files, a file is damaged, or one lacks a column.

    Notes
    -----
    A part is a row group of a local file, or a whole file of an object store. Samples are the rows
    as JSON objects, with null read as ``""``, ``__url__``, and ``__key__``: the number of the row
    in its file from 0.
    """

    kind = "parquet"

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        optional_columns: Sequence[str] = (),
        on_damage: OnDamage = "error",
    ) -> None:
        load_parquet()
        self.damage = DamageLog("a file of Parquet", on_damage)
        self.columns = None if columns is None else list(columns)
        self.optional_columns = list(optional_columns)
        files = list_files(path, [".parquet"])
        #: By file: the rows and stored bytes of each row group; None if that would take a request.
        self._groups = [self._look(file) for file in files]
        counts = [1 if groups is None else len(groups) for groups in self._groups]
        super().__init__(files, WHOLE_FILE, self.damage, counts)

    def _look(self, file: SourceFile) -> list[tuple[int, int]] | None:
        """Return rows and bytes of the row groups of a local file."""
        if isinstance(file.place, ObjectPath):
            return None
        try:
            with _open(file) as opened:
                self._check_columns(opened.schema_arrow.names, file.url)
                groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
                return [(group.num_rows, group.total_byte_size) for group in groups]
        except DamageError as damage:
            self.damage.report(file.url, damage, "such files")
            return []

    def _check_columns(self, names: Sequence[str], url: str) -> None:
        """Raise if a file lacks one of the columns to read."""
        for name in self.columns or ():
            if name not in names:
                raise SourceError(
                    f"{url} must have a column {name!r}, it has {', '.join(names) or 'none'}; name "
                    "the one with the text as column (--column)"
                )

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a row group before compression; None in object stores."""
        number, inner = self.locate(part)
        groups = self._groups[number]
        return None if groups is None else groups[inner][1]

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of a part, in the order of its file.

        Raises
        ------
        SourceError
            If it is damaged, unless damage is skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        number, inner = self.locate(part)
        file, groups = self._files[number], self._groups[number]
        try:
            with _open(file) as opened:
                names = opened.schema_arrow.names
                self._check_columns(names, file.url)
                columns = self.columns
                if columns is not None:
                    others = {*self.optional_columns} & {*names} - {*columns}
                    columns = [*columns, *sorted(others)]
                before = 0 if groups is None else sum(rows for rows, _ in groups[:inner])
                wanted = [inner] if groups is not None else [*range(opened.num_row_groups)]
                batches = opened.iter_batches(
                    _NUM_ROWS, row_groups=wanted, columns=columns, use_threads=False
                )
                rows = chain.from_iterable(batch.to_pylist() for batch in batches)
                for key, row in enumerate(rows, before):
                    sample = {name: "" if item is None else item for name, item in row.items()}
                    yield sample | {"__url__": file.url, "__key__": str(key)}
        except DamageError as damage:
            self.damage.report(file.url, damage, "the rest of this row group")


def load_parquet() -> Any:
    """Import pyarrow's Parquet reader; ConfigError without pyarrow."""
    return need("pyarrow.parquet", "reading Parquet")


@contextmanager
def _open(file: SourceFile) -> Iterator[Any]:
    """Open a file for a block; `DamageError` if it is not Parquet or cannot be read there."""
    import pyarrow

    source: Any = file.place
    if isinstance(source, ObjectPath):
        source = pyarrow.BufferReader(b"".join(read_chunks(file)))
    try:
        with load_parquet().ParquetFile(source) as opened:
            yield opened
    except FileNotFoundError:
        raise StoreNotFoundError(f"no file {file.url} any more; restore it") from None
    except PermissionError as error:
        raise StoreUnreadableError(
            f"{file.url} must be readable, the system refuses it: {error}; give the right to read"
        ) from error
    except (pyarrow.ArrowException, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DamageError(f"there is none: {reason}", 0) from error
