"""Files of raw samples that are local, compressed or remote: read in parts, or in any order."""

import copy
import logging
import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, Self

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, SourceError, check_whole
from zindex.io.decompression import DamageError
from zindex.io.file_chunks import read_at, read_chunks
from zindex.io.file_list import SourceFile
from zindex.io.frames import ReportBroken
from zindex.io.objects import Place
from zindex.io.request_threads import DaemonPool
from zindex.sources.damage_log import DamageLog
from zindex.sources.descriptors import Descriptors
from zindex.sources.file_listing import (
    DIGEST_BITS,
    ListedFile,
    find_listed,
    join_names,
    parse_listing,
    relative_names,
    write_listing,
)
from zindex.sources.file_scan import FileScan
from zindex.sources.file_starts import FileStarts
from zindex.sources.offset_files import FRAMES, write_offsets
from zindex.sources.opened_files import (
    PREPARE_NBYTES,
    OpenedFiles,
    advance_nbytes,
    look_up_all,
    open_files,
    read_ends,
)
from zindex.sources.sample_blocks import AdjacentSamples, RawSamples, SampleBlocks, join_spans
from zindex.sources.sample_files import SampleFiles
from zindex.sources.sample_offsets import SampleOffsets, find_offsets
from zindex.sources.sample_requests import SampleRequests
from zindex.store.commit import fingerprint

logger = logging.getLogger(__name__)

# Folders in which files are looked for that may have been moved.
_MAX_FOLDERS = 8


class PartFiles(SampleFiles):
    """Base of the sources of files: byte ranges of files that can be split, and whole files.

    Parameters
    ----------
    files
        In order, at least one.
    part_nbytes
        Bytes of each part but the last of a file, > 0.
    damage
        Where damage is reported.
    counts
        Parts of each file; None derives them from ``part_nbytes``.
    prepare_nbytes
        Most stored bytes of compressed and remote files that are read in advance to find samples.

    Raises
    ------
    ConfigError
        If ``part_nbytes`` is not positive.
    """

    #: Name of the format in the fingerprint.
    kind = ""
    # Whether damaged files end after their last whole line.
    _has_lines = False

    def __init__(
        self,
        files: Sequence[SourceFile],
        part_nbytes: int,
        damage: DamageLog,
        counts: Sequence[int] | None = None,
        *,
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        self._files, self.damage = files, damage
        self._step = check_whole("part_nbytes (--part-nbytes)", part_nbytes, 1)
        counts = self._count_parts(files) if counts is None else counts
        super().__init__([file.url for file in files], counts)
        #: Further settings that determine the samples.
        self._settings: dict[str, Any] = {}
        self._prepare_nbytes = check_whole("prepare_nbytes", prepare_nbytes, 0)
        # The files with their sizes; empty if they are to be read in order.
        self._known: list[SourceFile] | None = None
        self._opened: OpenedFiles | None = None
        self._offsets: SampleOffsets | None = None
        self._descriptors = Descriptors(files)
        self._file_starts = FileStarts()
        self._ends: dict[Place, str] | None = None
        self._listing: str | None = None
        # Of files that were searched, also by a copy with other files: by place, version and size.
        self._scans: dict[tuple[Place, str, int | None], FileScan] = {}
        # By file: ranges of its content that broken frames have, and why they are broken.
        self._broken: dict[str, dict[tuple[int, int], str]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Offsets are found again, from the cache if the files are large.
        nothing = dict.fromkeys(("_offsets", "_opened"))
        again = {"_descriptors": Descriptors(self._files), "_scans": {}}
        return {**self.__dict__, **nothing, **again}

    def listing(self) -> str:
        """Return the list of the files with what they hold now; see `as_listed`."""
        if self._listing is None:
            names, files = relative_names(self._files), self._known or self._files
            sizes = [file.nbytes for file in files]
            self._listing = write_listing(map(ListedFile, names, sizes, self._digests()))
        return self._listing

    def names_and_sizes(self) -> str:
        """Return the list of the files without what they hold, which is not read for that."""
        names = relative_names(self._files)
        sizes = (file.nbytes for file in self._files)
        return write_listing(ListedFile(*one, None) for one in zip(names, sizes, strict=True))

    def _digests(self) -> list[int | None]:
        """Return the last bits of the digest of each file; None if it is not known."""
        found, mask = self.find_samples(), (1 << DIGEST_BITS) - 1
        if found is not None:
            return [scan.digest & mask for scan in found.scans]
        ends = self._read_ends()
        return [int(ends[one.place], 16) & mask if one.is_local else None for one in self._files]

    def _read_ends(self) -> dict[Place, str]:
        """Return a digest of both ends of each local file, read once."""
        if self._ends is None:
            self._ends = {one.place: read_ends(one) for one in self._files if one.is_local}
        return self._ends

    def as_listed(self, listing: str) -> Self:
        """Return the files of an earlier `listing`, as they were; damage is counted for both.

        Others may have been added, and content after that which a file had.

        Raises
        ------
        SourceError
            If files are missing, or have other content: the names of some, as the end of a
            sentence.
        """
        names = relative_names(self._files)
        listed, fault = parse_listing(listing, names), None
        if any(one.digest is not None for one in listed):
            self.find_samples()  # of which sizes of remote files are known
        for numbers in islice(find_listed(listed, names), _MAX_FOLDERS):
            try:
                return self._select(numbers, listed)
            except SourceError as error:
                fault = fault or error
        assert fault is not None
        raise fault

    def _select(self, numbers: Sequence[int], listed: Sequence[ListedFile]) -> Self:
        """Return some of the files, as they were listed."""
        known, files = self._known or self._files, list[SourceFile]()
        short = []
        for number, one in zip(numbers, listed, strict=True):
            file, nbytes = known[number], one.nbytes
            if nbytes is not None and file.nbytes is not None:
                short += [one.name] * (file.nbytes < nbytes)
                if file.nbytes > nbytes:
                    file = replace(file, nbytes=nbytes, full_nbytes=file.size)
            files.append(file)
        if short:
            raise SourceError(f"{join_names(short)} shorter than before")
        made = copy.copy(self)
        made._reset([self.urls[number] for number in numbers], files)
        wanted = [one.digest for one in listed]
        found = made._digests() if any(one is not None for one in wanted) else wanted
        pairs = zip(listed, found, strict=True)
        changed = [one.name for one, now in pairs if one.digest not in (None, now)]
        if changed:
            raise SourceError(f"{join_names(changed)} changed before its former end")
        return made

    def _reset(self, urls: list[str], files: list[SourceFile]) -> None:
        """Let this copy have other files."""
        self.urls, self._files = urls, files
        self._starts = list(accumulate(self._count_parts(files), initial=0))
        # How files are opened depends on all of them.
        self._known = self._opened = self._offsets = self._ends = self._listing = None
        self._descriptors, self._file_starts = Descriptors(files), FileStarts()

    def _count_parts(self, files: Sequence[SourceFile]) -> list[int]:
        """Return the parts of each file."""
        sizes = [(file.nbytes or 0) if file.is_cut else 0 for file in files]
        return [max(1, -(-size // self._step)) for size in sizes]

    @property
    def num_skipped(self) -> int:
        """Damage skipped so far in this process."""
        return self.damage.num_skipped

    def read_whole(self, number: int) -> Generator[bytes, None, None]:
        """Return the content of a file; a wrong checksum at its end is reported as damage."""
        report = partial(self.damage.report, self.urls[number], left_out=None)
        return read_chunks(self._files[number], report, self._file_starts.take(number))

    def begin_files(self, numbers: Iterable[int]) -> None:
        """Request the starts of files that are read in order next, in object stores."""
        files = {number: self._files[number] for number in numbers}
        if remote := {number: file for number, file in files.items() if not file.is_local}:
            self._file_starts.begin(remote)

    def bounds(self, part: int) -> tuple[int, int | None]:
        """Return the bytes [start, stop) of a part; None: to the end of a file of unknown size."""
        number, inner = self.locate(part)
        file = self._files[number]
        if file.nbytes is None or not file.is_cut:
            return 0, file.nbytes
        start = inner * self._step
        return start, min(start + self._step, file.nbytes)

    def find_samples(self) -> SampleOffsets | None:
        """Return where all samples start, found once.

        Returns
        -------
        offsets
            None if more bytes than ``prepare_nbytes`` would have to be read in advance.

        Raises
        ------
        SourceError
            If a file is damaged, unless damage is skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If a file cannot be read.
        StoreUnwritableError
            If there is no room for copies of compressed files.
        """
        if self._known is None:
            self._known = self._look_up()
        if self._offsets is None and self._known:
            opened = self._open(self._known)
            if self.damage.on_damage == "error":
                self._report_copied(opened)
            self._opened, self._descriptors = opened, Descriptors(opened.files)
            offsets = find_offsets(opened.files, self._scan, self._identify, self._scans)
            if self.damage.on_damage == "skip":
                self._report_copied(opened, offsets)
            self._offsets = offsets
        return self._offsets

    def write_offsets(self) -> list[str]:
        """Write the offsets of the samples of each file next to it, and return the files.

        Compressed files without frames, and damaged ones, have none.
        """
        offsets, written = self.find_samples(), list[str]()
        if offsets is None:
            raise ConfigError(
                f"{self.urls[0]} and the files after it must have at most prepare_nbytes bytes to "
                f"write the offsets of their samples, {self._prepare_nbytes:,}; raise it"
            )
        assert self._known is not None
        assert self._opened is not None
        for file, opened, scan in zip(self._known, self._opened.files, offsets.scans, strict=True):
            scans = {self._identify(opened): scan}
            if opened.frames is not None:
                scans[FRAMES] = FileScan(opened.frames.table, 0)
            elif file.compression is not None:
                continue
            if scan.is_whole and file.url not in written:
                write_offsets(file, scans)
                written.append(file.url)
        return written

    def _open(self, files: Sequence[SourceFile]) -> OpenedFiles:
        """Return files that can be read at any offset."""
        return open_files(files, whole_lines=self._has_lines)

    def _look_up(self) -> list[SourceFile]:
        """Return the files with their sizes; none if they are to be read in order."""
        if all(file.is_cut for file in self._files):
            return list(self._files)
        if not self._prepare_nbytes:
            return []
        known = look_up_all(self._files)
        nbytes = advance_nbytes(known, self._prepare_nbytes)
        if nbytes <= self._prepare_nbytes:
            return known
        logger.warning(
            "%s: samples are read in the order of the files, which are mixed less: %s bytes are "
            "compressed or in an object store, and only up to prepare_nbytes, %s, are read in "
            "advance to read samples in any order; raise it, or import them (zindex import)",
            *(self.urls[0], f"{nbytes:,}", f"{self._prepare_nbytes:,}"),
        )
        return []

    def _report_copied(self, opened: OpenedFiles, offsets: SampleOffsets | None = None) -> None:
        """Report the damage of compressed files, unless finding the samples has."""
        for number, damages in enumerate(opened.damages):
            for damage in damages:
                left_out = "the rest of it" if damage.is_end else None
                if not damage.is_end or offsets is None or offsets.scans[number].is_whole:
                    self.damage.report(self.urls[number], damage.to_error(), left_out)

    reads_blocks = True

    def read_samples(self, ranges: Iterable[tuple[int, int]]) -> RawSamples | AdjacentSamples:
        """Return the bytes of samples; see `SampleFiles.read_samples`."""
        spans = list[AdjacentSamples]()
        offsets = self._offsets
        assert offsets is not None
        for start, stop in ranges:
            for number, first, last in offsets.split(start, stop):
                ends = offsets.tables[number][first : last + 1, 0].tolist()
                base = ends[0]
                raw = np.empty(ends[-1] - base, np.uint8).data
                self._descriptors.read_into(number, base, raw, self._report_of)
                spans.append(AdjacentSamples(number, first, ends, raw, base))
        self._check_opened()
        return spans[0] if len(spans) == 1 else join_spans(spans)

    def open_samples(
        self, ranges: Iterable[tuple[int, int]], order: Int64Array | None
    ) -> RawSamples | AdjacentSamples | SampleBlocks:
        """Return the bytes of samples, each range read at once; see `SampleFiles.open_samples`."""
        assert self._offsets is not None
        ranges = list(ranges)
        if order is None and len(ranges) == 1:
            return self.read_samples(ranges)
        return SampleBlocks(self._offsets, ranges, order, self._read_into)

    def _read_into(self, number: int, offset: int, view: memoryview) -> None:
        """Read bytes of an unchanged file."""
        self._descriptors.read_into(number, offset, view, self._report_of)
        self._check_opened()

    def _report_of(self, number: int) -> ReportBroken:
        return self._report_to(self.urls[number])

    def _report_to(self, url: str) -> ReportBroken:
        """Return a function that notes broken frames of a file for `_is_broken`."""

        def note(reason: str, start: int, stop: int) -> None:
            if self.damage.on_damage == "error":
                self.damage.report(url, DamageError(reason, start), "the samples there")
            self._broken.setdefault(url, {})[start, stop] = reason

        return note

    def _is_broken(self, number: int, row: int) -> bool:
        """Report a sample that has bytes of a broken frame; return whether it has."""
        assert self._offsets is not None
        url, (start, stop) = self.urls[number], self._offsets.tables[number][row : row + 2, 0]
        for (first, last), reason in self._broken.get(url, {}).items():
            if first < stop and start < last:
                self.damage.report(
                    url, DamageError(reason, max(first, int(start))), "the samples there"
                )
                return True
        return False

    def _check_opened(self) -> None:
        """Raise if the content of an open file has changed."""
        for number, modified in self._descriptors.modified():
            self._check_unchanged(number, modified)

    @property
    def is_requested(self) -> bool:  # type: ignore[override]
        """Whether a file is in an object store, and not known to be copied."""
        if self._offsets is None:
            return not all(file.is_local for file in self._files)
        return self._offsets.is_remote

    @property
    def is_slow_at_first(self) -> bool:
        """Whether a sample is there sooner if it is read alone: files are not copied yet."""
        opened = self._opened
        return opened is not None and opened.copies is not None and not opened.copies.is_begun

    def request_samples(
        self, ranges: Iterable[tuple[int, int]], order: Int64Array | None, threads: DaemonPool
    ) -> SampleRequests:
        """Return samples of ranges in an order; see `SampleFiles.request_samples`."""
        assert self._offsets is not None
        return SampleRequests(self._offsets, ranges, order, self._read_span, threads)

    def _read_span(self, number: int, start: int, stop: int) -> bytes:
        """Return bytes of a file, in any thread."""
        assert self._opened is not None
        file = self._opened.files[number]
        content = read_at(file, start, stop, self._report_to(file.url))
        if file.is_local:
            self._check_unchanged(number, os.stat(file.path).st_mtime_ns)
        return content

    def _scan(self, file: SourceFile) -> FileScan:
        """Return what is in a file; see `zindex.sources.sample_offsets`."""
        raise NotImplementedError

    def _check_unchanged(self, number: int, modified: int) -> None:
        """Raise if a file that was written since its samples were found has other content."""
        assert self._offsets is not None
        assert self._opened is not None
        scan, file = self._offsets.scans[number], self._opened.files[number]
        if modified == scan.modified or file.copy is not None:
            return
        num_skipped = self.damage.num_skipped
        again = self._scan(file)
        self.damage.num_skipped = num_skipped
        if again.digest != scan.digest:
            raise SourceError(
                f"{file.url} must keep its content while it is read, it was changed since its "
                "samples were found; restore it, or open the source again"
            )
        scan.modified = modified

    def content(self) -> str:
        """Return a digest of the content of local files, independent of their paths and times.

        It is made of what was read to find the samples: jsonl files, and in tar archives headers
        and at least the first bytes of each member. Of files that are read in order it is made of
        both ends, with the checksums of compressed ones.
        """
        found = self.find_samples()
        if found is not None:
            return fingerprint({"digests": [scan.digest for scan in found.scans]})
        ends = self._read_ends()
        listed = [ends[file.place] for file in self._files if file.is_local]
        return fingerprint({"ends": listed}) if listed else ""

    def _identify(self, file: SourceFile) -> str:
        """Return what else determines the table of a file."""
        return self.kind

    def part_nbytes(self, part: int) -> int | None:
        """Return the stored bytes of a part; None in object stores."""
        start, stop = self.bounds(part)
        return None if stop is None else stop - start

    def fingerprint(self) -> str:
        """Return the SHA-256 of the relative names of the files, their sizes, and the parts."""
        sizes = [file.nbytes if file.is_local else None for file in self._files]
        files = [[*one] for one in zip(relative_names(self._files), sizes, strict=True)]
        facts = {"files": files, "part_nbytes": self._step, "kind": self.kind}
        return fingerprint(facts | self._settings)
