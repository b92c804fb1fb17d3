"""The records of an imported store as a torch dataset."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from zindex.errors import ConfigError, check_number
from zindex.io.objects import PlaceLike
from zindex.store.open import Store, open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KEY, KIND


class RecordDataset(torch.utils.data.Dataset[Any]):
    """Records of a store, imported by ``zindex import`` from tar or jsonl files, by number.

    Opening reads one small file; record files are opened lazily in the reading process. It pickles
    as its path and the store's description, and is fork-safe.

    Parameters
    ----------
    path
        Location of the store.
    fields
        Fields to read; None reads all.
    process_fn
        Converts records to items, as in the streaming datasets: it takes an iterator of records and
        yields as many items, in order. None returns records unchanged.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or it is not committed.
    StoreError
        If it is not a store of records.
    ConfigError
        If the store has no such field.

    Examples
    --------
    >>> dataset = RecordDataset("captions.zarr")  # doctest: +SKIP
    >>> dataset[-1]  # doctest: +SKIP
    {'jpg': b'...', 'txt': 'A red car.', '__key__': '000941', '__url__': 'shards/07.tar'}
    """

    def __init__(
        self,
        path: PlaceLike,
        *,
        fields: Sequence[str] | None = None,
        process_fn: Callable[[Iterator[dict[str, Any]]], Iterable[Any]] | None = None,
    ) -> None:
        super().__init__()
        self.store: Store = open_store(path, kind=KIND)
        self.process_fn = process_fn
        self._reader = RecordReader(self.store, fields)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that are read if present, besides key and file."""
        return self._reader.fields

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the records."""
        return self.store.fingerprint

    def __len__(self) -> int:
        return self._reader.num_records

    def __getitem__(self, index: int) -> Any:
        """Return one record, or the item that ``process_fn`` returns for it.

        Parameters
        ----------
        index
            Its number, from the end if negative.

        Returns
        -------
        record
            Its fields: bytes, text, JSON values, or arrays of numbers; its key as ``__key__`` and
            the name of its file as ``__url__``.

        Raises
        ------
        IndexError
            If there is no such record.
        VerificationError
            If its bytes fail their checksum.
        ConfigError
            If ``process_fn`` does not return exactly one item for it.
        """
        return self._process([self._reader.read(self._number(index))])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several records, read together: torch's DataLoader calls this.

        Parameters
        ----------
        indices
            Numbers, as of single records, in any order.
        """
        return self._process(self._reader.read_many([self._number(index) for index in indices]))

    def _process(self, records: list[dict[str, Any]]) -> list[Any]:
        """Return one item of ``process_fn`` per record, or the records."""
        if self.process_fn is None:
            return records
        count = len(records)
        keys = [record.get(KEY) for record in records]
        items = list(self.process_fn(iter(records)))
        if len(items) != count:
            raise ConfigError(
                "a process function of records by number must yield one item for each, "
                f"{self.process_fn!r} yields {len(items)} for {count}, of keys "
                f"{', '.join(map(repr, keys[:3]))}; let it pass on what it cannot use, or stream "
                "the records"
            )
        return items

    def _number(self, index: int) -> int:
        """Return the number of a record, counted from the start."""
        return check_number(index, len(self), "a record", self.store.root)
