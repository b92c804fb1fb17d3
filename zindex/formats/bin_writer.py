"""Write a ``.bin/.idx`` pair sequence by sequence, visible only when both files are complete."""

import os
import weakref
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from zindex.arrays import AnyArray, BoolArray, DTypeLike, Int64Array
from zindex.errors import SourceError, VerificationError, shorten
from zindex.formats.bin_idx import read_index
from zindex.formats.idx_writer import MAX_LENGTH, whole_numbers, write_index
from zindex.formats.token_dtypes import AnyDType, DType
from zindex.io.create_only import exchange, partial_path
from zindex.io.local import removing, sync_directory
from zindex.io.regular_files import open_file
from zindex.io.system_errors import unwritable, writing

_COPY_NBYTES = 8 << 20


class Numbers(array):  # type: ignore[type-arg]
    """Numbers in a tenth of the memory of a list, equal to a list of them as in Megatron Core."""

    def __eq__(self, other: object) -> bool:
        return self.tolist() == (other.tolist() if isinstance(other, array) else other)

    __hash__ = None


class PairWriter:
    """Append tokens to a ``.bin``, with 13 bytes of memory per sequence for its ``.idx``.

    The ``.bin`` has a temporary name until ``finalize``, so that an existing file stays intact. A
    call that raises SourceError has not written anything.

    Parameters
    ----------
    bin_path
        Path of the ``.bin`` file.
    dtype
        Token dtype.
    has_modes
        Whether each sequence has a mode.
    """

    def __init__(
        self, bin_path: str | os.PathLike[str], dtype: DTypeLike, *, has_modes: bool = False
    ) -> None:
        DType.code_from_dtype(dtype)
        self.bin_path = os.fspath(bin_path)
        self.dtype = np.dtype(dtype)
        self.sequence_lengths = Numbers("i")
        self.document_indices = Numbers("q", [0])
        self.sequence_modes = Numbers("b") if has_modes else None
        self._partial = partial_path(self.bin_path)
        with writing(self.bin_path):
            self.data_file: BinaryIO = open(self._partial, "xb", buffering=1 << 20)  # noqa: SIM115
        self._discard = weakref.finalize(self, _discard, self.data_file, self._partial, os.getpid())

    def append(self, values: Any, lengths: Any = None, modes: Any = None) -> int:
        """Append the tokens of one sequence, or of several with the given lengths and modes.

        Returns
        -------
        num_sequences
            Sequences appended.

        Raises
        ------
        SourceError
            If a token does not fit the dtype, the lengths do not sum to the number of tokens, or
            the modes are not one int8 per sequence.
        """
        tokens = convert_tokens(values, self.dtype, owner=self.bin_path)
        sizes = tokens.size if lengths is None else lengths
        name = f"sequence_lengths of {self.bin_path}"
        kept = whole_numbers(np.atleast_1d(np.asarray(sizes)), 0, MAX_LENGTH, name)
        if int(kept.sum()) != tokens.size:
            raise SourceError(
                f"sequence lengths must add up to the tokens given, {tokens.size}, but for "
                f"{self.bin_path} they add up to {int(kept.sum())}; "
                "count an appended end-of-document token too"
            )
        kept_modes = np.zeros(kept.size, np.int64)
        if modes is not None and self.sequence_modes is not None:
            name = f"sequence_modes of {self.bin_path}"
            kept_modes = whole_numbers(np.atleast_1d(np.asarray(modes)), -128, 127, name)
        if kept_modes.size != kept.size:
            raise SourceError(
                f"each of the {kept.size} sequences for {self.bin_path} must have one mode, "
                f"but there are {kept_modes.size}; give one for each sequence"
            )
        try:
            self.data_file.write(tokens.view(np.uint8).data if tokens.size else b"")
        except OSError as error:
            raise unwritable(self.bin_path, error, tokens.nbytes) from error
        self.sequence_lengths.frombytes(kept.astype(np.int32).tobytes())
        if self.sequence_modes is not None:
            self.sequence_modes.frombytes(kept_modes.astype(np.int8).tobytes())
        return int(kept.size)

    def append_document_ends(self, ends: Int64Array) -> None:
        """Append the numbers of sequences at which documents end."""
        self.document_indices.frombytes(ends.astype(np.int64).tobytes())

    def end_document(self) -> None:
        """End a document after the last sequence."""
        self.document_indices.append(len(self.sequence_lengths))

    def append_pair(self, prefix: str) -> None:
        """Append another pair: its tokens, sequences and documents.

        Raises
        ------
        SourceError
            If the pair is damaged, has another dtype, or lacks required modes.
        VerificationError
            If its ``.bin`` is truncated while it is copied.
        """
        source = read_index(prefix, multimodal=self.sequence_modes is not None)
        if source.dtype != self.dtype:
            raise SourceError(
                f"datasets can be joined only if their tokens have one dtype, but {source.path} "
                f"has {source.dtype.name} and {self.bin_path} has {self.dtype.name}; convert one"
            )
        num_sequences, first = source.num_sequences, len(self.sequence_lengths)
        lengths = source.sequence_lengths(0, num_sequences)
        ends = source.document_indices(1, source.num_documents + 1)
        modes = None if self.sequence_modes is None else source.sequence_modes(0, num_sequences)
        before = self.data_file.tell()
        try:
            self._copy_tokens(f"{prefix}.bin", source.bin_nbytes)
        except (VerificationError, OSError):
            self.data_file.seek(before)
            self.data_file.truncate()
            raise
        self.sequence_lengths.frombytes(lengths.view(np.uint8).data)
        self.append_document_ends(first + ends)
        if self.sequence_modes is not None and modes is not None:
            self.sequence_modes.frombytes(modes.view(np.uint8).data)

    def finalize(self, idx_path: str | os.PathLike[str]) -> None:
        """Write the ``.idx`` and rename both files, the ``.idx`` last.

        An error during writing leaves existing files intact, and ``finalize`` may be called again.

        Raises
        ------
        SourceError
            If sequences follow the last ``end_document``, or the writer was finalized before.
        VerificationError
            If an earlier write failed partway.
        """
        if self.data_file.closed:
            raise SourceError(
                f"a builder can be finalized once, but {self.bin_path} is closed already; "
                "make a new builder"
            )
        num_sequences, last = len(self.sequence_lengths), self.document_indices[-1]
        if last != num_sequences:
            raise SourceError(
                f"every sequence must belong to a document, but {self.bin_path} has "
                f"{num_sequences} sequences and its last document ends after {last}; "
                "call end_document() before finalize()"
            )
        lengths = np.frombuffer(self.sequence_lengths, np.int32)
        wanted = int(lengths.sum(dtype=np.int64)) * self.dtype.itemsize
        with writing(self.bin_path):
            self.data_file.flush()
            status = os.fstat(self.data_file.fileno())
        if status.st_size != wanted:
            raise VerificationError(
                f"the sequences of {self.bin_path} take {wanted} bytes, but {status.st_size} were "
                "written because a write failed on the way; make room and build it again"
            )
        with writing(self.bin_path, wanted):
            os.fsync(self.data_file.fileno())
        index, entries = partial_path(idx_path), np.frombuffer(self.document_indices, np.int64)
        modes = None
        if self.sequence_modes is not None:
            modes = np.frombuffer(self.sequence_modes, np.int8)
        write_index(index, self.dtype, lengths, entries, modes)
        with writing(idx_path), writing(self.bin_path), removing(index):
            self.data_file.close()
            # A new .bin must never be combined with an old .idx, not even after a power loss.
            if os.path.lexists(idx_path):
                os.unlink(idx_path)
                sync_directory(Path(idx_path).parent)
            exchange(self._partial, self.bin_path, status)
            sync_directory(Path(self.bin_path).parent)
            self._discard.detach()
            exchange(index, idx_path, os.stat(index))
            sync_directory(Path(idx_path).parent)

    def _copy_tokens(self, bin_path: str, nbytes: int) -> None:
        """Append a whole ``.bin``."""
        copied = 0
        with open_file(bin_path, buffering=0) as source:
            while copied < nbytes and (block := source.read(min(_COPY_NBYTES, nbytes - copied))):
                self.data_file.write(block)
                copied += len(block)
        if copied != nbytes:
            raise VerificationError(
                f"{bin_path} must hold {nbytes:,} bytes, as when it was checked, but ended after "
                f"{copied:,}; restore the file and add it again"
            )


def _discard(data_file: BinaryIO, partial: str, process: int) -> None:
    """Remove the file of a writer that was never finalized, except in a forked child."""
    if os.getpid() == process:
        data_file.close()
        Path(partial).unlink(missing_ok=True)


def convert_tokens(values: Any, dtype: DTypeLike, *, owner: str) -> AnyArray:
    """Return the values as a flat array of the dtype; raise if a value would change.

    Parameters
    ----------
    values
        An array, or a sequence of numbers or of decimal strings.
    dtype
        Token dtype of the result.
    owner
        Destination of the tokens, for error messages.

    Returns
    -------
    tokens
        One-dimensional, C order. Shares memory with ``values`` if nothing was converted.

    Raises
    ------
    SourceError
        If a value is not a number, or does not fit the dtype; only floats may be rounded.

    Examples
    --------
    >>> convert_tokens(["1", "22"], np.uint16, owner="example.bin")
    array([ 1, 22], dtype=uint16)
    """
    target = np.dtype(dtype)
    try:
        array = np.asarray(values)
        if array.size == 0:
            return np.empty(0, target)
        if array.dtype.kind in "US":
            array = array.astype(np.float64 if target.kind == "f" else np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise SourceError(
            f"tokens for {owner} must be numbers or decimal strings in one flat row, got "
            f"{shorten(values)} ({error}); flatten or parse them first"
        ) from error
    if array.dtype.kind not in "biufO":
        raise SourceError(
            f"tokens for {owner} must be numbers or decimal strings, got dtype "
            f"{array.dtype}; parse them first"
        )
    # numpy calls int64 to float64 safe, but a float64 has 53 bits of precision.
    loses_digits = target.kind == "f" and array.dtype.kind in "iu" and array.itemsize == 8
    if loses_digits or not np.can_cast(array.dtype, target, "safe"):
        _check_values(array, target, owner)
    return np.ascontiguousarray(array, target).reshape(-1)


def _check_values(array: AnyArray, target: AnyDType, owner: str) -> None:
    """Raise for the first value that the target dtype cannot represent."""
    if array.dtype.kind in "iu" and target.kind in "iu":
        limits = np.iinfo(target)
        outside = (array < limits.min) | (array > limits.max)
    elif array.dtype.kind == "O":
        outside = np.array([not _fits(value, target) for value in array.reshape(-1)])
    else:
        with np.errstate(all="ignore"):
            cast = array.astype(target)
            if array.dtype.kind == "f" and target.kind == "f":
                outside = np.isfinite(array) & ~np.isfinite(cast)
            elif target.kind == "f":
                outside = _float_differs(array, cast)
            else:
                # 2**63 as a float is the first value outside int64, but casts to the last one
                # inside.
                outside = (cast.astype(array.dtype) != array) | (array >= 2.0**63)
    first = np.flatnonzero(outside)
    if first.size:
        raise SourceError(
            f"tokens for {owner} must fit {target.name}, but value {array.reshape(-1)[first[0]]} "
            f"at position {first[0]} does not; use a wider dtype or correct the tokenizer"
        )


def _float_differs(array: AnyArray, cast: AnyArray) -> BoolArray:
    """Return where integers lost precision as floats."""
    exact = np.abs(cast.astype(np.float64)) < 2.0**63
    differs = ~exact
    differs[exact] = cast[exact].astype(np.int64) != array[exact]
    return differs


def _fits(value: Any, target: AnyDType) -> bool:
    """Return whether a dtype represents a Python number exactly."""
    try:
        with np.errstate(all="ignore"):
            return bool(np.array([value], target)[0].item() == value)
    except (OverflowError, ValueError, TypeError):
        return False
