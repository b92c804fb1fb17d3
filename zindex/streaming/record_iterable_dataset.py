"""Stream the records of keyed stores, part by part."""

from collections.abc import Sequence

from zindex.io.objects import PlaceLike
from zindex.loading.stored_records import PART_LENGTH, StoredRecords
from zindex.processing.process_function import ProcessFn
from zindex.streaming.files_dataset import FilesDataset


class RecordIterableDataset(FilesDataset):
    """Records of an imported store, as a replacement for the files that they were imported from.

    Samples and process functions are the same as for `MetaDistributedWebDataset` and
    `JsonlIterableDataset` on those files. Seeking to a part takes constant time.

    Parameters
    ----------
    path
        Path or URL of a store written by ``zindex import``.
    process_fn
        As for `JsonlIterableDataset`.
    fields
        Fields to read; None reads all.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    part_length
        Records per part.

    Raises
    ------
    ConfigError
        If a setting is invalid, or the store has no such field.
    StoreNotFoundError
        If the store does not exist or is not committed.
    StoreError
        If it is not a store of records.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
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
