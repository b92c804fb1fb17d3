"""Files whose records are made of the samples of other files, part by part."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from zindex.sources.sample_files import SampleFiles


class WrappedFiles:
    """Base of sources that make records of the samples of other files, in their order.

    A subclass has ``convert``, and ``identity`` where settings decide what it makes. What a record
    becomes must not depend on the records beside it, for files may be cut anywhere.

    Parameters
    ----------
    files
        The files.
    files_fingerprint
        What identifies them, however they are cut.
    """

    def __init__(self, files: SampleFiles, files_fingerprint: str) -> None:
        self.files = files
        self._files_fingerprint = files_fingerprint
        #: Samples that this wrapper itself has left out.
        self.num_refused = 0

    def convert(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records that samples make, with their ``__url__`` and ``__key__``."""
        yield from samples

    def identity(self) -> dict[str, Any]:
        """Return what decides the records beside the files, as JSON values."""
        return {}

    @property
    def counts(self) -> dict[str, int]:
        """Records that a subclass counts in this process, by the store's attribute for them."""
        return {}

    def over(self, files: SampleFiles) -> Self:
        """Return the same with other files below, such as those whose lines are counted."""
        other = copy.copy(self)
        other.files = files
        return other

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""
        return self.files.num_parts

    @property
    def urls(self) -> Sequence[str]:
        """The files."""
        return self.files.urls

    @property
    def num_skipped(self) -> int:
        """Samples left out so far in this process, by the files or by this wrapper."""
        return self.files.num_skipped + self.num_refused

    def part_url(self, part: int) -> str:
        """Return the file that a part belongs to."""
        return self.files.part_url(part)

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        return self.files.url_parts(url_number)

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a part as they are stored; None where nobody has asked a store."""
        return self.files.part_nbytes(part)

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the records of a part."""
        return self.convert(self.files.read_part(part))

    def fingerprint(self) -> str:
        """Return what identifies the files, however they are cut."""
        return self._files_fingerprint
