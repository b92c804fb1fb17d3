"""Read spans of local arrays by system calls, and verify inner chunks.

No Zarr library is involved: one span costs a few ``pread``. An inner chunk is verified against its
crc32c when a process first touches it. Readers hold no file across ``fork`` or pickle.
"""

import errno
import os
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import ConfigError, VerificationError
from zindex.io.local import reading, unreadable
from zindex.store.codecs import CRC_NBYTES, checksum
from zindex.store.layout import ArrayShape
from zindex.store.open_array import OpenArray, OpenFile
from zindex.store.open_files import table
from zindex.store.rows import RowReader
from zindex.store.shard import ArrayFiles, decode_chunk

#: When an inner chunk is checked: at its first touch in a process, at every read, or never.
Verify = Literal["first", "always", "never"]

# Buffers of one call; fewer if chunks are checked, so that they are still in the CPU cache then.
_MAX_IOVEC, _MAX_CHECKED_IOVEC = 512, 64


def check_verify(verify: str) -> None:
    """Refuse an unknown choice of `Verify`."""
    if verify not in get_args(Verify):
        raise ConfigError(f"verify must be 'first', 'always' or 'never', got {verify!r}")


class FileReader(RowReader):
    """An array in local files, read span by span.

    Parameters
    ----------
    root
        Directory of the files.
    form
        How the files hold the array.
    version
        Distinguishes arrays that succeed each other at this place: their files are never confused,
        in any process.
    verify
        When an inner chunk is checked.
    layout
        The array's description, if it has another one.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        form: ArrayFiles,
        version: str = "",
        verify: Verify = "first",
        layout: ArrayShape | None = None,
    ) -> None:
        super().__init__(layout or form)
        check_verify(verify)
        self.root: Any = root
        self.form = form
        self.version = version
        self.verify: Verify = verify
        # Copies of what short reads need, where every attribute look-up counts.
        self._array: OpenArray | None = None
        checked = form.chain.checked
        self._direct = form.chain.plain and not (checked and verify == "always")
        self._trusting = verify == "never" or (form.chain.plain and not checked)
        self._length, self._row_shape = form.length, self.shape[1:]
        self._shard_length, self._chunk_length = form.shard_length, form.chunk_length
        self._chunks_per_shard, self._row_nbytes = form.chunks_per_shard, form.row_nbytes
        self._stride, self._base = form.stride, form.base

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.form, self.version, self.verify)

    def bind(self) -> OpenArray:
        """Return the open array that all readers of these files in this process share."""
        array = self._array
        if array is None or array.retired:
            array = self._array = table.array(os.fspath(self.root), self.version, self.form)
        return array

    def record(self, array: OpenArray) -> int:
        """Return the address of the record for `zindex.kernels.gather`, or 0 if it cannot read."""
        return array.record[self._trusting] if self._direct else 0

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        array = self.bind()
        position = start
        while position < stop:
            shard, first = divmod(position, self._shard_length)
            count = min(stop - position, self._shard_length - first)
            rows = out[position - start : position - start + count]
            try:
                self._read_shard(array, shard, first, rows)
            except (VerificationError, OSError) as error:
                # A retry opens the files of that moment, which may be intact.
                table.forget_array(array)
                # What a network file system reports when another client has replaced the file.
                if not isinstance(error, OSError):
                    raise
                if error.errno != errno.ESTALE:
                    raise unreadable(array.path(shard), error) from error
                with reading(Path(array.path(shard))):
                    self._read_shard(array, shard, first, rows)
            position += count

    def _read_shard(self, array: OpenArray, shard: int, first: int, rows: AnyArray) -> None:
        """Fill ``rows`` from row ``first`` of a file."""
        file = table.open(array, shard)
        if self.form.chain.plain:
            self._read_plain(array, file, shard, first, rows)
        else:
            self._read_decoded(array, file, shard, first, rows)

    def _is_trusted(self, array: OpenArray, number: int) -> bool:
        """Whether a chunk needs no check."""
        return self._trusting or (self.verify == "first" and bool(array.verified[number]))

    def _all_trusted(self, array: OpenArray, shard: int, first: int, count: int) -> bool:
        """Whether no chunk of a span needs a check."""
        if self._trusting or self.verify == "always":
            return self._trusting
        before = shard * self._chunks_per_shard
        start = before + first // self._chunk_length
        stop = before + (first + count - 1) // self._chunk_length + 1
        return bool(array.verified_values[start:stop].all())

    def _read_trusted(
        self, array: OpenArray, file: OpenFile, shard: int, first: int, target: memoryview
    ) -> None:
        """Fill bytes from row ``first`` of a file without checks."""
        chunk, skip = divmod(first, self._chunk_length)
        start = self._base + chunk * self._stride + skip * self._row_nbytes
        nbytes = self._chunk_length * self._row_nbytes
        # The checksums between chunks are read into one dummy buffer.
        gap = memoryview(bytearray(self._stride - nbytes))
        done = nbytes - skip * self._row_nbytes if gap else len(target)
        buffers = [target[:done]]
        while done < len(target):
            if len(buffers) >= _MAX_IOVEC:
                array.read_exactly(file, shard, buffers, start)
                start += sum(map(len, buffers))
                buffers = []
            buffers.append(gap)
            buffers.append(target[done : done + nbytes])
            done += nbytes
        array.read_exactly(file, shard, buffers, start)

    def _read_plain(
        self, array: OpenArray, file: OpenFile, shard: int, first: int, rows: AnyArray
    ) -> None:
        """Fill ``rows`` from row ``first`` of a file whose chunks are not compressed.

        Whole chunks and trusted parts of chunks are read straight to their destination, adjacent
        ones in one call; of any other chunk the whole is read and checked.
        """
        target = rows.reshape(-1).view(np.uint8).data
        if file.index is None and self._all_trusted(array, shard, first, len(rows)):
            self._read_trusted(array, file, shard, first, target)
            return
        run = _AdjacentReads(self, array, file, shard)
        length, row_nbytes = self._chunk_length, self._row_nbytes
        first_chunk = shard * self._chunks_per_shard
        done = 0
        while done < len(rows):
            chunk, skip = divmod(first + done, length)
            count = min(length - skip, len(rows) - done)
            trusted = self._is_trusted(array, first_chunk + chunk)
            if trusted or count == length:
                part = target[done * row_nbytes : (done + count) * row_nbytes]
                run.add(chunk, skip * row_nbytes, part, check=not trusted)
            else:
                values = self._load_chunk(array, file, shard, chunk)
                rows[done : done + count] = values[skip : skip + count]
            done += count
        run.finish()

    def _read_decoded(
        self, array: OpenArray, file: OpenFile, shard: int, first: int, rows: AnyArray
    ) -> None:
        """Fill ``rows`` from row ``first`` of a file whose chunks are compressed."""
        done = 0
        while done < len(rows):
            chunk, skip = divmod(first + done, self._chunk_length)
            count = min(self._chunk_length - skip, len(rows) - done)
            number = shard * self._chunks_per_shard + chunk
            values = None if self.verify == "always" else table.get_decoded(array, number)
            # Another reader may have decoded it without a check.
            if values is None or not self._is_trusted(array, number):
                values = self._load_chunk(array, file, shard, chunk)
                table.keep_decoded(array, number, values)
            rows[done : done + count] = values[skip : skip + count]
            done += count

    def _load_chunk(self, array: OpenArray, file: OpenFile, shard: int, chunk: int) -> AnyArray:
        """Return the values of an inner chunk, read whole, and checked unless checks are off."""
        offset, nbytes = chunk_span(array, file, shard, chunk)
        stored = bytearray(nbytes)
        array.read_exactly(file, shard, [memoryview(stored)], offset)
        check = not self._trusting
        values = decode_chunk(self.form, shard, chunk, memoryview(stored), check=check)
        if check:
            table.mark_verified(array, shard, file, (chunk,))
        return values


class _AdjacentReads:
    """Adjacent chunks, or parts of chunks, that one system call reads."""

    def __init__(self, reader: FileReader, array: OpenArray, file: OpenFile, shard: int) -> None:
        self.where = (file, shard)
        self.array = array
        self.gap = CRC_NBYTES * reader.form.chain.checked
        self.chunk_nbytes = reader.form.chunk_nbytes
        self.start = self.stop = 0
        self.buffers: list[memoryview] = []
        self.checks: list[tuple[int, memoryview, memoryview]] = []

    def add(self, chunk: int, skip: int, part: memoryview, *, check: bool) -> None:
        """Add bytes of a chunk from byte ``skip``, and its checksum if they reach it."""
        file, shard = self.where
        offset, nbytes = chunk_span(self.array, file, shard, chunk)
        if nbytes != self.chunk_nbytes + self.gap:
            raise self.array.damaged(
                f"chunk {chunk} of {self.array.form.where(shard)} must hold "
                f"{self.chunk_nbytes + self.gap} bytes, got {nbytes}"
            )
        most = _MAX_CHECKED_IOVEC if self.checks else _MAX_IOVEC
        if offset + skip != self.stop or len(self.buffers) >= most:
            self.finish()
            self.start = offset + skip
        self.stop = offset + skip + len(part)
        self.buffers.append(part)
        if self.gap and skip + len(part) == self.chunk_nbytes:
            stored = memoryview(bytearray(CRC_NBYTES))
            self.buffers.append(stored)
            self.stop += CRC_NBYTES
            if check:
                self.checks.append((chunk, part, stored))

    def finish(self) -> None:
        """Read what was added, and verify what must be."""
        if not self.buffers:
            return
        file, shard = self.where
        self.array.read_exactly(file, shard, self.buffers, self.start)
        for chunk, part, stored in self.checks:
            if checksum(part) != int.from_bytes(stored, "little"):
                where = self.array.form.where(shard)
                raise self.array.damaged(f"chunk {chunk} of {where} fails its checksum")
        table.mark_verified(self.array, shard, file, [check[0] for check in self.checks])
        self.buffers, self.checks = [], []


def chunk_span(array: OpenArray, file: OpenFile, shard: int, chunk: int) -> tuple[int, int]:
    """Return the offset and size of an inner chunk in its file."""
    form = array.form
    if file.index is None:
        return form.base + chunk * form.stride, form.stride
    nbytes = int(file.index.lengths[chunk])
    if nbytes < 0:
        raise array.damaged(f"chunk {chunk} of {form.where(shard)} is missing")
    return int(file.index.offsets[chunk]), nbytes
