"""Write ``.idx`` files: whole, or in blocks for arrays that do not fit into memory."""

import os
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError
from zindex.formats.bin_idx import HEADER, MAGIC, VERSION
from zindex.formats.token_dtypes import TOKEN_DTYPES, token_dtype_code
from zindex.io.local import partial_path, write_from

_BLOCK = 1 << 20
MAX_LENGTH = 2**31 - 1
_MAX_POINTER = 2**63 - 1


class IdxStreamWriter:
    """Write an ``.idx`` file from blocks of its arrays, each array in order.

    The file is complete, durable and renamed when the context ends without an error or ``close`` is
    called; until then, and after any error, there is no file.

    Parameters
    ----------
    path
        Path of the ``.idx`` file.
    dtype
        Token dtype of the ``.bin``.
    num_sequences
        Sequences to write.
    num_documents
        Documents; ``document_indices`` has one entry more.
    has_modes
        Whether each sequence has a mode.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/example.idx"
    >>> with IdxStreamWriter(path, np.uint16, num_sequences=2, num_documents=1) as writer:
    ...     writer.write_sequences([3, 4])
    ...     writer.write_document_indices([0, 2])
    >>> os.path.getsize(path)
    74
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: npt.DTypeLike,
        *,
        num_sequences: int,
        num_documents: int,
        has_modes: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self.num_sequences = num_sequences
        self.num_entries = num_documents + 1
        self.has_modes = has_modes
        code = token_dtype_code(dtype)
        self._itemsize = TOKEN_DTYPES[code].itemsize
        self._written = 0
        self._entries = 0
        self._last_entry = 0
        self._nbytes = 0
        self._partial: str | None = partial_path(self.path)
        self._descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        header = HEADER.pack(MAGIC, VERSION, code, num_sequences, self.num_entries)
        try:
            write_from(self._descriptor, np.frombuffer(header, np.uint8), 0)
        except OSError:
            self.abort()
            raise

    def __enter__(self) -> "IdxStreamWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write_sequences(self, lengths: npt.ArrayLike, modes: npt.ArrayLike | None = None) -> None:
        """Append a block of sequences: shape (sequences,) lengths in tokens, and their modes.

        Raises
        ------
        SourceError
            If a length is negative or not below 2**31, a mode is not an int8, there are more
            sequences than announced, or the modes are missing, unexpected or of another number.
        """
        block = whole_numbers(lengths, 0, MAX_LENGTH, f"sequence_lengths of {self.path}")
        kept = np.empty(0, np.int64)
        if modes is not None:
            kept = whole_numbers(modes, -128, 127, f"sequence_modes of {self.path}")
        if kept.size != block.size * self.has_modes or self.has_modes != (modes is not None):
            raise SourceError(
                f"each of the {block.size} sequences must come with "
                f"{'one mode' if self.has_modes else 'no mode'}, but {kept.size} modes came for "
                f"{self.path}; give one for each sequence, or has_modes=False"
            )
        if self._written + block.size > self.num_sequences:
            raise SourceError(
                f"{self.path} was announced with {self.num_sequences} sequences, but "
                f"{self._written + block.size} came; announce the number that is written"
            )
        nbytes = self._nbytes + int(block.sum()) * self._itemsize
        if nbytes > _MAX_POINTER:
            raise SourceError(
                f"the tokens of a .bin must take less than 2**63 bytes, but those for {self.path} "
                f"take {nbytes}; split the dataset"
            )
        pointers = np.empty(block.size, "<i8")
        if block.size:
            pointers[0] = self._nbytes
            np.cumsum(block[:-1] * self._itemsize, out=pointers[1:])
            pointers[1:] += self._nbytes
        base = HEADER.size + 4 * self._written
        write_from(self._descriptor, block.astype("<i4"), base)
        base = HEADER.size + 4 * self.num_sequences + 8 * self._written
        write_from(self._descriptor, pointers, base)
        base = HEADER.size + 12 * self.num_sequences + 8 * self.num_entries + self._written
        write_from(self._descriptor, kept.astype("i1"), base)
        self._written += block.size
        self._nbytes = nbytes

    def write_document_indices(self, document_indices: npt.ArrayLike) -> None:
        """Append entries: the first is 0, none falls, the last is the number of sequences.

        Raises
        ------
        SourceError
            If an entry falls, leaves [0, sequences], is a first entry other than 0, or is one more
            than announced.
        """
        name = f"document_indices of {self.path}"
        block = whole_numbers(document_indices, 0, self.num_sequences, name)
        if self._entries + block.size > self.num_entries:
            raise SourceError(
                f"{self.path} was announced with {self.num_entries} document indices, but "
                f"{self._entries + block.size} came; announce the number that is written"
            )
        if block.size and self._entries == 0 and block[0] != 0:
            raise SourceError(f"{name} must begin with 0, not with {block[0]}; put a 0 in front")
        falls = np.flatnonzero(block < np.concatenate(([self._last_entry], block[:-1])))
        if falls.size:
            raise SourceError(
                f"{name} must never fall, but entry {self._entries + int(falls[0])} is "
                f"{block[falls[0]]}; write the documents in the order of their sequences"
            )
        base = HEADER.size + 12 * self.num_sequences + 8 * self._entries
        write_from(self._descriptor, block.astype("<i8"), base)
        self._entries += block.size
        self._last_entry = int(block[-1]) if block.size else self._last_entry

    def close(self) -> None:
        """Check that everything announced was written, and rename the file."""
        if self._partial is None:
            return
        came = (self._written, self._entries, self._last_entry)
        wanted = (self.num_sequences, self.num_entries, self.num_sequences)
        if came != wanted:
            self.abort()
            raise SourceError(
                f"{self.path} must get {wanted[0]} sequences and {wanted[1]} document indices, the "
                f"last of them {wanted[2]}, but got {came[0]} and {came[1]}, the last {came[2]}; "
                "write what was announced and end the last document"
            )
        try:
            os.fsync(self._descriptor)
            os.replace(self._partial, self.path)
        except OSError:
            self.abort()
            raise
        os.close(self._descriptor)
        self._partial = None

    def abort(self) -> None:
        """Remove the unfinished file; does nothing after ``close``."""
        if self._partial is not None:
            os.close(self._descriptor)
            with suppress(FileNotFoundError):
                os.unlink(self._partial)
            self._partial = None


def write_index(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike,
    sequence_lengths: npt.ArrayLike,
    document_indices: npt.ArrayLike,
    sequence_modes: npt.ArrayLike | None = None,
) -> None:
    """Write a whole ``.idx`` file atomically.

    Parameters
    ----------
    path
        Path of the ``.idx`` file.
    dtype
        Token dtype of the ``.bin``.
    sequence_lengths
        Shape (sequences,), integers, tokens, each in [0, 2**31).
    document_indices
        Shape (documents + 1,), integers, first sequence of each document, then their number.
    sequence_modes
        Shape (sequences,), integers that fit int8, or None.

    Raises
    ------
    SourceError
        If the arrays contradict the format.
    """
    lengths, entries = np.asarray(sequence_lengths), np.asarray(document_indices)
    modes = None if sequence_modes is None else np.asarray(sequence_modes)
    if modes is not None and modes.size != lengths.size:
        raise SourceError(
            f"{os.fspath(path)} must get one mode for each of {lengths.size} sequences, but got "
            f"{modes.size} modes; give one for each sequence"
        )
    if entries.size == 0:
        raise SourceError(
            f"document_indices of {os.fspath(path)} must begin with 0, but it has 0 entries; "
            "give [0] for a dataset without documents"
        )
    with IdxStreamWriter(
        path,
        dtype,
        num_sequences=lengths.size,
        num_documents=entries.size - 1,
        has_modes=modes is not None,
    ) as writer:
        for start in range(0, lengths.size, _BLOCK):
            span = slice(start, start + _BLOCK)
            writer.write_sequences(lengths[span], None if modes is None else modes[span])
        for start in range(0, entries.size, _BLOCK):
            writer.write_document_indices(entries[start : start + _BLOCK])


def whole_numbers(values: npt.ArrayLike, low: int, high: int, name: str) -> npt.NDArray[np.int64]:
    """Return a flat int64 array; SourceError names the first value outside ``[low, high]``."""
    array: npt.NDArray[Any] = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise SourceError(
            f"{name} must be one row of whole numbers, but came with shape {array.shape} and dtype "
            f"{array.dtype}; convert it first"
        )
    if array.min() < low or array.max() > high:
        at = int(np.flatnonzero((array < low) | (array > high))[0])
        raise SourceError(
            f"{name} must lie within [{low}, {high}], but entry {at} of this block is {array[at]}; "
            "correct it, or split a sequence that is too long"
        )
    return array.astype(np.int64, copy=False)
