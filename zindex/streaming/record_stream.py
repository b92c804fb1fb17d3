"""Imported records as a stream, for process functions that make more or fewer samples of them."""

from collections.abc import Iterator, Sequence

from torch.utils.data import IterableDataset

from zindex.sources.stored_records import PART_LENGTH, StoredRecords
from zindex.store.objects import PlaceLike
from zindex.streaming.leaf_samples import (
    ProcessFn,
    Sample,
    check_leaf,
    own_parts,
    process,
    read_url,
)


class RecordIterableDataset(IterableDataset[Sample]):
    """The records of an imported store in place of the files that they are from.

    It gives the samples of `MetaDistributedWebDataset` and `JsonlIterableDataset` on those files,
    and takes the same process functions; a part is found at once, however large the files were.

    Parameters
    ----------
    path
        Place of the store that ``zindex import`` made.
    process_fn
        As of `JsonlIterableDataset`.
    fields
        Fields to read; None: all.
    shuffle_buffer
        Samples of a part among which `MergedDataset` draws the next; 0: files' own order.
    part_length
        Records of a part.

    Raises
    ------
    ConfigError
        If a setting is refused, or the store has no such field.
    StoreNotFoundError
        If nothing is there, or it is not committed.
    StoreError
        If it is no store of records.

    Notes
    -----
    Iterated by itself it gives its parts in order, shared between the workers of a DataLoader, and
    is neither shuffled nor resumed: that is what `MergedDataset` does.
    """

    #: Damage was left out when the records were imported.
    num_skipped = 0

    def __init__(
        self,
        path: PlaceLike,
        process_fn: ProcessFn | None = None,
        *,
        fields: Sequence[str] | None = None,
        shuffle_buffer: int = 1000,
        part_length: int = PART_LENGTH,
    ) -> None:
        check_leaf(process_fn, shuffle_buffer)
        self.files = StoredRecords(path, fields=fields, part_length=part_length)
        self.process_fn = process_fn
        self.shuffle_buffer = shuffle_buffer
        self.urls = list(self.files.urls)
        self.num_parts = self.files.num_parts

    def read_part(self, part: int) -> Iterator[Sample]:
        """Return the samples of a part; errors as of `StoredRecords.read_part`."""
        return process(self.files.read_part(part), self.process_fn)

    def read_url(self, number: int) -> Iterator[Sample]:
        """Return the samples of a file, with one call of the process function over them all."""
        return process(read_url(self.files, number), self.process_fn)

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of what decides the records, and of the grid of parts."""
        return self.files.fingerprint()

    def __iter__(self) -> Iterator[Sample]:
        for part in own_parts(self.num_parts):
            yield from self.read_part(part)
