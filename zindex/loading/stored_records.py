"""Records of ``zindex import``, part by part or in any order."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from zindex.errors import check_whole
from zindex.io.objects import PlaceLike
from zindex.sources.sample_files import SampleFiles
from zindex.sources.sample_offsets import SampleCount
from zindex.store.commit import fingerprint
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KIND

#: Default number of records per part.
PART_LENGTH = 4096
# Maximum records of a batched read, and their approximate bytes.
_MAX_ROUND, _ROUND_NBYTES = 64, 1 << 23


class StoredRecords(SampleFiles):
    """Records of ``zindex import``, with the interface of `JsonlFiles` and `TarFiles`.

    Parameters
    ----------
    path
        Path or URL of the store.
    fields
        Fields to read; None reads all.
    part_length
        Records per part; the last part of each imported file may have fewer.

    Raises
    ------
    ConfigError
        If the store lacks a field, or ``part_length`` is < 1.
    StoreNotFoundError
        If the store does not exist or is not committed.
    StoreError
        If it is not a store of records imported from files.
    """

    #: Damaged records were skipped by the import.
    num_skipped = 0

    def __init__(
        self,
        path: PlaceLike,
        *,
        fields: Sequence[str] | None = None,
        part_length: int = PART_LENGTH,
    ) -> None:
        self.part_length = check_whole("part_length", part_length, 1)
        self.store = open_store(path, kind=KIND)
        self._reader = RecordReader(self.store, fields)
        bounds = self._reader.url_bounds
        counts = [max(1, -(-(stop - start) // part_length)) for start, stop in pairwise(bounds)]
        super().__init__([*map(self._reader.name_url, range(len(counts)))], counts)
        nbytes = sum(layout.nbytes for layout in self.store.layouts.values())
        fitting = _ROUND_NBYTES * len(self) // max(1, nbytes)
        self._round = max(1, min(_MAX_ROUND, fitting))

    def __len__(self) -> int:
        return self._reader.num_records

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the records of a part, in the order of its file.

        Raises
        ------
        VerificationError
            If bytes fail their checksum.
        StoreUnavailableError, StoreUnreadableError
            If they cannot be read.
        """
        number, inner = self.locate(part)
        first, stop = self._reader.url_bounds[number : number + 2]
        first += inner * self.part_length
        stop = min(stop, first + self.part_length)
        for start in range(first, stop, self._round):
            yield from self._reader.read_many(range(start, min(start + self._round, stop)))

    def find_samples(self) -> SampleCount:
        """Return the number of records and their bytes."""
        nbytes = sum(layout.nbytes for layout in self.store.layouts.values())
        return SampleCount(len(self), nbytes)

    def read_samples(self, ranges: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return records; see `SampleFiles.read_samples`."""
        numbers = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        return self._reader.read_many(numbers)

    def parse_samples(self, raws: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield records, which have been parsed."""
        yield from raws

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the store's content and the grid of parts."""
        return fingerprint({"store": self.store.fingerprint, "part_length": self.part_length})
