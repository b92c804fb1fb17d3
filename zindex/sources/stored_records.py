"""The records of an imported store as a source: parts are found at once, and read in rounds."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from zindex.errors import ConfigError
from zindex.store.identity import fingerprint
from zindex.store.objects import PlaceLike
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KIND

#: Records of a part by default.
PART_LENGTH = 4096
# Records of one round, and the bytes that they should have at most together.
_MAX_ROUND, _ROUND_NBYTES = 64, 1 << 23


class StoredRecords:
    """Records that ``zindex import`` stored, as `JsonlFiles` and `TarFiles` give them.

    Parameters
    ----------
    path
        Place of the store.
    fields
        Fields to read; None: all.
    part_length
        Records of a part; the last part of each file that was imported may have fewer.

    Raises
    ------
    ConfigError
        If the store has no such field, or a part is to have no record.
    StoreNotFoundError
        If nothing is there, or it is not committed.
    StoreError
        If it is no store of records of files.
    """

    #: Damage was left out when the records were imported.
    num_skipped = 0

    def __init__(
        self,
        path: PlaceLike,
        *,
        fields: Sequence[str] | None = None,
        part_length: int = PART_LENGTH,
    ) -> None:
        if part_length < 1:
            raise ConfigError(f"part_length must be at least 1, got {part_length}")
        self.store = open_store(path, kind=KIND)
        self.part_length = part_length
        self._reader = RecordReader(self.store, fields)
        counts = (
            max(1, -(-(stop - start) // part_length))
            for start, stop in zip(
                self._reader.url_bounds[:-1], self._reader.url_bounds[1:], strict=True
            )
        )
        self._starts = list(accumulate(counts, initial=0))
        nbytes = sum(layout.nbytes for layout in self.store.layouts.values())
        fitting = _ROUND_NBYTES * len(self) // max(1, nbytes)
        self._round = max(1, min(_MAX_ROUND, fitting))

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""
        return self._starts[-1]

    @property
    def urls(self) -> Sequence[str]:
        """The files that were imported."""
        return [self._reader.name_url(number) for number in range(len(self._starts) - 1)]

    def __len__(self) -> int:
        return self._reader.num_records

    def part_url(self, part: int) -> str:
        """Return the file that a part belongs to."""
        return self._reader.name_url(self._locate(part)[0])

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        if not 0 <= url_number < len(self._starts) - 1:
            raise IndexError(f"a file must be in [0, {len(self._starts) - 1}), got {url_number}")
        return range(self._starts[url_number], self._starts[url_number + 1])

    def part_nbytes(self, part: int) -> int | None:
        """Return None: a part's bytes lie in several arrays."""
        return None

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the records of a part, in the order of its file.

        Raises
        ------
        VerificationError
            If bytes fail their checksum.
        StoreUnavailableError, StoreUnreadableError
            If they cannot be read.
        """
        number, inner = self._locate(part)
        first, stop = self._reader.url_bounds[number : number + 2]
        first += inner * self.part_length
        stop = min(stop, first + self.part_length)
        for start in range(first, stop, self._round):
            yield from self._reader.read_many(range(start, min(start + self._round, stop)))

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of what decides the records, and of the grid of parts."""
        return fingerprint({"store": self.store.fingerprint, "part_length": self.part_length})

    def _locate(self, part: int) -> tuple[int, int]:
        """Return the number of a part's file, and which part of that it is."""
        if not 0 <= part < self.num_parts:
            raise IndexError(f"a part must be in [0, {self.num_parts}), got {part}")
        number = bisect_right(self._starts, part) - 1
        return number, part - self._starts[number]
