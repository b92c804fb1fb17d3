"""Files of raw samples: their partition into parts, and reading samples in any order."""

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from zindex.arrays import Int64Array
from zindex.io.request_threads import DaemonPool
from zindex.sources.sample_offsets import SampleCount
from zindex.sources.sample_requests import SampleRequests

#: A path, or several of them.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: Part size that makes any file a single part.
WHOLE_FILE = 1 << 62


class SampleFiles(ABC):
    """Files of raw samples, in a fixed order; see `JsonlFiles` and `TarFiles`.

    A part is the unit of reading: a file, or a range of bytes of a large one. Parts are numbered in
    the order of the files, and depend only on these and ``part_nbytes``, never on ranks or workers.

    Parameters
    ----------
    urls
        The files, at least one; a file is only listed twice if the user repeats its folder.
    counts
        Parts of each file.
    """

    def __init__(self, urls: Sequence[str], counts: Iterable[int]) -> None:
        self.urls = urls
        # First part of each file, then the total.
        self._starts = list(accumulate(counts, initial=0))

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""
        return self._starts[-1]

    def locate(self, part: int) -> tuple[int, int]:
        """Return the number of a part's file, and the number of the part in that file.

        Raises
        ------
        IndexError
            If there is no such part.
        """
        if not 0 <= part < self.num_parts:
            raise IndexError(f"a part must be in [0, {self.num_parts}), got {part}")
        number = bisect_right(self._starts, part) - 1
        return number, part - self._starts[number]

    def part_url(self, part: int) -> str:
        """Return the file of a part."""
        return self.urls[self.locate(part)[0]]

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order; IndexError if there is no such file."""
        if not 0 <= url_number < len(self.urls):
            raise IndexError(f"a file must be in [0, {len(self.urls)}), got {url_number}")
        return range(self._starts[url_number], self._starts[url_number + 1])

    def part_nbytes(self, part: int) -> int | None:
        """Return the stored bytes of a part; None if that would take a request to a store."""
        return None

    def begin_files(self, numbers: Iterable[int]) -> None:  # noqa: B027
        """Request what `read_part` reads first of some files, if that takes long."""

    #: Whether `open_samples` reads only what is needed, so that units may share what it returns.
    reads_blocks = False

    def find_samples(self) -> SampleCount | None:
        """Return the number of samples, found once; None if they can only be read in order."""
        return None

    def read_samples(self, ranges: Iterable[tuple[int, int]]) -> Sequence[Any]:
        """Return samples of some ranges, without parsing them; see `parse_samples`.

        Parameters
        ----------
        ranges
            Ranges of numbers ``[start, stop)`` of samples, counted over all files.

        Raises
        ------
        SourceError
            If a file has changed.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If they cannot be read.
        """
        raise NotImplementedError

    def open_samples(
        self, ranges: Iterable[tuple[int, int]], order: Int64Array | None
    ) -> Sequence[Any]:
        """Return samples of ranges in an order, which may be read when they are first needed.

        Parameters
        ----------
        ranges
            As of `read_samples`, which has the errors, too.
        order
            Positions in the ranges; None for their order.
        """
        raws = self.read_samples(ranges)
        return raws if order is None else [raws[place] for place in order.tolist()]

    @property
    def is_slow_at_first(self) -> bool:
        """Whether a sample is there sooner if it is read alone: files are not copied yet."""
        return False

    #: Whether samples are read by `request_samples`, from an object store, not by the other two.
    is_requested = False

    def request_samples(
        self, ranges: Iterable[tuple[int, int]], order: Int64Array | None, threads: DaemonPool
    ) -> SampleRequests:
        """Return samples of ranges, in an order if it is not None, requested by threads.

        Errors are those of `read_samples`, when the samples are iterated over.
        """
        raise NotImplementedError

    def parse_samples(self, raws: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Yield samples with ``__url__`` and ``__key__``, without damaged ones that are skipped.

        Raises
        ------
        SourceError
            If one is damaged, unless damage is skipped.
        """
        raise NotImplementedError

    #: Whether `parse_together` may return samples.
    parses_blocks = False

    def parse_together(
        self, raws: Iterable[Any], labels: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Return the samples of `parse_samples` with further fields, none of which is damaged.

        None if one might be, or parsing them together is not faster: nothing is reported then.

        Parameters
        ----------
        raws
            Samples that have been read.
        labels
            Fields to add to each sample, which replace its own.
        """
        return None

    def parse_blocks(
        self, blocks: Iterable[Iterable[Any]], labels: dict[str, Any]
    ) -> Iterator[Sequence[dict[str, Any]]]:
        """Yield the samples of `parse_samples` with further fields, those of a block together.

        If that fails, they are yielded one by one; see `parse_together` for the parameters.
        """
        for raws in blocks:
            samples = self.parse_together(raws, labels)
            if samples is not None:
                yield samples
                continue
            for sample in self.parse_samples(raws):
                sample.update(labels)
                yield (sample,)

    def content(self) -> str:
        """Return a digest of content that `fingerprint` does not cover; empty if unknown."""
        return ""

    @property
    @abstractmethod
    def num_skipped(self) -> int:
        """Damaged samples, or truncated files, skipped so far in this process."""

    @abstractmethod
    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of a part in file order, each with ``__url__`` and ``__key__``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files, their sizes and the parts."""
