"""Files with one JSON object a line, read part by part."""

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

from zindex.errors import SourceError
from zindex.formats.damage import Damage
from zindex.formats.json_lines import MAX_LINE_NBYTES, cut_lines, loads, parse_object
from zindex.sources.chunks import LOCAL_NBYTES, local_chunks, open_local, read_chunks, read_local
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.file_list import list_files
from zindex.sources.part_grid import CutFiles

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonlFiles(CutFiles):
    """Files of JSON objects, one a line: plain or compressed, here or in an object store.

    Parameters
    ----------
    path
        Files, folders and brace patterns: one string with commas between them, or a list. Folders
        are searched for names that end in ``.jsonl``, or that and ``.gz``, ``.bz2``, ``.xz`` or
        ``.zst``.
    part_nbytes
        Bytes of a part. A plain local file is cut at every so many bytes, and a line belongs to
        the part in which it begins; other files are one part each.
    on_damage
        ``"error"``: a line that is no JSON object, a blank one included, is an error. ``"skip"``:
        it is left out, counted in ``num_skipped``, and logged once per file.

    Raises
    ------
    ConfigError
        If a setting or a scheme is refused, or a file is named twice.
    StoreNotFoundError
        If a file or folder is not there.
    SourceError
        If nothing is named at all.

    Notes
    -----
    Samples are the lines' objects with ``null`` at their top level read as ``""``, and with
    ``__url__``, the file, and ``__key__``, the number of the line in the file from 0; fields of
    these names in the file itself are replaced. To number the lines of a file's later parts, those
    before are counted, once in each process: for files of many GB that reads much, so cut those,
    or import them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        part_nbytes: int = 8 << 20,
        on_damage: OnDamage = "error",
    ) -> None:
        damage = DamageLog("lines of JSON objects", on_damage)
        super().__init__(list_files(path, [".jsonl"]), part_nbytes, damage)
        # Of each file, the line breaks before its parts, as far as they were counted.
        self._breaks: dict[int, dict[int, int]] = {}

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files, their sizes and the grid of parts."""
        return self._grid.fingerprint(kind="jsonl")

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the objects of a part, in the order of its file.

        Raises
        ------
        SourceError
            If a line is no JSON object, unless such lines are skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        url = self.part_url(part)
        try:
            start, stop, line = self._find_lines(part)
            with closing(self._chunks(part, start)) as chunks:
                for first, lines in cut_lines(chunks, start, stop):
                    if first == 0 and lines[0].startswith(_BYTE_ORDER_MARK):
                        lines[0] = lines[0][len(_BYTE_ORDER_MARK) :]
                    values, number, last = map(loads, lines), line - 1, line + len(lines) - 1
                    # Only a bad line ends the loop over values early: a good one costs little.
                    while number < last:
                        with suppress(ValueError, RecursionError):
                            for taken, sample in enumerate(values, number + 1):
                                if type(sample) is not dict:
                                    break
                                number = taken
                                if None in sample.values():
                                    _fill(sample)
                                sample["__url__"] = url
                                sample["__key__"] = str(number)
                                yield sample
                        if number < last:
                            number += 1
                            again = self._parse_again(url, lines, number - line, first, number)
                            if again is not None:
                                yield again
                    line = last + 1
                self._note_line(part, line)
        except Damage as damage:
            self.damage.report(url, damage, "the rest of this part")

    def _parse_again(
        self, url: str, lines: list[bytes], place: int, first: int, number: int
    ) -> dict[str, Any] | None:
        """Return the sample of a line that the fast parser refused; None: it is left out."""
        try:
            sample = parse_object(lines[place])
        except SourceError as error:
            # Each line before it ends in one more byte.
            offset = first + sum(map(len, lines[:place])) + place
            damage = Damage(f"(line {number + 1:,}) {error}", offset)
            self.damage.report(url, damage, "such lines")
            return None
        _fill(sample)
        sample.update(__url__=url, __key__=str(number))
        return sample

    def _note_line(self, part: int, line: int) -> None:
        """Remember the number of the line that the next part of a file begins with."""
        number, inner = self._grid.locate(part)
        if line:
            self._breaks.setdefault(number, {})[inner + 1] = line - 1

    def _find_lines(self, part: int) -> tuple[int, int | None, int]:
        """Return where a part's first line begins, where the next part is, and a line's number."""
        number, inner = self._grid.locate(part)
        if not self._grid.files[number].is_cut:
            return 0, None, 0
        start, stop = self._grid.bounds(part)
        line = self._count_breaks(number, inner) + (start > 0)
        return self._first_line(number, start), stop, line

    def _chunks(self, part: int, start: int) -> Generator[bytes, None, None]:
        """Return the content of a part's file from a byte on."""
        file = self._grid.files[self._grid.locate(part)[0]]
        return local_chunks(file, start) if file.is_cut else read_chunks(file)

    def _first_line(self, number: int, start: int) -> int:
        """Return where the first line begins at or after a byte: behind a line break."""
        if start == 0:
            return 0
        file = self._grid.files[number]
        at = start - 1
        with open_local(file) as descriptor:
            while chunk := read_local(file, descriptor, at, LOCAL_NBYTES):
                found = chunk.find(b"\n")
                if found >= 0:
                    return at + found + 1
                at += len(chunk)
                if at - start > MAX_LINE_NBYTES:
                    break
        return at

    def _count_breaks(self, number: int, inner: int) -> int:
        """Return the line breaks before the last byte before a part."""
        counts = self._breaks.setdefault(number, {})
        known = inner
        while known and known not in counts:
            known -= 1
        count, nbytes = counts.get(known, 0), self._grid.part_nbytes
        if known == inner:
            return count
        file = self._grid.files[number]
        with open_local(file) as descriptor:
            while known < inner:
                # A part's lines begin behind the last byte before it, which may be a line break.
                at, stop = max(0, known * nbytes - 1), (known + 1) * nbytes - 1
                while at < stop:
                    chunk = read_local(file, descriptor, at, min(LOCAL_NBYTES, stop - at))
                    if not chunk:
                        break
                    count += chunk.count(b"\n")
                    at += len(chunk)
                known += 1
                counts[known] = count
        return count


def _fill(sample: dict[str, Any]) -> None:
    """Put empty text in place of null, as upstream does."""
    for name, value in sample.items():
        if value is None:
            sample[name] = ""
