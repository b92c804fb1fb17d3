"""Base class of keyed stores: keys, and spans of their values as tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, overload

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, MissingKeyError, NotLoadedError, SourceError
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.keyed.columns import Column, read_columns
from zindex.keyed.file_values import CopySpans
from zindex.store.record_reader import FieldReader

Keys = list[str] | tuple[str, ...]

# Records compared at a time.
_BLOCK = 1 << 20


class KeyedStore:
    """Token arrays by key, such as ``sequence`` and ``loss_mask``, over any number of shards.

    Subclasses implement ``_open``; `zindex.keyed.StoreFactory` creates stores by format name.

    Notes
    -----
    Fetched tensors are copies, so writing to them does not change a file. A store is pickled as the
    description of its files, so spawned processes read the same files without copying values.
    """

    #: The name of the format.
    format: ClassVar[str] = ""

    def __init__(self) -> None:
        self._columns: dict[str, Column] | None = None
        self._is_strict = True
        # Reads texts, bytes and JSON values, which no column has.
        self._texts: FieldReader | None = None
        self.path: Place | None = None
        self.fingerprint = ""
        #: Number of ids of the vocabulary of its tokens; None if the store does not know it.
        self.num_ids: int | None = None

    def load(self, path: PlaceLike, *, strict: bool = True) -> Self:
        """Describe the files at a path; values are read lazily.

        Parameters
        ----------
        path
            A file or folder of the format.
        strict
            Whether the keys must agree in every shard. False truncates all keys to the shortest,
            as AstrAI does; values at one position may then belong to different records.

        Returns
        -------
        store
            This store.

        Raises
        ------
        StoreNotFoundError
            If there are no files of the format.
        SourceError
            If files are damaged, or their keys do not agree.
        """
        place = place_of(path)
        columns, self.fingerprint = self._open(place, strict=strict)
        self._columns = dict(columns)
        self._is_strict = strict
        self.path = place
        return self

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        """Return the columns of the files at a path, and their fingerprint."""
        raise NotImplementedError(
            f"a keyed store must define _open, {type(self).__name__} does not; return the column "
            "of each key and a fingerprint, as zindex.keyed.ZarrStore does"
        )

    @property
    def is_loaded(self) -> bool:
        """Whether the store is loaded."""
        return self._columns is not None

    @property
    def keys(self) -> list[str]:
        """Sorted names of the arrays; empty before ``load``."""
        return sorted(self._columns or ())

    @property
    def text_keys(self) -> list[str]:
        """Sorted names of texts, bytes and JSON values, which h5 and bin files do not have."""
        return [] if self._texts is None else sorted(self._texts.fields)

    @property
    def num_text_records(self) -> int | None:
        """Records of texts; None if there are no texts."""
        return None if self._texts is None else len(self._texts)

    def read_texts(self, keys: Sequence[str], records: Int64Array) -> dict[str, list[Any]]:
        """Return the texts, bytes or JSON values of records, by key; None where one lacks them.

        Parameters
        ----------
        keys
            Of ``text_keys``.
        records
            Shape (records,), int64, in any order.
        """
        if not keys or self._texts is None:
            return {}
        rows = self._texts.read_many(records, keys)
        return {key: [row.get(key) for row in rows] for key in keys}

    @property
    def num_records(self) -> int | None:
        """Records, such as documents or pairs; None if their bounds are unknown."""
        counts = [column.num_records for column in (self._columns or {}).values()]
        known = [count for count in counts if count is not None]
        return min(known) if known and len(known) == len(counts) else None

    def __len__(self) -> int:
        """Return the values per key, of the shortest key if lengths differ, as in pairs."""
        return min((column.length for column in (self._columns or {}).values()), default=0)

    def __repr__(self) -> str:
        what = f"{self.path}, {len(self):,} values of {self.keys}" if self.is_loaded else "empty"
        return f"<{type(self).__name__} {what}>"

    def column(self, key: str) -> Column:
        """Return the column of a key.

        Raises
        ------
        NotLoadedError
            If the store is not loaded.
        MissingKeyError
            If it has no such key.
        """
        if self._columns is None:
            raise NotLoadedError("Store not loaded: call load(path) first")
        if key not in self._columns:
            raise MissingKeyError(
                f"a key must be among those of {self.path}, {self.keys}, got {key!r}; name one"
            )
        return self._columns[key]

    @overload
    def fetch(self, begin: int, end: int, keys: str) -> torch.Tensor: ...
    @overload
    def fetch(self, begin: int, end: int, keys: Keys) -> dict[str, torch.Tensor]: ...
    def fetch(
        self, begin: int, end: int, keys: str | Keys
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return values ``[begin, end)`` of one key or of several.

        Parameters
        ----------
        begin, end
            Values, counted over all shards: ``0 <= begin <= end <= len(self)``.
        keys
            A key, or several.

        Returns
        -------
        values
            Shape (end - begin,), in the dtype of the files: one tensor, or one for each key.

        Raises
        ------
        NotLoadedError
            If the store is not loaded.
        MissingKeyError
            If it has no such key.
        ConfigError
            If the range exceeds the store.
        SourceError
            If several keys differ in length.
        """
        names = [keys] if isinstance(keys, str) else list(keys)
        columns = {name: self.column(name) for name in names}
        self.check_lengths(names)
        length = min((column.length for column in columns.values()), default=0)
        if not 0 <= begin <= end <= length:
            raise ConfigError(
                f"Index out of bounds: begin={begin}, end={end}, length={length}; a range must lie "
                "within the store"
            )
        span = CopySpans(*(np.array([value], np.int64) for value in (begin, end, 0)))
        found = {name: np.empty(end - begin, column.dtype) for name, column in columns.items()}
        read_columns([column.read(span, found[name]) for name, column in columns.items()])
        tensors = {name: torch.from_numpy(values) for name, values in found.items()}
        return tensors[keys] if isinstance(keys, str) else tensors

    def check_lengths(self, keys: Sequence[str]) -> None:
        """Check that keys have one length, so that their values at a position belong together.

        Raises
        ------
        SourceError
            If they differ and the store was loaded with ``strict``.
        """
        lengths = {key: self.column(key).length for key in keys}
        if self._is_strict and len(set(lengths.values())) > 1:
            shown = ", ".join(f"{key} {length:,}" for key, length in lengths.items())
            raise SourceError(
                f"keys of {self.path} must have one length to be cut at the same places, got "
                f"{shown}; read them by record, or load the store with strict=False"
            )

    def check_records(self, keys: Sequence[str]) -> None:
        """Check that the records of keys have equal lengths.

        Equal totals do not imply it: two records of 3 and 2 values, and of 2 and 3. Keys with
        unknown record bounds are skipped.

        Raises
        ------
        SourceError
            If they differ and the store was loaded with ``strict``.
        """
        columns = [self.column(key) for key in keys]
        count = columns[0].num_records
        if not self._is_strict or count is None:
            return
        known = [column for column in columns if column.num_records == count]
        for start in range(0, count, _BLOCK):
            records = np.arange(start, min(start + _BLOCK, count))
            bounds = {item.key: item.record_offset(start, start + len(records)) for item in known}
            self.check_equal(records, {key: np.diff(found) for key, found in bounds.items()})

    def check_equal(self, records: Int64Array, lengths: Mapping[str, Int64Array]) -> None:
        """Check that several keys have equal lengths in each of some records.

        Raises
        ------
        SourceError
            If they differ.
        """
        (first, expected), *others = lengths.items()
        for key, found in others:
            wrong = np.flatnonzero(found != expected)
            if len(wrong):
                at = int(wrong[0])
                raise SourceError(
                    f"{first} and {key} of a record must be of one length, got {expected[at]:,} "
                    f"and {found[at]:,} in record {records[at]:,} of {self.path}; make it again"
                )


#: Public alias of `KeyedStore`.
Store = KeyedStore
