"""Imported records as a stream, for process functions that make more or fewer samples of them."""

from collections.abc import Sequence

from zindex.sources.stored_records import PART_LENGTH, StoredRecords
from zindex.store.objects import PlaceLike
from zindex.streaming.files_dataset import FilesDataset, ProcessFn


class RecordIterableDataset(FilesDataset):
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

    def __init__(
        self,
        path: PlaceLike,
        process_fn: ProcessFn | None = None,
        *,
        fields: Sequence[str] | None = None,
        shuffle_buffer: int = 1000,
        part_length: int = PART_LENGTH,
    ) -> None:
        files = StoredRecords(path, fields=fields, part_length=part_length)
        super().__init__(files, process_fn, shuffle_buffer)
