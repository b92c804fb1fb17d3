"""Validate the ``.idx`` files of Megatron's ``.bin/.idx`` pairs, and read them by span.

Layout of an ``.idx`` file, little endian and unpadded: magic (9 bytes), version u64, dtype code u8,
number of sequences u64, entries of ``document_indices`` u64; then int32 lengths in tokens, int64
pointers in bytes, int64 document indices and, if multimodal, int8 modes.
"""

import os
import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int8Array, Int32Array, Int64Array
from zindex.errors import SourceError
from zindex.formats.token_dtypes import TOKEN_DTYPES, AnyDType
from zindex.io.local import map_file, read_exactly, read_into
from zindex.io.regular_files import open_file, open_regular
from zindex.io.system_errors import unreadable

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

# Elements that are validated at a time: 2.5 bytes of scratch per byte of cache.
_BLOCK = 1 << 16
# Above the size of any file, and far enough below 2**63 that a block's sum cannot overflow.
_MAX_NBYTES = 1 << 62


class IdxArrays(NamedTuple):
    """The complete arrays of an ``.idx`` file."""

    #: Shape (sequences,), int32, tokens.
    sequence_lengths: Int32Array
    #: Shape (sequences,), int64, bytes from the start of the ``.bin``.
    sequence_pointers: Int64Array
    #: Shape (documents + 1,), int64, first sequence of each document.
    document_indices: Int64Array
    #: Shape (sequences,), int8, or None if the file has no modes.
    sequence_modes: Int8Array | None


@dataclass(frozen=True, slots=True)
class IdxFile:
    """An ``.idx`` file that has passed every check of ``read_index``.

    It keeps no open file, pickles as its fields, and reads spans into new arrays. A span outside
    the array is an IndexError; a file truncated after validation is a VerificationError.
    """

    #: Path of the ``.idx`` file.
    path: str
    #: Dtype of the tokens in the ``.bin``.
    dtype: AnyDType
    #: Sequences as Megatron stores them.
    num_sequences: int
    #: Documents; ``document_indices`` has one entry more.
    num_documents: int
    #: Tokens of all sequences together.
    num_tokens: int
    #: Whether the file stores a mode for each sequence.
    has_modes: bool

    @property
    def nbytes(self) -> int:
        """Size of the ``.idx`` file in bytes."""
        _, start, length = self.spans["sequence_modes"]
        return start + length

    @property
    def bin_nbytes(self) -> int:
        """Required size of the ``.bin`` file in bytes."""
        return self.num_tokens * self.dtype.itemsize

    @property
    def spans(self) -> dict[str, tuple[str, int, int]]:
        """Dtype, first byte and length of each array, in the order of the file."""
        pointers = HEADER.size + 4 * self.num_sequences
        documents = pointers + 8 * self.num_sequences
        modes = documents + 8 * (self.num_documents + 1)
        return {
            "sequence_lengths": ("<i4", HEADER.size, self.num_sequences),
            "sequence_pointers": ("<i8", pointers, self.num_sequences),
            "document_indices": ("<i8", documents, self.num_documents + 1),
            "sequence_modes": ("i1", modes, self.num_sequences * self.has_modes),
        }

    def sequence_lengths(self, start: int, stop: int) -> Int32Array:
        """Return the tokens of sequences ``[start, stop)``, shape (stop - start,), int32."""
        return self._read("sequence_lengths", start, stop)

    def sequence_offsets(self, start: int, stop: int) -> Int64Array:
        """Return the tokens before sequences ``[start, stop)``, int64; the last is the total."""
        offsets = np.full(stop - start, self.num_tokens, np.int64)
        num_starts = min(stop, self.num_sequences) - start
        pointers = self._read("sequence_pointers", start, start + num_starts)
        offsets[:num_starts] = pointers // self.dtype.itemsize
        return offsets

    def document_indices(self, start: int, stop: int) -> Int64Array:
        """Return entries ``[start, stop)`` of the document indices; there are documents + 1."""
        return self._read("document_indices", start, stop)

    def sequence_modes(self, start: int, stop: int) -> Int8Array:
        """Return the modes of sequences ``[start, stop)``, int8; SourceError if there are none."""
        if not self.has_modes:
            raise SourceError(
                f"a mode for each sequence was asked for, but {self.path} has none; "
                "look at has_modes first"
            )
        return self._read("sequence_modes", start, stop)

    def map_arrays(self) -> IdxArrays:
        """Map all arrays read-only, without copying; truncating the file kills the process."""
        content = map_file(self.path, self.nbytes)
        arrays = {
            name: content[start : start + length * np.dtype(dtype).itemsize].view(dtype)
            for name, (dtype, start, length) in self.spans.items()
        }
        return IdxArrays(**arrays if self.has_modes else arrays | {"sequence_modes": None})

    def read_into(self, array: AnyArray, name: str, start: int) -> None:
        """Fill an array with elements from ``start`` on of an array of ``spans``."""
        try:
            with open_file(self.path, buffering=0) as stream:
                offset = self.spans[name][1] + start * array.itemsize
                read_exactly(self.path, stream.fileno(), array, offset)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _read(self, name: str, start: int, stop: int) -> AnyArray:
        """Read elements ``[start, stop)`` of an array."""
        dtype, _, size = self.spans[name]
        if not 0 <= start <= stop <= size:
            raise IndexError(
                f"a span must lie within [0, {size}), but [{start}, {stop}) was asked of "
                f"{self.path}; clip it first"
            )
        array = np.empty(stop - start, dtype)
        self.read_into(array, name, start)
        return array


def idx_path(prefix: str | os.PathLike[str]) -> str:
    """Return the path of the index file of a pair."""
    return f"{os.fspath(prefix)}.idx"


def bin_path(prefix: str | os.PathLike[str]) -> str:
    """Return the path of the token file of a pair."""
    return f"{os.fspath(prefix)}.bin"


def read_index(
    prefix: str | os.PathLike[str], *, multimodal: bool | None = None, require_bin: bool = True
) -> IdxFile:
    """Validate all of ``prefix.idx``, and the size of ``prefix.bin``.

    Parameters
    ----------
    prefix
        Path of the pair without ``.idx``.
    multimodal
        True requires a mode for each sequence; otherwise the size of the file decides.
    require_bin
        False ignores the ``.bin``, for work on lengths only.

    Returns
    -------
    idx_file
        The validated file, safe to read by position.

    Raises
    ------
    SourceError
        If either file is missing or contradicts the format.

    Notes
    -----
    Law: an accepted file has ``pointers[i] == itemsize * sum(lengths[:i])`` in exact integers, and
    every sequence is within the ``.bin``. Cost: one pass over the file in blocks of 65,536 elements
    (2 MB of memory for any count), about 2 ns per sequence once cached. The format has no checksum:
    changing a token, mode or document boundary, or a dtype code to another one of the same size,
    gives another valid file.
    """
    tokens_path = bin_path(prefix) if require_bin else None
    return read_idx_file(idx_path(prefix), tokens_path, multimodal=multimodal)


def read_idx_file(path: str, tokens_path: str | None, *, multimodal: bool | None = None) -> IdxFile:
    """Validate an index as `read_index` does, given both paths; None ignores the ``.bin``."""
    try:
        descriptor, size = open_regular(path)
        try:
            raw = np.zeros(HEADER.size, np.uint8)
            came = read_into(descriptor, raw, 0)
            index = parse_header(raw[:came].tobytes(), size, path, multimodal=multimodal)
            nbytes = _check_sequences(descriptor, index)
            _check_documents(descriptor, index)
        finally:
            os.close(descriptor)
        if tokens_path is not None:
            tokens_descriptor, size = open_regular(tokens_path)
            os.close(tokens_descriptor)
            check_bin(tokens_path, size, nbytes, path)
    except OSError as error:
        raise SourceError(
            f"both files of a .bin/.idx pair must be readable, but {error.filename or path} "
            f"is not ({error.strerror}); give the path of the pair without its suffix"
        ) from error
    return replace(index, num_tokens=nbytes // index.dtype.itemsize)


def parse_header(raw: bytes, size: int, path: str, *, multimodal: bool | None = None) -> IdxFile:
    """Parse the header of an ``.idx`` file, and check it against the size of the file.

    Parameters
    ----------
    raw
        The first ``HEADER.size`` bytes of the file, or all if there are fewer.
    size
        Bytes of the whole file; negative if unknown.
    path
        Path or URL, for messages.
    multimodal
        True requires a mode for each sequence; otherwise the size decides.

    Returns
    -------
    idx_file
        The facts of the header, with 0 tokens, which the header does not contain.

    Raises
    ------
    SourceError
        If the header contradicts the format or the size.
    """
    came = len(raw)
    magic, version, code, num_sequences, num_entries = HEADER.unpack(raw.ljust(HEADER.size, b"\0"))
    if came < HEADER.size or magic != MAGIC:
        raise SourceError(
            f"an .idx file must begin with the {HEADER.size} bytes of a header and with {MAGIC!r}, "
            f"but {path} has {size} bytes and begins with {raw[: min(came, 9)]!r}; "
            "give the prefix of a Megatron .bin/.idx pair"
        )
    if version != VERSION:
        raise SourceError(
            f"an .idx file must have version {VERSION}, but {path} has version {version}; "
            "write it again with the current format"
        )
    if code not in TOKEN_DTYPES:
        raise SourceError(
            f"the dtype code of an .idx file must be one of 1 to 8, but byte 17 of {path} is "
            f"{code}; the file is damaged, so restore it"
        )
    if num_entries < 1:
        raise SourceError(
            f"document_indices must have at least 1 entry, but the header of {path} counts "
            f"{num_entries}; the file is damaged, so restore it"
        )
    plain = HEADER.size + 12 * num_sequences + 8 * num_entries
    with_modes = plain + num_sequences
    if size >= 0 and size not in (plain, with_modes):
        raise SourceError(
            f"an .idx file of {num_sequences} sequences and {num_entries} document indices must "
            f"have {plain} bytes ({with_modes} with modes), but {path} has {size}; "
            "the file is cut or damaged, so restore it"
        )
    if multimodal and size != with_modes:
        raise SourceError(
            f"a multimodal .idx file of {num_sequences} sequences must have {with_modes} bytes, "
            f"but {path} has {size} and so no modes; open it without multimodal"
        )
    has_modes = size != plain or bool(multimodal)
    return IdxFile(path, TOKEN_DTYPES[code], num_sequences, num_entries - 1, 0, has_modes)


def _check_sequences(descriptor: int, index: IdxFile) -> int:
    """Check lengths and pointers in blocks, and return the bytes of all sequences."""
    num_scratch = min(_BLOCK, index.num_sequences)
    all_lengths = np.empty(num_scratch, "<i4")
    all_pointers = np.empty(num_scratch, "<i8")
    all_stops = np.empty(num_scratch, np.int64)
    itemsize = np.int64(index.dtype.itemsize)
    pointers_start = index.spans["sequence_pointers"][1]
    nbytes = 0
    for start in range(0, index.num_sequences, _BLOCK):
        count = min(_BLOCK, index.num_sequences - start)
        lengths, pointers, stops = all_lengths[:count], all_pointers[:count], all_stops[:count]
        read_exactly(index.path, descriptor, lengths, HEADER.size + 4 * start)
        read_exactly(index.path, descriptor, pointers, pointers_start + 8 * start)
        if lengths.min() < 0:
            at = int(np.flatnonzero(lengths < 0)[0])
            raise SourceError(
                f"a sequence length must be at least 0, but sequence_lengths[{start + at}] of "
                f"{index.path} is {lengths[at]}; the file is damaged, so restore it"
            )
        # stops[i] = pointers[i] + its bytes may overflow for a hostile pointer, but never for a
        # valid one, and each pointer is compared with the previous one.
        np.multiply(lengths, itemsize, out=stops, dtype=np.int64)
        np.add(stops, pointers, out=stops)
        right = pointers[1:] == stops[:-1]
        if pointers[0] != nbytes or not right.all():
            at = 0 if pointers[0] != nbytes else 1 + int(np.flatnonzero(~right)[0])
            wanted = nbytes if at == 0 else stops[at - 1]
            raise SourceError(
                f"a sequence pointer must be the bytes of all sequences before it, {wanted}, but "
                f"sequence_pointers[{start + at}] of {index.path} is {pointers[at]}; "
                "the file is damaged or was written with 32-bit sums, so write it again"
            )
        nbytes = int(stops[-1])
        if nbytes > _MAX_NBYTES:
            raise SourceError(
                f"the sequences of an .idx file must take at most {_MAX_NBYTES} bytes, but those "
                f"up to sequence {start + count} of {index.path} take {nbytes}; split the dataset"
            )
    return nbytes


def _check_documents(descriptor: int, index: IdxFile) -> None:
    """Check that the document indices rise from 0 to the number of sequences."""
    _, documents_start, num_entries = index.spans["document_indices"]
    entries = np.zeros(min(_BLOCK, num_entries) + 1, "<i8")
    last = 0
    for start in range(0, num_entries, _BLOCK):
        count = min(_BLOCK, num_entries - start)
        block = entries[1 : count + 1]
        read_exactly(index.path, descriptor, block, documents_start + 8 * start)
        if start == 0 and block[0] != 0:
            raise SourceError(
                f"document_indices must begin with 0, but document_indices[0] of {index.path} is "
                f"{block[0]}; the file is damaged, so restore it"
            )
        entries[0] = last
        falls = block < entries[:count]
        if falls.any():
            at = int(np.flatnonzero(falls)[0])
            raise SourceError(
                f"document_indices must never fall, but document_indices[{start + at}] of "
                f"{index.path} is {block[at]} after {entries[at]}; "
                "the file is damaged, so restore it"
            )
        last = int(block[-1])
    if last != index.num_sequences:
        raise SourceError(
            f"document_indices must end with the number of sequences, {index.num_sequences}, but "
            f"document_indices[{num_entries - 1}] of {index.path} is {last}; "
            "the file is damaged, or its writer ended before end_document()"
        )


def check_bin(tokens_path: str, size: int | None, nbytes: int, path: str) -> None:
    """Check that a ``.bin`` ends where the last sequence of its ``.idx`` does; None if unknown."""
    if size not in (None, nbytes):
        raise SourceError(
            f"{tokens_path} must have {nbytes} bytes, where the last sequence of {path} ends, but "
            f"has {size}; it is cut, unfinished or of another dataset, so restore the pair"
        )


def missing_object(url: str) -> SourceError:
    """Return the error for a missing file of a pair in object storage."""
    return SourceError(
        f"both files of a .bin/.idx pair must be in object storage, but there is no {url}; give "
        "the URL of the pair without its suffix"
    )
