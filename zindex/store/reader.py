"""Spans of a stored array by position, straight from the shard files.

No Zarr library is on this path: one call costs a few ``pread``. An inner chunk is verified against
its crc32c the first time that a process touches it. Readers hold no file across ``fork`` or pickle.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError, VerificationError
from zindex.store.layout import ArrayLayout
from zindex.store.shard import (
    REMEDY,
    ShardIndex,
    checksum,
    decode_chunk,
    decode_index,
    index_nbytes,
)

#: When an inner chunk is checked: at its first touch in a process, at every read, or never.
Verify = Literal["first", "always", "never"]

_MAX_OPEN_SHARDS = 256
_MAX_IOVEC = 512


def check_verify(verify: str) -> None:
    """Refuse a choice of `Verify` that there is not."""
    if verify not in get_args(Verify):
        raise ConfigError(f"verify must be 'first', 'always' or 'never', got {verify!r}")


class _ShardFile:
    """One open shard: closed when the last user lets go of it."""

    def __init__(self, root: Path, layout: ArrayLayout, shard: int) -> None:
        self.layout = layout
        self.shard = shard
        path = root / layout.shard_key(shard)
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise VerificationError(f"shard {path} is missing; {REMEDY}") from None
        nbytes = os.fstat(self.descriptor).st_size
        footer_nbytes = index_nbytes(layout)
        footer = os.pread(self.descriptor, footer_nbytes, max(0, nbytes - footer_nbytes))
        self.index: ShardIndex = decode_index(layout, shard, footer, nbytes)
        self.verified = np.zeros(layout.chunks_per_shard, np.bool_)
        self.decoded: tuple[int, npt.NDArray[np.generic]] | None = None

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def read_exactly(self, buffers: list[memoryview], offset: int) -> None:
        """Fill buffers from an offset; fewer bytes than they hold is an error."""
        wanted = sum(len(buffer) for buffer in buffers)
        got = os.preadv(self.descriptor, buffers, offset)
        while 0 < got < wanted:
            more = _read_rest(self.descriptor, buffers, offset, got)
            if not more:
                break
            got += more
        if got != wanted:
            raise VerificationError(
                f"shard {self.layout.shard_key(self.shard)} must hold {wanted} bytes at "
                f"{offset}, it ends after {got}; {REMEDY}"
            )

    def load_chunk(self, chunk: int) -> npt.NDArray[np.generic]:
        """Return the verified values of one inner chunk, decoded if need be."""
        decoded = self.decoded
        if decoded is not None and decoded[0] == chunk:
            return decoded[1]
        stored = bytearray(int(self.index.lengths[chunk]))
        self.read_exactly([memoryview(stored)], int(self.index.offsets[chunk]))
        values = decode_chunk(self.layout, self.shard, chunk, bytes(stored))
        self.verified[chunk] = True
        if self.layout.codec != "none":
            self.decoded = (chunk, values)
        return values


def _read_rest(descriptor: int, buffers: list[memoryview], offset: int, got: int) -> int:
    """Go on with a read that the kernel cut short."""
    rest = []
    skip = got
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
        else:
            rest.append(buffer[skip:])
            skip = 0
    return os.preadv(descriptor, rest, offset + got)


class _OpenShards:
    """The shards that this process holds open: a bounded number, the least used goes first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: OrderedDict[tuple[Path, str, str, int], _ShardFile] = OrderedDict()

    def get(self, root: Path, version: str, layout: ArrayLayout, shard: int) -> _ShardFile:
        """Return an open shard of one version of a store."""
        key = (root, version, layout.name, shard)
        with self.lock:
            file = self.files.get(key)
            if file is not None and file.layout == layout:
                self.files.move_to_end(key)
                return file
        file = _ShardFile(root, layout, shard)
        with self.lock:
            self.files[key] = file
            while len(self.files) > _MAX_OPEN_SHARDS:
                self.files.popitem(last=False)
        return file

    def forget(self, root: Path) -> None:
        """Let go of a store's shards: it may have been removed and built again."""
        with self.lock:
            for key in [key for key in self.files if key[0] == root]:
                del self.files[key]

    def reset(self) -> None:
        """Forget all, in a forked child: a lock may have been held by a thread that is gone."""
        self.lock = threading.Lock()
        self.files = OrderedDict()


_open_shards = _OpenShards()
os.register_at_fork(after_in_child=_open_shards.reset)

#: Called when a store is opened anew, so that its reader sees the files that are there now.
forget_open_shards = _open_shards.forget


class RowReader:
    """An array read by position; it behaves like a read-only numpy array of its rows.

    Subclasses say how rows ``[start, stop)`` get into an array. ``reader[3]``, ``reader[10:20]``
    and ``numpy.asarray(reader)`` read what they name and no more.

    Parameters
    ----------
    layout
        The array's layout.
    """

    def __init__(self, layout: ArrayLayout) -> None:
        self.layout = layout
        self.dtype: np.dtype[Any] = np.dtype(layout.dtype)
        self.shape: tuple[int, ...] = layout.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return self.layout.length * self.layout.num_columns

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.layout.nbytes

    def __len__(self) -> int:
        return self.layout.length

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.layout.name} {self.shape} {self.dtype}>"

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array read by position is always copied; leave copy out")
        values = self.read(0, len(self))
        return values if dtype is None else values.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return one row, a slice of rows, or what numpy indexing makes of the whole array."""
        row, column = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if isinstance(row, (int, np.integer)):
            position = int(row) + (len(self) if row < 0 else 0)
            if not 0 <= position < len(self):
                raise IndexError(
                    f"index {row} is out of range for {self.layout.name} of length {len(self)}"
                )
            return self.read(position, position + 1)[(0, *column)]
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            if step > 0:
                return self.read(start, max(start, stop))[(slice(None, None, step), *column)]
        return np.asarray(self)[index]

    def read(self, start: int, stop: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return rows ``[start, stop)`` in a fresh array, or in ``out``.

        Parameters
        ----------
        start, stop
            Rows, ``0 <= start <= stop <= len(self)``.
        out
            Shape (stop - start, ...), this dtype, C order; where to put them.

        Raises
        ------
        IndexError
            If the rows are outside the array.
        ValueError
            If ``out`` has another shape, dtype or order.
        VerificationError
            If a shard is missing or a chunk fails its checksum.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(
                f"rows [{start}, {stop}) are outside {self.layout.name} of length {len(self)}"
            )
        shape = (stop - start, *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(
                f"out must be a C-ordered array of shape {shape} and {self.dtype}, got "
                f"{out.shape} and {out.dtype}; leave it out to get a fresh one"
            )
        self._read(start, stop, out)
        return out

    def read_spans(
        self,
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
        out: npt.NDArray[Any] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the rows of many spans, one span after the other.

        Parameters
        ----------
        starts, stops
            Shape (spans,), int64, rows: span i is ``[starts[i], stops[i])``; spans may overlap and
            come in any order.
        out
            Shape (rows, ...), C order, in this dtype or, for one column, int64; where to put them.
        places
            Shape (spans,), int64: the row of ``out`` at which each span goes; one after the other
            if left out. Rows of ``out`` that no span covers stay as they are.

        Raises
        ------
        IndexError
            If a span is outside the array.
        VerificationError
            If a shard is missing or a chunk fails its checksum.
        """
        lengths = stops - starts
        if places is None:
            places = np.cumsum(lengths) - lengths
        if out is None:
            out = np.empty((int(lengths.sum()), *self.shape[1:]), self.dtype)
        for start, stop, place in zip(
            starts.tolist(), stops.tolist(), places.tolist(), strict=True
        ):
            out[place : place + stop - start] = self.read(start, stop)
        return out

    def take(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return rows by number: shape (len(rows), ...), in this dtype."""
        return self.read_spans(rows, rows + 1)

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """Fill ``out`` with rows that are known to exist."""
        raise NotImplementedError

    @staticmethod
    def read_round(wanted: Sequence["Spans"]) -> list[npt.NDArray[Any]]:
        """Return the spans of several arrays of this class: what `read_many` calls, class by class.

        Classes that read many arrays better at once than one after the other have their own.
        """
        return [read_array_spans(*spans) for spans in wanted]


class Spans(NamedTuple):
    """What is wanted of one array; see `RowReader.read_spans`."""

    reader: RowReader | npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    out: npt.NDArray[Any] | None = None
    places: npt.NDArray[np.int64] | None = None


def read_many(wanted: Sequence[Spans]) -> list[npt.NDArray[Any]]:
    """Return spans of many arrays in one round: one kernel call, or requests side by side.

    Parameters
    ----------
    wanted
        What is wanted of each array. An array in memory stands for itself.

    Returns
    -------
    rows
        For each of ``wanted`` what `RowReader.read_spans` returns.
    """
    rounds: dict[Any, list[int]] = {}
    for number, spans in enumerate(wanted):
        reader = spans.reader
        way = reader.read_round if isinstance(reader, RowReader) else RowReader.read_round
        rounds.setdefault(way, []).append(number)
    results: dict[int, npt.NDArray[Any]] = {}
    for way, numbers in rounds.items():
        results.update(zip(numbers, way([wanted[number] for number in numbers]), strict=True))
    return [results[number] for number in range(len(wanted))]


def read_array_spans(
    reader: RowReader | npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    out: npt.NDArray[Any] | None = None,
    places: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    """Return the rows of many spans of a reader, or of an array in memory."""
    if isinstance(reader, RowReader):
        return reader.read_spans(starts, stops, out, places)
    lengths = stops - starts
    if places is None:
        places = np.cumsum(lengths) - lengths
    if out is None:
        out = np.empty((int(lengths.sum()), *reader.shape[1:]), reader.dtype)
    for start, stop, place in zip(starts.tolist(), stops.tolist(), places.tolist(), strict=True):
        out[place : place + stop - start] = reader[start:stop]
    return out


class ArrayReader(RowReader):
    """One stored array, read by position.

    Parameters
    ----------
    root
        Directory of the store.
    layout
        The array's layout.
    version
        Tells the stores apart that lie at this place one after another: their shards are never
        taken for each other, in whichever process they were opened.
    verify
        When an inner chunk is checked.
    """

    def __init__(
        self, root: Path, layout: ArrayLayout, version: str = "", verify: Verify = "first"
    ) -> None:
        super().__init__(layout)
        self.root = root
        self.version = version
        self.verify: Verify = verify

    def _read(self, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        layout = self.layout
        position = start
        while position < stop:
            shard = position // layout.shard_length
            shard_start, shard_stop = layout.shard_bounds(shard)
            upto = min(stop, shard_stop)
            file = _open_shards.get(self.root, self.version, layout, shard)
            rows = out[position - start : upto - start]
            read = _read_plain if layout.codec == "none" else _read_decoded
            try:
                read(file, position - shard_start, rows)
            except VerificationError:
                # The next try sees the file that is there then, perhaps a sound one.
                _open_shards.forget(self.root)
                raise
            position = upto


def _read_plain(file: _ShardFile, first: int, rows: npt.NDArray[Any]) -> None:
    """Fill ``rows`` from row ``first`` of a shard whose chunks are not compressed."""
    layout = file.layout
    length, row_nbytes = layout.chunk_length, layout.row_nbytes
    done = 0
    while done < len(rows):
        chunk, skip = divmod(first + done, length)
        count = min(length - skip, len(rows) - done)
        if count == length:
            done += _read_whole_chunks(file, chunk, rows[done:])
            continue
        if file.verified[chunk]:
            target = rows[done : done + count].reshape(-1).view(np.uint8).data
            file.read_exactly([target], int(file.index.offsets[chunk]) + skip * row_nbytes)
        else:
            rows[done : done + count] = file.load_chunk(chunk)[skip : skip + count]
        done += count


def _read_whole_chunks(file: _ShardFile, chunk: int, rows: npt.NDArray[Any]) -> int:
    """Fill ``rows`` with as many whole, adjacent chunks as one call may; return the rows read."""
    layout = file.layout
    nbytes = layout.chunk_length * layout.row_nbytes
    count = min(len(rows) // layout.chunk_length, _MAX_IOVEC)
    offsets = file.index.offsets[chunk : chunk + count]
    expected = offsets[0] + np.arange(count, dtype=np.int64) * (nbytes + 4)
    count = int(np.argmin(np.append(offsets == expected, False)))  # up to the first gap
    target = rows[: count * layout.chunk_length].reshape(-1).view(np.uint8).data
    stored = memoryview(bytearray(4 * count))
    buffers = []
    for i in range(count):
        buffers += [target[i * nbytes : (i + 1) * nbytes], stored[4 * i : 4 * i + 4]]
    file.read_exactly(buffers, int(offsets[0]))
    for i in range(count):
        if not file.verified[chunk + i]:
            if checksum(buffers[2 * i]) != int.from_bytes(buffers[2 * i + 1], "little"):
                raise VerificationError(
                    f"chunk {chunk + i} of shard {layout.shard_key(file.shard)} fails its "
                    f"checksum; {REMEDY}"
                )
            file.verified[chunk + i] = True
    return count * layout.chunk_length


def _read_decoded(file: _ShardFile, first: int, rows: npt.NDArray[Any]) -> None:
    """Fill ``rows`` from row ``first`` of a shard whose chunks are compressed."""
    done = 0
    while done < len(rows):
        chunk, skip = divmod(first + done, file.layout.chunk_length)
        count = min(file.layout.chunk_length - skip, len(rows) - done)
        rows[done : done + count] = file.load_chunk(chunk)[skip : skip + count]
        done += count
