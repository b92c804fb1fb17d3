"""Read spans of local arrays by system calls, and verify inner chunks.

No Zarr library is involved: reading a span takes a few ``pread`` calls. An inner chunk is verified
against its crc32c on first use in a process. Readers hold no open file across ``fork`` or pickle.
"""

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError, check_choice
from zindex.io.system_errors import reading, unreadable
from zindex.store.codecs import checksum
from zindex.store.layout import ArrayLayout
from zindex.store.open_array import OpenArray, OpenFile
from zindex.store.open_files import table
from zindex.store.rows import RowReader, count_from
from zindex.store.shard import ArrayFiles, decode_chunk

#: When an inner chunk is verified: on first use in a process, at every read, or never.
Verify = Literal["first", "always", "never"]

# Buffers of one call, and verified chunks, which should still be in the CPU cache then.
_MAX_IOVEC, _MAX_CHECKED = 512, 32


class FileReader(RowReader):
    """An array in local files, read span by span.

    Parameters
    ----------
    root
        Directory of the files.
    layout
        The array's description, or the layout of foreign files.
    version
        Distinguishes arrays that replace each other at the same location: their files are never
        confused, in any process.
    verify
        When an inner chunk is verified.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        layout: ArrayFiles | ArrayLayout,
        version: str = "",
        verify: Verify = "first",
    ) -> None:
        super().__init__(layout)
        check_choice("verify", verify, get_args(Verify))
        self.root: Any = root
        form = ArrayFiles.of(layout) if isinstance(layout, ArrayLayout) else layout
        if form.ours and not form.table and verify == "always":
            form = replace(form, gathered=True)
        self.form = form
        self.version = version
        self.verify: Verify = verify
        # Copies of what short reads need, because attribute look-ups are significant there.
        self._array: OpenArray | None = None
        checked, self._plain = form.chain.checked, form.chain.plain
        self._direct = self._plain and not (checked and verify == "always")
        self._trusting = verify == "never" or (self._plain and not checked)
        self._length, self._row_shape = form.length, self.shape[1:]
        self._shard_length, self._chunk_length = form.shard_length, form.chunk_length
        self._chunks_per_shard, self._row_nbytes = form.chunks_per_shard, form.row_nbytes
        self._stride, self._base = form.stride, form.base

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.layout, self.version, self.verify)

    def bind(self) -> OpenArray:
        """Return the open array that all readers of these files in this process share."""
        array = self._array
        if array is None or array.retired:
            array = self._array = table.array(os.fspath(self.root), self.version, self.form)
        return array

    def record(self, array: OpenArray) -> int:
        """Return the address of the record of `zindex.kernels.gather`, or 0 if unsupported."""
        return array.record[self._trusting] if self._direct or array.decoder_nbytes else 0

    def read_ahead(self, starts: Int64Array, stops: Int64Array) -> None:
        """Ask the system to read ahead, all at once, spans that are new to this process.

        Otherwise each would be waited for separately. Errors are left to the reads.
        """
        array = self.bind()
        if not len(array.advised) or len(starts) != len(stops):
            return
        known = (starts >= 0) & (starts < stops) & (stops <= self._length)
        shards, within = np.divmod([starts[known], stops[known] - 1], self._shard_length)
        first, last = shards * array.windows_per_shard + within // array.window_length
        counts = last - first + 1
        windows = count_from(first, counts)
        for number in np.unique(windows[array.advised[windows] == 0]).tolist():
            array.advised[number] = 1
            shard, window = divmod(number, array.windows_per_shard)
            with suppress(VerificationError, OSError):
                table.open(array, shard).advise(window)

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
                # A retry opens the current files, which may be intact.
                table.forget_array(array)
                # Reported by network file systems when another client has replaced the file.
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
        target = rows.data.cast("B")
        is_regular = self._plain and file.index is None
        if is_regular and self._all_trusted(array, shard, first, len(rows)):
            self._read_trusted(file, first, target)
            return
        if self._decode_chunks(array, shard, first, rows):
            return
        done, stop = 0, first + len(rows)
        while first < stop:
            chunk, skip = divmod(first, self._chunk_length)
            if self._plain and not skip and stop - first >= self._chunk_length:
                num_chunks = (stop - first) // self._chunk_length if is_regular else 1
                chunks = range(chunk, chunk + min(num_chunks, _MAX_CHECKED))
                count = len(chunks) * self._chunk_length
                part = target[done : done + count * self._row_nbytes]
                self._read_whole(file, chunks, part)
            else:
                count = min(self._chunk_length - skip, stop - first)
                part = target[done : done + count * self._row_nbytes]
                self._read_part(file, chunk, skip * self._row_nbytes, part)
            first += count
            done += len(part)

    def _decode_chunks(self, array: OpenArray, shard: int, first: int, rows: AnyArray) -> bool:
        """Fill ``rows`` from row ``first`` of an open, compressed file; return whether it is done.

        A subclass does so for many chunks; the others, and errors, are left to this class.
        """
        return False

    def _all_trusted(self, array: OpenArray, shard: int, first: int, count: int) -> bool:
        """Whether no chunk of a span needs a check."""
        if self._trusting or self.verify == "always":
            return self._trusting
        before = shard * self._chunks_per_shard
        start = before + first // self._chunk_length
        stop = before + (first + count - 1) // self._chunk_length + 1
        return bool(array.verified_values[start:stop].all())

    def _read_trusted(self, file: OpenFile, first: int, target: memoryview) -> None:
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
                file.read(buffers, start)
                start += sum(map(len, buffers))
                buffers = []
            buffers.append(gap)
            buffers.append(target[done : done + nbytes])
            done += nbytes
        file.read(buffers, start)

    def _read_whole(self, file: OpenFile, chunks: range, target: memoryview) -> None:
        """Fill bytes with adjacent chunks that are not compressed, and check them."""
        offset = self._find(file, chunks[0])
        nbytes = self._chunk_length * self._row_nbytes
        parts = [target[start : start + nbytes] for start in range(0, len(target), nbytes)]
        checksums = [memoryview(bytearray(self._stride - nbytes)) for _ in parts]
        buffers = [buffer for pair in zip(parts, checksums, strict=True) for buffer in pair]
        file.read(buffers, offset)
        if self._trusting:
            return
        for chunk, part, stored in zip(chunks, parts, checksums, strict=True):
            found = checksum(part)
            if found != int.from_bytes(stored, "little"):
                raise file.array.damaged(f"chunk {chunk} of {file.where} fails its checksum")
            if file.checksums is not None and found != file.checksums[chunk]:
                where = f"chunk {chunk} of {file.where}"
                raise file.array.damaged(f"{where} is not the one that was committed")
        table.mark_verified(file, chunks)

    def _read_part(self, file: OpenFile, chunk: int, skip: int, part: memoryview) -> None:
        """Fill bytes from byte ``skip`` of an inner chunk."""
        array, number = file.array, file.shard * self._chunks_per_shard + chunk
        trusted = self._trusting or (self.verify == "first" and bool(array.verified[number]))
        if self._plain and trusted:
            offset = self._find(file, chunk) + skip
            file.read([part], offset)
            return
        values = None if self.verify == "always" else table.get_decoded(array, number)
        # Another reader may have decoded it without verification.
        if values is None or not trusted:
            offset, nbytes = file.span(chunk)
            stored = memoryview(bytearray(nbytes))
            file.read([stored], offset)
            check, checksums = not self._trusting, file.checksums
            values = decode_chunk(
                self.form, file.shard, chunk, stored, check=check, checksums=checksums
            )
            if not self._trusting:
                table.mark_verified(file, (chunk,))
            if not self._plain:
                table.keep_decoded(array, number, values)
        part[:] = values.data.cast("B")[skip : skip + len(part)]

    def _find(self, file: OpenFile, chunk: int) -> int:
        """Return the offset of a chunk that is not compressed."""
        offset, nbytes = file.span(chunk)
        if nbytes != self._stride:
            raise file.array.damaged(
                f"chunk {chunk} of {file.where} must hold {self._stride} bytes, got {nbytes}"
            )
        return offset
