"""Write a ``.bin/.idx`` pair sequence by sequence, visible only when both files are complete."""

import os
import weakref
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from zindex.errors import SourceError, VerificationError
from zindex.formats.bin_idx import read_index
from zindex.formats.idx_writer import MAX_LENGTH, whole_numbers, write_index
from zindex.formats.token_dtypes import DType
from zindex.formats.token_values import convert_tokens
from zindex.io.local import partial_path

_COPY_NBYTES = 8 << 20


class PairWriter:
    """Append tokens to a ``.bin``, with 13 bytes of memory per sequence for its ``.idx``.

    The ``.bin`` has a temporary name until ``finalize``, so that an existing file stays intact. A
    call that raises SourceError has written nothing.

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
        self, bin_path: str | os.PathLike[str], dtype: npt.DTypeLike, *, has_modes: bool = False
    ) -> None:
        DType.code_from_dtype(dtype)
        self.bin_path = os.fspath(bin_path)
        self.dtype = np.dtype(dtype)
        self.sequence_lengths = array("i")
        self.document_indices = array("q", [0])
        self.sequence_modes = array("b") if has_modes else None
        self._partial = partial_path(self.bin_path)
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
                f"each of the {kept.size} sequences for {self.bin_path} must come with one mode, "
                f"but {kept_modes.size} modes came; give one for each sequence"
            )
        self.data_file.write(tokens.view(np.uint8).data if tokens.size else b"")
        self.sequence_lengths.frombytes(kept.astype(np.int32).tobytes())
        if self.sequence_modes is not None:
            self.sequence_modes.frombytes(kept_modes.astype(np.int8).tobytes())
        return int(kept.size)

    def append_document_ends(self, ends: npt.NDArray[np.int64]) -> None:
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

        After an error, existing files are intact, and ``finalize`` may be called again.

        Raises
        ------
        SourceError
            If sequences follow the last ``end_document``, or the writer was finalized before.
        VerificationError
            If an earlier write failed half way.
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
        self.data_file.flush()
        lengths = np.frombuffer(self.sequence_lengths, np.int32)
        wanted = int(lengths.sum(dtype=np.int64)) * self.dtype.itemsize
        written = os.fstat(self.data_file.fileno()).st_size
        if written != wanted:
            raise VerificationError(
                f"the sequences of {self.bin_path} take {wanted} bytes, but {written} were written "
                "because a write failed on the way; make room and build it again"
            )
        os.fsync(self.data_file.fileno())
        index, entries = partial_path(idx_path), np.frombuffer(self.document_indices, np.int64)
        modes = None
        if self.sequence_modes is not None:
            modes = np.frombuffer(self.sequence_modes, np.int8)
        write_index(index, self.dtype, lengths, entries, modes)
        try:
            self.data_file.close()
            # A new .bin must never have an old .idx.
            Path(idx_path).unlink(missing_ok=True)
            os.replace(self._partial, self.bin_path)
            self._discard.detach()
            os.replace(index, idx_path)
        finally:
            Path(index).unlink(missing_ok=True)

    def _copy_tokens(self, bin_path: str, nbytes: int) -> None:
        """Append a whole ``.bin``."""
        copied = 0
        with open(bin_path, "rb", buffering=0) as source:
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
