"""Files whose samples are converted to records."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Self

from zindex.sources.sample_files import SampleFiles


class WrappedFiles(SampleFiles):
    """Base of sources that convert the samples of other files to records, in their order.

    A subclass defines ``convert``, and ``identity`` if settings determine its records. A record
    must not depend on its neighbours, because files may be split anywhere.

    Parameters
    ----------
    files
        The files.
    files_fingerprint
        Identifies the files, independent of their parts.
    """

    def __init__(self, files: SampleFiles, files_fingerprint: str) -> None:
        counts = [len(files.url_parts(number)) for number in range(len(files.urls))]
        super().__init__(files.urls, counts)
        self.files = files
        self._files_fingerprint = files_fingerprint
        #: Samples that this wrapper itself has skipped.
        self.num_refused = 0

    def convert(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records of samples, with their ``__url__`` and ``__key__``."""
        yield from samples

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the records, besides the files, as JSON values."""
        return {}

    @property
    def counts(self) -> dict[str, int]:
        """Counters of a subclass in this process, by attribute name of the store."""
        return {}

    def over(self, files: SampleFiles) -> Self:
        """Return the same wrapper over other files, such as files with known line numbers."""
        other = copy.copy(self)
        other.files = files
        return other

    @property
    def num_skipped(self) -> int:
        """Samples skipped so far in this process, by the files or by this wrapper."""
        return self.files.num_skipped + self.num_refused

    def part_nbytes(self, part: int) -> int | None:
        """Return the stored bytes of a part; None if that would take a request to a store."""
        return self.files.part_nbytes(part)

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the records of a part."""
        return self.convert(self.files.read_part(part))

    def fingerprint(self) -> str:
        """Return the identity of the files, independent of their parts."""
        return self._files_fingerprint
