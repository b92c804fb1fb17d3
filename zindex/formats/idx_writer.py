"""Write ``.idx`` files: as a whole, or in blocks for arrays that do not fit into memory."""

import os
from collections.abc import Iterable

import numpy as np

from zindex.arrays import AnyArray, ArrayLike, DTypeLike, Int64Array
from zindex.errors import SourceError
from zindex.formats.bin_idx import HEADER, MAGIC, VERSION, IdxFile
from zindex.formats.token_dtypes import TOKEN_DTYPES, DType
from zindex.io.local import replacing, write_from

_BLOCK = 1 << 20
MAX_LENGTH = 2**31 - 1
_MAX_POINTER = 2**63 - 1

#: Lengths of some sequences in tokens, and their modes or None.
Sequences = tuple[ArrayLike, ArrayLike | None]


def write_index_blocks(
    path: str | os.PathLike[str],
    dtype: DTypeLike,
    sequences: Iterable[Sequences],
    document_indices: Iterable[ArrayLike],
    *,
    num_sequences: int,
    num_documents: int,
    has_modes: bool = False,
) -> None:
    """Write an ``.idx`` file from blocks of its arrays, atomically and durably.

    Parameters
    ----------
    path
        Path of the ``.idx`` file.
    dtype
        Token dtype of the ``.bin``.
    sequences
        Blocks of sequences: shape (sequences,) lengths in tokens, and their modes.
    document_indices
        Blocks of entries: they start at 0, never decrease, and end at the number of sequences.
    num_sequences
        Sequences in all blocks.
    num_documents
        Documents; ``document_indices`` has one entry more.
    has_modes
        Whether each sequence has a mode.

    Raises
    ------
    SourceError
        If a length is negative or not below 2**31, a mode is not an int8, modes are missing,
        unexpected or of another number, an entry decreases, is outside [0, sequences], or does not
        start at 0, or the blocks have other numbers than announced.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/example.idx"
    >>> blocks = [([3, 4], None)], [[0, 2]]
    >>> write_index_blocks(path, np.uint16, *blocks, num_sequences=2, num_documents=1)
    >>> os.path.getsize(path)
    74
    """
    code = DType.code_from_dtype(dtype)
    index = IdxFile(os.fspath(path), TOKEN_DTYPES[code], num_sequences, num_documents, 0, has_modes)
    with replacing(path) as partial, open(partial, "xb", buffering=0) as file:
        header = HEADER.pack(MAGIC, VERSION, code, num_sequences, num_documents + 1)
        write_from(file.fileno(), np.frombuffer(header, np.uint8), 0)
        got = (
            _write_sequences(file.fileno(), index, sequences),
            *_write_documents(file.fileno(), index, document_indices),
        )
        wanted = (num_sequences, num_documents + 1, num_sequences)
        if got != wanted:
            raise SourceError(
                f"{index.path} must get {wanted[0]} sequences and {wanted[1]} document indices, "
                f"the last of them {wanted[2]}, but got {got[0]} and {got[1]}, the last "
                f"{got[2]}; write what was announced and end the last document"
            )


def _write_sequences(descriptor: int, index: IdxFile, sequences: Iterable[Sequences]) -> int:
    """Write lengths, pointers and modes; return the number of sequences."""
    written = nbytes = 0
    bases = {name: start for name, (_, start, _) in index.spans.items()}
    for lengths, modes in sequences:
        block = whole_numbers(lengths, 0, MAX_LENGTH, f"sequence_lengths of {index.path}")
        kept = np.empty(0, np.int64)
        if modes is not None:
            kept = whole_numbers(modes, -128, 127, f"sequence_modes of {index.path}")
        if kept.size != block.size * index.has_modes or index.has_modes != (modes is not None):
            raise SourceError(
                f"each of the {block.size} sequences must have "
                f"{'one mode' if index.has_modes else 'no mode'}, but there are {kept.size} for "
                f"{index.path}; give one for each sequence, or has_modes=False"
            )
        if written + block.size > index.num_sequences:
            raise SourceError(
                f"{index.path} was announced with {index.num_sequences} sequences, but "
                f"{written + block.size} were written; announce the number that is written"
            )
        last_nbytes, sizes = nbytes, block * index.dtype.itemsize
        nbytes += int(block.sum()) * index.dtype.itemsize
        if nbytes > _MAX_POINTER:
            raise SourceError(
                f"the tokens of a .bin must take less than 2**63 bytes, but those for {index.path} "
                f"take {nbytes}; split the dataset"
            )
        pointers = (np.cumsum(sizes) - sizes + last_nbytes).astype("<i8")
        write_from(descriptor, block.astype("<i4"), bases["sequence_lengths"] + 4 * written)
        write_from(descriptor, pointers, bases["sequence_pointers"] + 8 * written)
        write_from(descriptor, kept.astype("i1"), bases["sequence_modes"] + written)
        written += block.size
    return written


def _write_documents(
    descriptor: int, index: IdxFile, blocks: Iterable[ArrayLike]
) -> tuple[int, int]:
    """Write document indices; return their number and the last one."""
    written = last = 0
    _, base, num_entries = index.spans["document_indices"]
    name = f"document_indices of {index.path}"
    for values in blocks:
        block = whole_numbers(values, 0, index.num_sequences, name)
        if written + block.size > num_entries:
            raise SourceError(
                f"{index.path} was announced with {num_entries} document indices, but "
                f"{written + block.size} were written; announce the number that is written"
            )
        if block.size and written == 0 and block[0] != 0:
            raise SourceError(f"{name} must begin with 0, not with {block[0]}; put a 0 in front")
        falls = np.flatnonzero(np.diff(block, prepend=last) < 0)
        if falls.size:
            raise SourceError(
                f"{name} must never fall, but entry {written + int(falls[0])} is "
                f"{block[falls[0]]}; write the documents in the order of their sequences"
            )
        write_from(descriptor, block.astype("<i8"), base + 8 * written)
        written += block.size
        last = int(block[-1]) if block.size else last
    return written, last


def write_index(
    path: str | os.PathLike[str],
    dtype: DTypeLike,
    sequence_lengths: ArrayLike,
    document_indices: ArrayLike,
    sequence_modes: ArrayLike | None = None,
) -> None:
    """Write a whole ``.idx`` file atomically; errors as of `write_index_blocks`.

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
    rows = [slice(start, start + _BLOCK) for start in range(0, lengths.size, _BLOCK)]
    write_index_blocks(
        path,
        dtype,
        ((lengths[span], None if modes is None else modes[span]) for span in rows),
        (entries[start : start + _BLOCK] for start in range(0, entries.size, _BLOCK)),
        num_sequences=lengths.size,
        num_documents=entries.size - 1,
        has_modes=modes is not None,
    )


def whole_numbers(values: ArrayLike, low: int, high: int, name: str) -> Int64Array:
    """Return a flat int64 array; SourceError names the first value outside ``[low, high]``."""
    array: AnyArray = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise SourceError(
            f"{name} must be one row of whole numbers, got shape {array.shape} and dtype "
            f"{array.dtype}; convert it first"
        )
    if array.min() < low or array.max() > high:
        at = int(np.flatnonzero((array < low) | (array > high))[0])
        raise SourceError(
            f"{name} must lie within [{low}, {high}], but entry {at} of this block is {array[at]}; "
            "correct it, or split a sequence that is too long"
        )
    return array.astype(np.int64, copy=False)
