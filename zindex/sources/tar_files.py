"""Read tar archives of samples with their metadata, part by part.

A sample is a group of consecutive members whose names are equal up to the first dot, as in
WebDataset: https://github.com/webdataset/webdataset, "The WebDataset Format". Metadata come from a
sidecar of each archive, a jsonl file.
"""

import logging
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.formats.tar_headers import BLOCK_NBYTES
from zindex.io.decompression import DamageError
from zindex.io.file_chunks import open_local, read_chunks
from zindex.io.file_list import SourceFile, list_files
from zindex.io.objects import Place
from zindex.io.request_threads import map_in_threads
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.descriptors import Descriptors
from zindex.sources.file_scan import ContentDigest, FileScan
from zindex.sources.opened_files import (
    NUM_REQUESTS,
    PREPARE_NBYTES,
    OpenedFiles,
    look_up_all,
    open_files,
)
from zindex.sources.part_files import PartFiles
from zindex.sources.sample_files import Paths
from zindex.sources.sample_offsets import RawSample, SampleOffsets
from zindex.sources.sidecars import (
    Metadata,
    check_meta_names,
    explain_joins,
    explain_names,
    explain_values,
    find_sidecar,
    parse_metadata,
    parse_sidecar,
    read_sidecar,
    sidecar_of,
    watch_joins,
)
from zindex.sources.tar_members import (
    HEADERS_NBYTES,
    STEP_NBYTES,
    ArchiveBuffer,
    ChunkBuffer,
    FileBuffer,
    KeyCheck,
    check_rest,
    iterate_members,
    key_of,
    open_headers,
    plain_fields,
)

# In tables of samples: there is no line of metadata, or several of one key.
_NO_LINE, _SEVERAL = -1, -2
# The sample has no member .id, and therefore no metadata.
_NO_ID = -3

logger = logging.getLogger(__name__)


class TarFiles(PartFiles):
    """Tar archives of samples: plain or compressed, local or in an object store.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas in one string or as a list. Folders
        are searched for names with the suffix ``tar``, optionally followed by ``.gz``, ``.bz2``,
        ``.xz`` or ``.zst``. May be ``""`` with ``include_dirs``.
    meta_names
        Fields of metadata to join to each sample that has a member ``.id``. They are read from the
        line with the sample's key in the file ``<name of the tar up to its first dot>.meta.jsonl``
        or, without one, ``.jsonl`` in the same folder, and are None if there is no such line. A
        warning is logged for each file that gets no metadata at all, and for all samples of other
        files together that get none.
    include_dirs
        Additional folders, separated by commas; a suffix ``*n`` repeats the files of a folder n
        times.
    part_nbytes
        Bytes per part. A plain local file is split at multiples of this, and a sample belongs to
        the part in which it starts; other files are one part each.
    on_damage
        ``"error"``: damaged or rejected samples are an error. ``"skip"``: the sample, or the rest
        of the archive if it is unreadable, is skipped, counted in ``num_skipped``, and logged once
        per file.
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
    A sample has ``__url__``, the file, ``__key__``, the name with its folder up to the first dot of
    the base name, and the bytes of each member under the rest of its name, in lower case. Members
    without such a rest, those whose base name starts with a dot, and those below folders like
    ``__meta__`` are ignored. Links, devices, sparse files, members above 4 GiB, names that lead out
    of the archive, two members of one name in a sample, and archives without an end mark are
    rejected. Nothing is ever unpacked.
    """

    def __init__(
        self,
        path: Paths,
        *,
        meta_names: Sequence[str] = (),
        include_dirs: str | None = None,
        part_nbytes: int = 64 << 20,
        on_damage: OnDamage = "error",
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        damage = DamageLog("a whole tar archive of samples", on_damage)
        self._fields = check_meta_names(meta_names)
        files = list_files(path, ["tar"], include_dirs=include_dirs)
        super().__init__(files, part_nbytes, damage, prepare_nbytes=prepare_nbytes)
        self._settings = {"meta_names": list(self._fields)}
        # By file and part: the offset of the first sample, if known.
        self._begins: dict[int, dict[int, int | None]] = {}
        self._metadata: tuple[int, Metadata] | None = None
        # The metadata file of each tar, opened on first use.
        self._sidecars: Descriptors | None = None
        # Files for which a failed join of metadata is logged.
        self._logged: set[str] = set()

        # Metadata files in object stores, by tar: None if there is none, and their copies.
        self._known_sidecars: dict[Place, SourceFile | None] | None = None
        self._copied_sidecars: OpenedFiles | None = None
        self._sidecar_copies: dict[Place, SourceFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        nothing = dict.fromkeys(("_sidecars", "_copied_sidecars"))
        return {**super().__getstate__(), **nothing, "_sidecar_copies": {}}

    def _reset(self, urls: list[str], files: list[SourceFile]) -> None:
        super()._reset(urls, files)
        self._begins, self._metadata, self._sidecars = {}, None, None

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of a part, in the order of its archive.

        Raises
        ------
        SourceError
            If a sample is damaged or rejected, unless damage is skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the archive cannot be read.
        """
        number, inner = self.locate(part)
        metadata = self._metadata_of(number)
        samples = self._read_samples(number, inner, metadata)
        if not self._fields:
            yield from samples
            return
        field = next(iter(self._fields.values()))
        sidecar = find_sidecar(self._files[number])[0].url
        reason = yield from watch_joins(samples, field, metadata, sidecar)
        if reason is not None:
            self._warn(self.urls[number], reason)

    def _warn(self, url: str, reason: str) -> None:
        """Log once per file why its samples have no metadata."""
        if url not in self._logged:
            self._logged.add(url)
            fields = [*self._fields.values()]
            logger.warning("%s: meta_names asks for %s, but %s", url, fields, reason)

    def _read_samples(
        self, number: int, inner: int, metadata: Metadata
    ) -> Iterator[dict[str, Any]]:
        """Yield the samples of one part of a file."""
        try:
            with self._open_part(number, inner) as (buffer, position, stop):
                start = yield from self._parse(number, buffer, position, stop, metadata)
                self._note_start(number, inner, start)
                if start is None:
                    check_rest(buffer)
        except DamageError as damage:
            self.damage.report(self.urls[number], damage, "the sample there and all after it")

    def _parse(
        self, number: int, buffer: ArchiveBuffer, position: int, stop: float, metadata: Metadata
    ) -> Generator[dict[str, Any], None, int | None]:
        """Yield the samples that start in a range; return the first one behind it, None at the end.

        A DamageError means that the rest of the archive cannot be read.
        """
        url, fields = self.urls[number], self._fields.values()
        nothing = (None,) * len(fields)
        current: str | None = None
        sample: dict[str, Any] = {}
        is_whole = False
        for start, name, content in iterate_members(buffer, position, with_content=True):
            base = name.rfind("/") + 1
            dot = name.find(".", base)
            if (dot <= base or name[0] == "_") and key_of(name) is None:
                if isinstance(content, DamageError):
                    self.damage.report(url, content, "that member")
                continue
            key = name[:dot]
            if key != current:
                if is_whole:
                    yield sample
                if start >= stop:
                    return start
                current, is_whole = key, True
                sample = {"__key__": key, "__url__": url}
            elif not is_whole:
                continue
            field = name[dot + 1 :].lower()
            if isinstance(content, DamageError):
                reason = content.reason
            elif field in sample:
                reason = f"there is a second {field!r} of the sample {key[:200]!r}"
            else:
                sample[field] = content
                if not fields or not name.endswith(".id"):
                    continue
                clash = next((name for name in fields if name in sample), None)
                if clash is None:
                    sample.update(zip(fields, metadata.get(key, nothing), strict=True))
                    continue
                reason = f"there is a member {clash!r} of {key[:200]!r} beside its metadata"
            self.damage.report(url, DamageError(reason, start), "the sample")
            is_whole = False
        if is_whole:
            yield sample
        return None

    def parse_samples(self, raws: Iterable[RawSample]) -> Iterator[dict[str, Any]]:
        """Yield samples; see `SampleFiles.parse_samples`."""
        assert self._offsets is not None
        tables, broken = self._offsets.tables, self._broken
        for number, row, content in raws:
            if broken and self._is_broken(number, row):
                continue
            content = bytes(content)
            plain = None if self._fields else plain_fields(content)
            if plain is not None:
                yield {"__key__": plain[0], "__url__": self.urls[number], **plain[1]}
                continue
            start = int(tables[number][row, 0])
            buffer = ChunkBuffer(iter(()))
            buffer.buffer, buffer.base, buffer.stop = content, start, start + len(content)
            metadata = self._read_line(number, row) if self._fields else {}
            try:
                yield from self._parse(number, buffer, start, math.inf, metadata)
            except DamageError as damage:
                self.damage.report(self.urls[number], damage, "the sample there")

    def _scan(self, file: SourceFile) -> FileScan:
        """Return the offset of each sample, and of the lines of its metadata: three columns."""
        rows: list[tuple[int, int, int]] = []
        current: str | None = None
        digest, keys, is_whole = ContentDigest(), KeyCheck(), True
        lines = self._find_lines(file, digest) if self._fields or file.needs_sidecar else {}
        missing = (_NO_LINE, _NO_LINE)
        with open_headers(file, digest, self._report_to(file.url)) as buffer:
            try:
                for start, name, _ in iterate_members(buffer, 0, with_content=False):
                    key = key_of(name)
                    if key is None:
                        continue
                    if key != current:
                        current = key
                        rows.append((start, _NO_ID, _NO_ID))
                        keys.add(key)
                    if name.endswith(".id"):
                        rows[-1] = (rows[-1][0], *lines.get(key, missing))
                check_rest(buffer)
            except DamageError as damage:
                self.damage.report(file.url, damage, "the sample there and all after it")
                is_whole = False
                if buffer.end is None:  # whether the last sample is whole is not known
                    buffer.end = rows.pop()[0] if rows else 0
        keys.warn(file.url, len(rows))
        end = buffer.end or 0
        return FileScan(np.array([*rows, (end, *missing)], np.int64), digest.to_int(), is_whole)

    def _open(self, files: Sequence[SourceFile]) -> OpenedFiles:
        """Return files that can be read at any offset, after their metadata files are copied."""
        remote = list({file.place: file for file in files if not file.is_local}.values())
        if self._known_sidecars is None:
            wanted = [file for file in remote if self._fields or file.needs_sidecar]
            found = map_in_threads(min(NUM_REQUESTS, len(wanted)), find_sidecar, wanted)
            known = look_up_all([sidecar for sidecar, nbytes in found if nbytes is not None])
            by_place = {sidecar.place: sidecar for sidecar in known}
            self._known_sidecars = {
                file.place: by_place.get(sidecar.place)
                for file, (sidecar, _) in zip(wanted, found, strict=True)
            }
        sidecars = [one for one in self._known_sidecars.values() if one is not None]
        if sidecars:
            self._copied_sidecars = open_files(sidecars, copy_all=True)
            self._sidecar_copies = {copy.place: copy for copy in self._copied_sidecars.files}
        return super()._open(files)

    def _find_sidecar(self, file: SourceFile) -> tuple[SourceFile, int | None]:
        """Return the metadata file of a tar, or its copy, and its size, None without one."""
        if isinstance(file.place, Path):
            return find_sidecar(file)
        known = (self._known_sidecars or {}).get(file.place)
        if known is None:
            return sidecar_of(file), None
        copied = self._sidecar_copies[known.place]
        return copied, copied.nbytes

    def find_samples(self) -> SampleOffsets | None:
        """Return where all samples start, found once; warn of metadata that are missing.

        Raises the errors of `PartFiles.find_samples`.
        """
        if self._offsets is not None:
            return self._offsets
        offsets = super().find_samples()
        if offsets is not None and self._fields:
            assert self._opened is not None
            num_lacking = num_samples = 0
            joined: SourceFile | None = None
            for number, table in enumerate(offsets.tables):
                lines = table[:-1, 1]
                lacking = np.isin(lines, (_NO_LINE, _NO_ID))
                if len(lines) and lacking.all():
                    self._warn(self.urls[number], self._explain(number, lines))
                elif len(lines):
                    num_lacking += int(lacking.sum())
                    num_samples += len(lines)
                    joined = joined or self._opened.files[number]
            if num_lacking:
                self._warn(
                    f"{self.urls[0]} and the files after it" if self.urls[1:] else self.urls[0],
                    f"{num_lacking:,} of {num_samples:,} samples have no member .id, or no line of "
                    "metadata with their key",
                )
            if joined is not None:  # fields that the first metadata file does not have
                sidecar, _ = self._find_sidecar(joined)
                if reason := explain_names(sidecar, list(self._fields)):
                    self._warn(sidecar.url, reason)
        return offsets

    def _explain(self, number: int, lines: Int64Array) -> str:
        """Return why no sample of a file has metadata."""
        assert self._offsets is not None
        assert self._opened is not None
        file, ids = self._opened.files[number], np.flatnonzero(lines != _NO_ID)
        sidecar, nbytes = self._find_sidecar(file)
        last = ""
        if len(ids):
            start = int(self._offsets.tables[number][ids[-1], 0])
            with open_headers(file) as buffer:
                _, name, _ = next(iterate_members(buffer, start, with_content=False))
            last = key_of(name) or name
        return explain_joins(len(lines), len(ids), last, bool(nbytes), sidecar.url)

    @contextmanager
    def _open_part(self, number: int, inner: int) -> Iterator[tuple[ArchiveBuffer, int, float]]:
        """Open a buffer of a file, with the offsets of a part's first sample and its end."""
        file = self._files[number]
        if not file.is_cut:
            with closing(self.read_whole(number)) as chunks:
                yield ChunkBuffer(chunks), 0, math.inf
            return
        with open_local(file) as descriptor:
            headers = FileBuffer(file, descriptor, HEADERS_NBYTES)
            start = self._find_start(number, inner, headers)
            if start is None:
                yield ChunkBuffer(iter([bytes(BLOCK_NBYTES)])), 0, 0
            else:
                yield FileBuffer(file, descriptor, STEP_NBYTES), start, (inner + 1) * self._step

    def _note_start(self, number: int, inner: int, start: int | None) -> None:
        """Remember the first sample after a part, for all parts that start with it."""
        starts, num_parts = self._begins.setdefault(number, {}), len(self.url_parts(number))
        if inner + 1 in starts:
            return
        last = num_parts - 1 if start is None else start // self._step
        # Concurrent threads store equal values.
        for part in range(inner + 1, min(last, num_parts - 1) + 1):
            starts[part] = start

    def _find_start(self, number: int, inner: int, buffer: FileBuffer) -> int | None:
        """Return the offset of the first sample of a part; None if it has none."""
        starts = self._begins.setdefault(number, {})
        known = next(part for part in range(inner, -1, -1) if part in starts or not part)
        start = starts.get(known, 0)
        if known == inner or start is None:
            return start
        # Headers are read from the last known sample: a search from any other byte could find the
        # headers of a tar that is itself a member.
        current: str | None = None
        for position, name, _ in iterate_members(buffer, start, with_content=False):
            key = key_of(name)
            if key is not None and key != current:
                current = key
                if position >= (known + 1) * self._step:
                    self._note_start(number, known, position)
                    known = position // self._step
                    if known >= inner:
                        return position
        self._note_start(number, known, None)
        return None

    def _metadata_of(self, number: int) -> Metadata:
        """Return the metadata of a file's samples, and cache that of the last file."""
        if not self._fields and not self._files[number].needs_sidecar:
            return {}
        cached = self._metadata
        if cached is None or cached[0] != number:
            file = self._files[number]
            found = read_sidecar(file, list(self._fields), self.damage)
            if cached is None and (reason := explain_values(found, list(self._fields))):
                self._warn(file.url, reason)
            cached = self._metadata = number, found
        return cached[1]

    def _identify(self, file: SourceFile) -> str:
        """Return what else determines the table of a file: its metadata."""
        facts = None
        if self._fields:
            sidecar, nbytes = self._find_sidecar(file)
            version: object = sidecar.version or None
            if nbytes is not None and isinstance(sidecar.place, Path):
                version = sidecar.path.stat().st_mtime_ns
            facts = sidecar.place.name, nbytes, version
        return repr((self.kind, bool(self._fields), facts))

    def _find_lines(self, file: SourceFile, digest: ContentDigest) -> dict[str, tuple[int, int]]:
        """Return the bytes of each sample's line of metadata, by key."""
        found: dict[str, tuple[int, int]] = {}
        sidecar, nbytes = self._find_sidecar(file)
        if nbytes is None:
            return found
        with closing(read_chunks(sidecar)) as chunks:
            for chunk in chunks:
                digest.add(chunk)
        for key, _, start, stop in parse_sidecar(sidecar, (), self.damage):
            found[key] = (_SEVERAL, _SEVERAL) if key in found else (start, stop)
        return found

    def _read_line(self, number: int, row: int) -> Metadata:
        """Return the metadata of one sample."""
        assert self._offsets is not None
        _, start, stop = self._offsets.tables[number][row].tolist()
        if start in (_NO_LINE, _NO_ID):
            return {}
        if start == _SEVERAL:
            return self._metadata_of(number)
        if self._sidecars is None:
            self._sidecars = Descriptors([self._find_sidecar(file)[0] for file in self._files])
        names = list(self._fields)
        key, fields = parse_metadata(self._sidecars.read(number, start, stop - start), names)
        return {key: tuple(map(fields.get, names))}
