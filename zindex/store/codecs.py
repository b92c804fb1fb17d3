"""Decode chunks: verify checksums first, and never decompress more than expected.

Supported codecs of the Zarr v3 specification: ``bytes`` in native byte order, a ``transpose``
without effect, ``zstd``, ``blosc``, ``gzip`` and ``crc32c``.
"""

import ctypes
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from typing import Any

import google_crc32c
import numpy as np
from numcodecs import blosc, zstd
from numcodecs.zstd import Zstd

from zindex.arrays import AnyArray
from zindex.errors import VerificationError

Buffer = bytes | bytearray | memoryview
CRC_NBYTES = 4
_COMPRESSORS = ("zstd", "blosc", "gzip")
_BLOSC_HEADER_NBYTES = 16
_ZSTD_MAGIC = 0xFD2FB528
_GZIP = 16 + zlib.MAX_WBITS


def checksum(buffer: Buffer) -> int:
    """Return the crc32c of a buffer."""
    # The C function refuses memoryviews, but accepts an array view of the same bytes.
    return int(google_crc32c.value(np.frombuffer(buffer, np.uint8)))


def most_nbytes(nbytes: int) -> int:
    """Return the maximum size of a compressed chunk: incompressible values grow slightly."""
    return nbytes + nbytes // 128 + 1024


@cache
def _c_functions() -> tuple[Any, int, int] | None:
    """Return numcodecs' zstd, and addresses of ``ZSTD_decompressDCtx`` and ``crc32c_value``.

    None if the libraries of numcodecs and google-crc32c do not export what is used here.
    """
    try:
        library, checksums = ctypes.CDLL(zstd.__file__), ctypes.CDLL(google_crc32c._crc32c.__file__)
        functions = library.ZSTD_decompressDCtx, checksums.crc32c_value
        library.ZSTD_createDCtx.restype = library.ZSTD_createCCtx.restype = ctypes.c_void_p
        library.ZSTD_compressCCtx.restype = ctypes.c_size_t
    except (OSError, AttributeError):
        return None
    decompress, check = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions)
    return library, decompress, check


def compress_chunks(chunks: Iterable[AnyArray], nbytes: int, level: int) -> Iterator[bytes]:
    """Yield chunks of at most ``nbytes`` bytes compressed with zstd, as numcodecs compresses them.

    All chunks share a context, since creating one takes half as long as compressing 4 KiB.
    """
    functions = _c_functions()
    if functions is None:
        yield from map(Zstd(level).encode, chunks)
        return
    library, pointer, size = functions[0], ctypes.c_void_p, ctypes.c_size_t
    context = pointer(library.ZSTD_createCCtx())
    frame = np.empty(most_nbytes(nbytes), np.uint8)
    target = pointer(frame.ctypes.data), size(frame.nbytes)
    try:
        for chunk in chunks:
            source = pointer(chunk.__array_interface__["data"][0]), size(chunk.nbytes)
            length = library.ZSTD_compressCCtx(context, *target, *source, level)
            if length > frame.nbytes:  # an error code: nothing else fails if the frame fits
                raise MemoryError
            yield frame[:length].tobytes()
    finally:
        library.ZSTD_freeCCtx(context)


# Unused decoders, as fields and memory; at most one per thread that ever ran concurrently.
_decoders: list[tuple[AnyArray, AnyArray]] = []


@contextmanager
def lend_decoder(nbytes: int) -> Iterator[int]:
    """Lend a decoder to a kernel: its address, as of `zindex.kernels.gather`.

    Parameters
    ----------
    nbytes
        Size of its memory. Required for a chain with `CodecChain.kernel_decodes`.
    """
    try:
        fields, memory = _decoders.pop()
    except IndexError:
        functions = _c_functions()
        assert functions is not None
        library, *addresses = functions
        context = library.ZSTD_createDCtx()
        fields, memory = np.array([context, *addresses, 0, 0, 0, 0]), np.empty(0, np.uint8)
    if memory.nbytes < nbytes:
        memory = np.empty(nbytes, np.uint8)
    fields[3:] = memory.ctypes.data, memory.nbytes, 0, 0
    try:
        yield fields.ctypes.data
    finally:
        _decoders.append((fields, memory))


@dataclass(frozen=True, slots=True)
class CodecChain:
    """The codecs of a chunk, in the order of encoding."""

    #: Each of ``"crc32c"``, ``"zstd"``, ``"blosc"``, ``"gzip"``; at most one compresses.
    steps: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the values are stored unencoded, at most followed by a checksum."""
        return self.steps in ((), ("crc32c",))

    @property
    def checked(self) -> bool:
        """Whether the bytes have a checksum."""
        return "crc32c" in self.steps

    @property
    def kernel_decodes(self) -> bool:
        """Whether kernels can decode chunks: zstd, at most followed by a checksum."""
        return self.steps in (("zstd",), ("zstd", "crc32c")) and _c_functions() is not None

    def decode(self, stored: Buffer, nbytes: int, where: str, *, check: bool = True) -> Buffer:
        """Return the decoded bytes.

        Parameters
        ----------
        stored
            Bytes of the chunk in the file.
        nbytes
            Size of the decoded chunk.
        where
            The chunk, for messages.
        check
            Whether checksums are verified.

        Raises
        ------
        VerificationError
            If a checksum is wrong, or the decoded size is not ``nbytes``.
        """
        body = stored
        for place in reversed(range(len(self.steps))):
            step = self.steps[place]
            if step == "crc32c":
                end = len(body) - CRC_NBYTES
                found = body[max(0, end) :]
                body = memoryview(body)[: max(0, end)]
                if check and (end < 0 or int.from_bytes(found, "little") != checksum(body)):
                    raise VerificationError(f"{where} fails its checksum")
            else:
                inside = self.steps[:place].count("crc32c") * CRC_NBYTES
                body = _decompress(step, body, nbytes + inside, where)
        if len(body) != nbytes:
            raise VerificationError(f"{where} must hold {nbytes} bytes, got {len(body)}")
        return body


def _decompress(step: str, body: Buffer, nbytes: int, where: str) -> Buffer:
    """Return decompressed bytes; if the header has another size, raise before decompressing."""
    said: int | None = None
    if step == "zstd":
        said = _zstd_nbytes(body)
    elif step == "blosc" and len(body) >= _BLOSC_HEADER_NBYTES:
        said = int.from_bytes(body[4:8], "little")
        if int.from_bytes(body[12:16], "little") != len(body):
            said = -1
    if (step != "gzip" and said is None) or (said is not None and said != nbytes):
        raise VerificationError(
            f"{where} must hold {nbytes} bytes of {step}, its header says "
            f"{'nothing of its size' if said is None else said}"
        )
    try:
        if step == "gzip":
            return _gunzip(body, nbytes)
        decoded: Buffer = Zstd().decode(body) if step == "zstd" else blosc.decompress(bytes(body))
    except (RuntimeError, ValueError, zlib.error) as error:
        raise VerificationError(f"{where} must hold {nbytes} bytes of {step}: {error}") from error
    return decoded


def _gunzip(body: Buffer, nbytes: int) -> bytes:
    """Return the bytes of one gzip member; ValueError if their size is not the expected one."""
    stream = zlib.decompressobj(_GZIP)
    decoded = stream.decompress(body, nbytes + 1)
    if len(decoded) != nbytes or not stream.eof or stream.unused_data:
        raise ValueError("its size is another one")
    return decoded


def _zstd_nbytes(frame: Buffer) -> int | None:
    """Return the decompressed size in the header of a zstd frame, if it has one.

    Source: RFC 8878, 3.1.1.1.
    """
    if len(frame) < 6 or int.from_bytes(frame[:4], "little") != _ZSTD_MAGIC:
        return None
    descriptor = frame[4]
    single_segment = bool(descriptor & 0x20)
    size_nbytes = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    if not size_nbytes:
        return None
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if len(frame) < start + size_nbytes:
        return None
    size = int.from_bytes(frame[start : start + size_nbytes], "little")
    return size + 256 if size_nbytes == 2 else size


def parse_extension(entry: Any) -> tuple[Any, dict[str, Any]]:
    """Return name and configuration of a metadata extension point; an empty name if malformed."""
    if isinstance(entry, str):
        return entry, {}
    settings = (entry.get("configuration") or {}) if isinstance(entry, dict) else None
    return (entry.get("name"), settings) if isinstance(settings, dict) else (None, {})


def parse_chain(codecs: Sequence[Any], *, itemsize: int, ndim: int) -> CodecChain | None:
    """Return the chain of a ``codecs`` list of metadata, or None if it is not supported.

    Parameters
    ----------
    codecs
        The list of ``zarr.json``.
    itemsize
        Bytes of one value.
    ndim
        Dimensions of the array.
    """
    order = list(range(ndim))
    named = dropwhile(
        lambda codec: codec[0] == "transpose" and codec[1].get("order") == order,
        map(parse_extension, codecs),
    )
    name, settings = next(named, (None, {}))
    is_native = itemsize == 1 or settings.get("endian") == "little" == sys.byteorder
    steps = tuple(step for step, _ in named)
    num_compressors = sum(step in _COMPRESSORS for step in steps)
    is_known = num_compressors <= 1 and num_compressors + steps.count("crc32c") == len(steps)
    return CodecChain(steps) if name == "bytes" and is_native and is_known else None
