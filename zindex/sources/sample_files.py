"""What every source of raw samples offers: files, cut into parts that are read one by one."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class SampleFiles(Protocol):
    """Files of raw samples, in a fixed order; see `JsonlFiles` and `TarFiles`.

    A part is a file, or a range of bytes of a large one: what one reader reads in one go. Parts
    follow from the files and ``part_nbytes`` alone, never from ranks or workers.
    """

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""
        ...

    @property
    def urls(self) -> Sequence[str]:
        """The files; one is named twice only where that was asked for."""
        ...

    @property
    def num_skipped(self) -> int:
        """Damaged samples, or rests of files, left out so far in this process."""
        ...

    def part_url(self, part: int) -> str:
        """Return the file that a part belongs to."""
        ...

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        ...

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a part as they are stored; None where nobody has asked a store."""
        ...

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of a part in file order, each with ``__url__`` and ``__key__``."""
        ...

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files, their sizes and the grid of parts."""
        ...
