"""Files of raw samples: the protocol, their partition into parts, and wrappers that convert."""

import copy
import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, Self

from zindex.errors import ConfigError
from zindex.io.file_list import SourceFile
from zindex.sources.damage_log import DamageLog

#: A path, or several of them.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: Bytes of a part that holds any file.
WHOLE_FILE = 1 << 62


class SampleFiles(Protocol):
    """Files of raw samples, in a fixed order; see `JsonlFiles` and `TarFiles`.

    A part is the unit of reading: a file, or a range of bytes of a large one. Parts depend on the
    files and ``part_nbytes`` alone, never on ranks or workers.
    """

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""

    @property
    def urls(self) -> Sequence[str]:
        """The files; one is listed twice only if the user repeats its folder."""

    @property
    def num_skipped(self) -> int:
        """Damaged samples, or rests of files, skipped so far in this process."""

    def part_url(self, part: int) -> str:
        """Return the file of a part."""

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""

    def part_nbytes(self, part: int) -> int | None:
        """Return the stored bytes of a part; None if that would take a request to a store."""

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of a part in file order, each with ``__url__`` and ``__key__``."""

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files, their sizes and the grid of parts."""


class PartGrid:
    """The parts of files: byte ranges of files that can be split, and whole files.

    Parameters
    ----------
    files
        In order, at least one: `SourceFile`, or anything else for ``counts`` of parts alone.
    part_nbytes
        Bytes of each part but the last of a file, > 0.
    counts
        Parts of each file; None derives them from ``part_nbytes``.

    Raises
    ------
    ConfigError
        If ``part_nbytes`` is not positive.
    """

    def __init__(
        self, files: Sequence[Any], part_nbytes: int, counts: Sequence[int] | None = None
    ) -> None:
        if part_nbytes < 1:
            raise ConfigError(f"part_nbytes must be at least 1, got {part_nbytes}")
        self.files = files
        self.part_nbytes = part_nbytes
        if counts is None:
            sizes = [(file.nbytes or 0) if file.is_cut else 0 for file in files]
            counts = [max(1, -(-size // part_nbytes)) for size in sizes]
        #: First part of each file, then the total.
        self.starts = list(accumulate(counts, initial=0))

    @property
    def num_parts(self) -> int:
        """Parts of all files."""
        return self.starts[-1]

    def locate(self, part: int) -> tuple[int, int]:
        """Return the number of a part's file, and the number of the part in that file.

        Raises
        ------
        IndexError
            If there is no such part.
        """
        if not 0 <= part < self.num_parts:
            raise IndexError(f"a part must be in [0, {self.num_parts}), got {part}")
        number = bisect_right(self.starts, part) - 1
        return number, part - self.starts[number]

    def parts_of(self, number: int) -> range:
        """Return the parts of a file; IndexError if there is no such file."""
        if not 0 <= number < len(self.files):
            raise IndexError(f"a file must be in [0, {len(self.files)}), got {number}")
        return range(self.starts[number], self.starts[number + 1])

    def bounds(self, part: int) -> tuple[int, int | None]:
        """Return the bytes [start, stop) of a part; None: to the end of a file of unknown size."""
        number, inner = self.locate(part)
        file = self.files[number]
        if file.nbytes is None or not file.is_cut:
            return 0, file.nbytes
        start = inner * self.part_nbytes
        return start, min(start + self.part_nbytes, file.nbytes)

    def fingerprint(self, **settings: object) -> str:
        """Return the SHA-256 of the relative names of the files, their sizes, and the grid.

        Parameters
        ----------
        settings
            Further settings that decide the samples.
        """
        places = [str(file.place) for file in self.files]
        # Moved files are the same files. The common prefix of characters is trimmed to a folder.
        folder = os.path.commonprefix(places).rpartition("/")[0]  # noqa: RUF071
        facts = {
            "files": [
                [place[len(folder) :].lstrip("/"), file.nbytes]
                for place, file in zip(places, self.files, strict=True)
            ],
            "part_nbytes": self.part_nbytes,
            **settings,
        }
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class PartFiles:
    """Base of the sources of files: their parts, and their damage.

    Parameters
    ----------
    files, part_nbytes, counts
        See `PartGrid`.
    damage
        Where damage is reported.
    """

    #: Name of the format in the fingerprint.
    kind = ""

    def __init__(
        self,
        files: Sequence[SourceFile],
        part_nbytes: int,
        damage: DamageLog,
        counts: Sequence[int] | None = None,
    ) -> None:
        self.damage = damage
        self._grid = PartGrid(files, part_nbytes, counts)
        self.urls: Sequence[str] = [file.url for file in files]

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""
        return self._grid.num_parts

    @property
    def num_skipped(self) -> int:
        """Damage skipped so far in this process."""
        return self.damage.num_skipped

    def part_url(self, part: int) -> str:
        """Return the file of a part."""
        return self.urls[self._grid.locate(part)[0]]

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        return self._grid.parts_of(url_number)

    def part_nbytes(self, part: int) -> int | None:
        """Return the stored bytes of a part; None in object stores."""
        start, stop = self._grid.bounds(part)
        return None if stop is None else stop - start

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files, their sizes and the grid of parts."""
        return self._grid.fingerprint(kind=self.kind)


class WrappedFiles:
    """Base of sources that convert the samples of other files to records, in their order.

    A subclass has ``convert``, and ``identity`` if settings decide its records. A record must not
    depend on its neighbours, because files may be split anywhere.

    Parameters
    ----------
    files
        The files.
    files_fingerprint
        Identifies the files, independent of their parts.
    """

    def __init__(self, files: SampleFiles, files_fingerprint: str) -> None:
        self.files = files
        self._files_fingerprint = files_fingerprint
        #: Samples that this wrapper itself has skipped.
        self.num_refused = 0

    def convert(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the records of samples, with their ``__url__`` and ``__key__``."""
        yield from samples

    def identity(self) -> dict[str, Any]:
        """Return what decides the records, other than the files, as JSON values."""
        return {}

    @property
    def counts(self) -> dict[str, int]:
        """Counters of a subclass in this process, by the name of the store's attribute."""
        return {}

    def over(self, files: SampleFiles) -> Self:
        """Return the same wrapper over other files, such as files with known line numbers."""
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
        """Samples skipped so far in this process, by the files or by this wrapper."""
        return self.files.num_skipped + self.num_refused

    def part_url(self, part: int) -> str:
        """Return the file of a part."""
        return self.files.part_url(part)

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        return self.files.url_parts(url_number)

    def part_nbytes(self, part: int) -> int | None:
        """Return the stored bytes of a part; None if that would take a request to a store."""
        return self.files.part_nbytes(part)

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the records of a part."""
        return self.convert(self.files.read_part(part))

    def fingerprint(self) -> str:
        """Return what identifies the files, independent of their parts."""
        return self._files_fingerprint
