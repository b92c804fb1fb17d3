"""Read files with one JSON object per line, part by part."""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import accumulate, count, pairwise, repeat
from typing import Any, NamedTuple, Self

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import SourceError
from zindex.formats.json_lines import (
    MAX_JOINED_NBYTES,
    MAX_LINE_NBYTES,
    Batch,
    cut_lines,
    hold_blank_end,
    loads,
    parse_lines,
    parse_object,
    parse_text,
    too_long,
)
from zindex.io.decompression import DamageError
from zindex.io.file_chunks import (
    LOCAL_NBYTES,
    local_chunks,
    open_local,
    read_at,
    read_chunks,
    read_local,
    search_content,
)
from zindex.io.file_list import SourceFile, list_files
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.file_scan import BLOCK_NBYTES, ContentDigest, FileScan, sum_blocks
from zindex.sources.opened_files import PREPARE_NBYTES
from zindex.sources.part_files import PartFiles
from zindex.sources.sample_blocks import AdjacentSamples, RawSamples
from zindex.sources.sample_files import Paths
from zindex.sources.sample_offsets import RawSample

# Bytes that are searched at a time: they stay in the cache of the processor.
_SEARCHED_NBYTES = 1 << 18
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _FileLabels(dict[int, dict[str, Any]]):
    """Fields of all samples of a file, by its number: common ones, and its URL."""

    def __init__(self, urls: Sequence[str], common: dict[str, Any]) -> None:
        super().__init__()
        self.urls, self.common = urls, common

    def __missing__(self, number: int) -> dict[str, Any]:
        # With a place for the key, so that a dict grows only once.
        found = self[number] = {"__url__": self.urls[number], "__key__": "", **self.common}
        return found


class _Lines(NamedTuple):
    """The lines of a part of a file."""

    nbytes: int
    #: Where they end.
    breaks: list[Int64Array]
    #: Whether the last one has ended.
    ends_line: bool
    #: Hashes of whole MiB at the start, and the content after them.
    sums: bytes
    content: bytes | memoryview

    @classmethod
    def find(cls, content: bytes | memoryview, *, hashes: bool) -> "_Lines":
        """Return the lines of a part, and perhaps hashes."""
        found, chars = list[Int64Array](), np.frombuffer(content, np.uint8)
        for start in range(0, len(chars), _SEARCHED_NBYTES):
            some = chars[start : start + _SEARCHED_NBYTES]
            found.append(np.flatnonzero(some == ord("\n")) + (start + 1))
        ends_line = not len(chars) or bool(chars[-1] == ord("\n"))
        hashed = len(content) - len(content) % BLOCK_NBYTES if hashes else 0
        sums = sum_blocks(content[:hashed])
        return cls(len(content), found, ends_line, sums, bytes(content[hashed:]))


class JsonlFiles(PartFiles):
    """Files of JSON objects, one per line: plain or compressed, local or in an object store.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas in one string or as a list. Folders
        are searched for names with the suffix ``.jsonl``, optionally followed by ``.gz``, ``.bz2``,
        ``.xz`` or ``.zst``.
    part_nbytes
        Bytes per part. A plain local file is split at multiples of this, and a line belongs to the
        part in which it starts; other files are one part each.
    on_damage
        ``"error"``: a line that is not a JSON object, such as a blank one before others, is an
        error. ``"skip"``: it is skipped, counted in ``num_skipped``, and logged once per file.
        Blank lines at the end of a file are ignored.
    prepare_nbytes
        Most stored bytes of compressed and remote files that are read in advance to find samples.

    Raises
    ------
    ConfigError
        If a setting or a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder is missing.
    SourceError
        If there are no files.

    Notes
    -----
    Samples are the lines' objects with ``null`` at their top level read as ``""``, and with
    ``__url__``, the file, and ``__key__``, the number of the line in the file from 0; fields of
    these names in the file itself are replaced. With ``orjson``, integers of more than 64 bits
    become floats, and of a name that an object repeats the last value is taken. To number the lines
    of a file's later parts, each process counts the lines before them once. For files of many GB
    that is slow: split the files, or import them.
    """

    kind = "jsonl"
    _has_lines = True

    def __init__(
        self,
        path: Paths,
        *,
        part_nbytes: int = 8 << 20,
        on_damage: OnDamage = "error",
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        damage, files = DamageLog("lines of JSON objects", on_damage), list_files(path, [".jsonl"])
        super().__init__(files, part_nbytes, damage, prepare_nbytes=prepare_nbytes)
        # By file and part: the line breaks before the last byte before the part, if known.
        self._breaks: dict[int, dict[int, int]] = {}
        # By file: the byte from which on a line break was searched for, and the byte after it.
        self._searched: dict[int, tuple[int, int]] = {}
        self._is_exact = False
        self._labels: _FileLabels | None = None

    def _reset(self, urls: list[str], files: list[SourceFile]) -> None:
        super()._reset(urls, files)
        self._breaks, self._searched, self._labels = {}, {}, None

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the objects of a part, in the order of its file.

        Raises
        ------
        SourceError
            If a line is not a JSON object, unless such lines are skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        url = self.part_url(part)
        parse: Callable[[bytes], Any] = parse_object if self._is_exact else loads
        try:
            chunks, start, stop, line = self._open_part(part)
            with closing(chunks):
                for first, lines in self._without_blank_end(part, cut_lines(chunks, start, stop)):
                    if first == 0 and lines[0].startswith(_BYTE_ORDER_MARK):
                        first = len(_BYTE_ORDER_MARK)
                        lines[0] = lines[0][first:]
                    values, number, last = map(parse, lines), line - 1, line + len(lines) - 1
                    # Only a bad line ends the loop over values early, so good lines are fast.
                    while number < last:
                        with suppress(ValueError, RecursionError):
                            for read, sample in enumerate(values, number + 1):
                                if type(sample) is not dict:
                                    break
                                number = read
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
                if line:
                    number, inner = self.locate(part)
                    self._breaks.setdefault(number, {})[inner + 1] = line - 1
        except DamageError as damage:
            self.damage.report(url, damage, "the rest of this part")

    def read_part_lines(self, part: int) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each line of a part in its file, from 0, and its bytes.

        Lines are not parsed; blank ones at the end of the file are left out.

        Raises
        ------
        SourceError
            If the rest of the file cannot be decompressed, unless damage is skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        try:
            chunks, start, stop, line = self._open_part(part)
            with closing(chunks):
                for first, lines in self._without_blank_end(part, cut_lines(chunks, start, stop)):
                    if first == 0:
                        lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                    yield from enumerate(lines, line)
                    line += len(lines)
        except DamageError as damage:
            self.damage.report(self.part_url(part), damage, "the rest of this part")

    def _without_blank_end(self, part: int, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the lines of a part without blank ones at the end of its file."""
        held = yield from hold_blank_end(batches)
        number, inner = self.locate(part)
        if held is None or inner + 1 == len(self.url_parts(number)):
            return
        # Blank lines at the end of a part are those of the file if the parts after it are blank.
        with closing(local_chunks(self._files[number], self.bounds(part)[1] or 0)) as rest:
            if any(chunk.strip() for chunk in rest):
                yield held

    def parse_samples(self, raws: Iterable[RawSample]) -> Iterator[dict[str, Any]]:
        """Yield the objects of lines; see `SampleFiles.parse_samples`."""
        urls, parse = self.urls, _parse_exactly if self._is_exact else loads
        broken = self._broken
        for number, row, line in raws:
            if broken and self._is_broken(number, row):
                continue
            try:
                sample = parse(line)
                if None in sample.values():
                    _fill(sample)
            except (ValueError, RecursionError, SourceError, AttributeError):
                sample = self._parse_row(number, row, bytes(line))
                if sample is None:
                    continue
            sample["__url__"] = urls[number]
            sample["__key__"] = str(row)
            yield sample

    parses_blocks = True

    def parse_together(
        self, raws: Iterable[RawSample], labels: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Return the objects of lines; see `SampleFiles.parse_together`."""
        if self._broken or self._is_exact:
            return None
        files: Iterable[int]
        rows: Iterable[int]
        samples: list[dict[str, Any]] | None
        if isinstance(raws, AdjacentSamples):
            files, rows, text = repeat(raws.file), count(raws.row), raws.text
            is_short = len(text) <= MAX_JOINED_NBYTES * len(raws)
            samples = parse_text(bytes(text), len(raws)) if is_short else parse_lines(raws.contents)
        elif isinstance(raws, RawSamples):
            files, rows, samples = raws.files, raws.rows, parse_lines(raws.contents)
        else:
            return None
        if samples is None:
            return None
        of_files = self._labels
        if of_files is None or of_files.common is not labels:
            of_files = self._labels = _FileLabels(self.urls, labels)
        try:
            for sample, number, key in zip(samples, files, map(str, rows), strict=False):
                if None in sample.values():
                    _fill(sample)
                sample.update(of_files[number])
                sample["__key__"] = key
        except AttributeError:  # it is no object
            return None
        return samples

    def _parse_row(self, number: int, row: int, line: bytes) -> dict[str, Any] | None:
        """Return the sample of a line that the fast parser rejected; None if it is skipped."""
        assert self._offsets is not None
        first = int(self._offsets.tables[number][row, 0])
        line = line.removesuffix(b"\n")
        if not first:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return self._parse_again(self.urls[number], [line], 0, first, row)

    def _scan(self, file: SourceFile) -> FileScan:
        """Return the offset of each line, without blank lines at the end and those too long."""
        found, at, ends_line = [np.zeros(1, np.int64)], 0, True
        digest = ContentDigest()
        report = self._report_to(file.url)
        find = partial(_Lines.find, hashes=file.frames is None)
        for part in search_content(file, find, report):
            found += [breaks + at for breaks in part.breaks]
            digest.add_sums(part.sums)
            digest.add(part.content)
            at, ends_line = at + part.nbytes, part.ends_line
        if not ends_line:
            found.append(np.array([at]))
        offsets = np.concatenate(found)
        while len(offsets) > 1:
            start, stop = offsets[-2:].tolist()
            steps = range(start, stop, _SEARCHED_NBYTES)
            some = (read_at(file, at, min(at + _SEARCHED_NBYTES, stop), report) for at in steps)
            if any(map(bytes.strip, some)):
                break
            offsets = offsets[:-1]
        long = np.flatnonzero(np.diff(offsets) > MAX_LINE_NBYTES)
        if len(long):
            damage = too_long(int(offsets[long[0]]))
            self.damage.report(file.url, damage, "that line and all after it")
            offsets = offsets[: long[0] + 1]
        return FileScan(offsets.reshape(-1, 1), digest.to_int(), not len(long))

    def _parse_again(
        self, url: str, lines: list[bytes], index: int, first: int, number: int
    ) -> dict[str, Any] | None:
        """Return the sample of a line that the fast parser rejected; None if it is skipped."""
        try:
            sample = parse_object(lines[index])
        except SourceError as error:
            # Each line before it ends in one more byte.
            offset = first + sum(map(len, lines[:index])) + index
            damage = DamageError(f"(line {number + 1:,}) {error}", offset)
            self.damage.report(url, damage, "such lines")
            return None
        _fill(sample)
        sample.update(__url__=url, __key__=str(number))
        return sample

    def _open_part(self, part: int) -> tuple[Generator[bytes, None, None], int, int | None, int]:
        """Return a part's content, the byte and number of its first line, and the part's end."""
        number, inner = self.locate(part)
        file = self._files[number]
        if not file.is_cut:
            return self.read_whole(number), 0, None, 0
        start, stop = self.bounds(part)
        line = self._count_breaks(number, inner) + (start > 0)
        start = self._first_line(number, start)
        return local_chunks(file, start), start, stop, line

    def _first_line(self, number: int, start: int) -> int:
        """Return the byte after the first line break at or after ``start - 1``."""
        if start == 0:
            return 0
        searched, found = self._searched.get(number, (0, 0))
        if searched <= start <= found:  # a line of several parts
            return found
        found = self._search_line(number, start)
        self._searched[number] = start, found
        return found

    def _search_line(self, number: int, start: int) -> int:
        at = start - 1
        with closing(local_chunks(self._files[number], at)) as chunks:
            for chunk in chunks:
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
        known = next(part for part in range(inner, -1, -1) if part in counts or not part)
        count = counts.get(known, 0)
        if known < inner:
            file, edges = self.part_edges(number)
            found = accumulate(count_breaks(file, edges[known : inner + 1]), initial=count)
            counts.update(enumerate(found, known))
            count = counts[inner]
        return count

    def part_edges(self, number: int) -> tuple[SourceFile, list[int]]:
        """Return a file and the byte offsets between which line breaks are counted.

        Consecutive edges enclose the ranges whose counts `with_breaks` needs, for each part of the
        file but the last. The last byte before a part may be a line break: the part then starts
        with a line.
        """
        nbytes, num_parts = self._step, len(self.url_parts(number))
        return self._files[number], [0, *(inner * nbytes - 1 for inner in range(1, num_parts))]

    def with_breaks(self, breaks: Mapping[int, Sequence[int]]) -> Self:
        """Return these files with known line numbers, parsed identically on every machine.

        Records then do not depend on the installed parser: integers keep all their digits.

        Parameters
        ----------
        breaks
            For each file that is split, the line breaks before the last byte before each part.
        """
        other = copy.copy(self)
        other._breaks = {number: dict(enumerate(counts)) for number, counts in breaks.items()}
        other._is_exact = True
        return other


def count_breaks(file: SourceFile, edges: Sequence[int]) -> list[int]:
    """Task: count the line breaks of a local file between consecutive edges."""
    counts = [0] * (len(edges) - 1)
    with open_local(file) as descriptor:
        for number, (at, stop) in enumerate(pairwise(edges)):
            while chunk := read_local(file, descriptor, at, min(LOCAL_NBYTES, stop - at)):
                counts[number] += chunk.count(b"\n")
                at += len(chunk)
    return counts


def read_lines(file: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their offsets, without blank ones at its end.

    A byte order mark is left out.

    Raises
    ------
    DamageError
        If the rest of it cannot be read.
    """
    with closing(read_chunks(file)) as chunks:
        for offset, lines in hold_blank_end(cut_lines(chunks)):
            if offset == 0 and lines[0].startswith(_BYTE_ORDER_MARK):
                offset = len(_BYTE_ORDER_MARK)
                lines[0] = lines[0][offset:]
            for line in lines:
                yield offset, line
                offset += len(line) + 1


def _parse_exactly(line: bytes | memoryview) -> dict[str, Any]:
    return parse_object(bytes(line))


def _fill(sample: dict[str, Any]) -> None:
    """Replace null by an empty text, as upstream does."""
    for name, value in sample.items():
        if value is None:
            sample[name] = ""
