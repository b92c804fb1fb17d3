"""Files cut into parts: which part is where, and what identifies the whole."""

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from zindex.errors import ConfigError
from zindex.sources.damage_log import DamageLog
from zindex.sources.file_list import SourceFile


class PartGrid:
    """The parts of files: of those that may be cut, ranges of ``part_nbytes`` bytes.

    Parameters
    ----------
    files
        In order, at least one.
    part_nbytes
        Bytes of each part but the last of a file, > 0.

    Raises
    ------
    ConfigError
        If ``part_nbytes`` is not positive.
    """

    def __init__(self, files: Sequence[SourceFile], part_nbytes: int) -> None:
        if part_nbytes < 1:
            raise ConfigError(f"part_nbytes must be at least 1, got {part_nbytes}")
        self.files = files
        self.part_nbytes = part_nbytes
        counts = [
            max(1, -(-(file.nbytes or 0) // part_nbytes)) if file.is_cut else 1 for file in files
        ]
        #: First part of each file, and their sum at the end.
        self.starts = list(accumulate(counts, initial=0))

    @property
    def num_parts(self) -> int:
        """Parts of all files."""
        return self.starts[-1]

    def locate(self, part: int) -> tuple[int, int]:
        """Return the number of a part's file, and which part of that it is.

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
        """Return the bytes [start, stop) of a part; None: to the end of what cannot be cut."""
        number, inner = self.locate(part)
        file = self.files[number]
        if file.nbytes is None or not file.is_cut:
            return 0, file.nbytes
        start = inner * self.part_nbytes
        return start, min(start + self.part_nbytes, file.nbytes)

    def fingerprint(self, **settings: object) -> str:
        """Return the SHA-256 of the files' names below their common folder, their sizes, the grid.

        Parameters
        ----------
        settings
            What else decides the samples.
        """
        places = [str(file.place) for file in self.files]
        # Where they lie does not decide what is in them; the prefix of letters is cut at a slash.
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


class CutFiles:
    """Base of the sources of files: their parts, and how much was left out of them."""

    def __init__(self, files: Sequence[SourceFile], part_nbytes: int, damage: DamageLog) -> None:
        self.damage = damage
        self._grid = PartGrid(files, part_nbytes)
        self.urls: Sequence[str] = [file.url for file in files]

    @property
    def num_parts(self) -> int:
        """Parts of all files, >= 1."""
        return self._grid.num_parts

    @property
    def num_skipped(self) -> int:
        """What was damaged and left out so far in this process."""
        return self.damage.num_skipped

    def part_url(self, part: int) -> str:
        """Return the file that a part belongs to."""
        return self.urls[self._grid.locate(part)[0]]

    def url_parts(self, url_number: int) -> range:
        """Return the parts of one file, in its order."""
        return self._grid.parts_of(url_number)

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a part as they are stored; None in object stores."""
        start, stop = self._grid.bounds(part)
        return None if stop is None else stop - start
