"""Parse and check the headers of tar archives; nothing is opened, created or followed.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual,
"Basic Tar Format". Reads old (v7), ustar, GNU and pax archives.
"""

import re
from dataclasses import dataclass
from zlib import adler32

from zindex.errors import SourceError

#: Size of a header; contents are padded to a multiple of it.
BLOCK_NBYTES = 512
#: Maximum bytes of a long name or of the fields of a pax header.
MAX_EXTENSION_NBYTES = 1 << 20
_ZEROS = bytes(BLOCK_NBYTES)
# The modulus of adler32, whose low half is a plain sum of bytes.
_ADLER = 65521
_PAX_LENGTH = re.compile(rb"(\d{1,7}) ")
_DIGITS = re.compile(r"\d{1,19}")

#: Kinds of members, by their type byte.
REGULAR = frozenset(b"0\x007")
DIRECTORY = ord("5")
#: Extended headers: two kinds of pax, the pax of all members, a long name, and a long link.
EXTENSIONS = frozenset(b"xXgLK")
#: Members that are rejected; none has content.
LINKS = {
    ord("1"): "a hard link",
    ord("2"): "a symbolic link",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a pipe",
}


def read_header(buffer: bytes, at: int) -> tuple[bytes, int, int] | None:
    """Parse a header: name, bytes of content and kind of its member.

    Parameters
    ----------
    buffer
        Holds at least ``at + 512`` bytes.
    at
        Offset of the header.

    Returns
    -------
    header
        None for a block of zeros, which ends an archive.

    Raises
    ------
    SourceError
        If this is not a header, with the reason only; the caller adds the file.
    """
    if not buffer[at] and buffer[at : at + BLOCK_NBYTES] == _ZEROS:
        return None
    # The checksum is the sum of all bytes, with its own eight as blanks. The low half of adler32
    # from zero is that sum modulo a prime, thirty times as fast as sum().
    total = adler32(buffer[at + 156 : at + 512], adler32(buffer[at : at + 148], 0)) & 0xFFFF
    try:
        stored = int(buffer[at + 148 : at + 156].strip(b" \0"), 8)
    except ValueError:
        raise SourceError("there is no tar header") from None
    if (stored - 256) % _ADLER != total and not _is_signed_sum(buffer, at, stored):
        raise SourceError("there is a tar header whose checksum is wrong")
    field = buffer[at + 124 : at + 136]
    try:
        nbytes = int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        nbytes = _read_base256(field)
    if nbytes < 0:
        raise SourceError("there is a tar header with a negative size")
    end = buffer.find(b"\0", at, at + 100)
    name = buffer[at : end if end >= 0 else at + 100]
    if buffer[at + 345] and buffer[at + 257 : at + 263] == b"ustar\0":
        name = buffer[at + 345 : at + 500].partition(b"\0")[0] + b"/" + name
    return name, nbytes, buffer[at + 156]


def _is_signed_sum(buffer: bytes, at: int, stored: int) -> bool:
    """Return whether a checksum is a sum of signed bytes, as some old programs write it."""
    block = buffer[at : at + 148] + b" " * 8 + buffer[at + 156 : at + BLOCK_NBYTES]
    return stored == sum(block) - 256 * sum(byte > 127 for byte in block)


def _read_base256(field: bytes) -> int:
    """Parse a size that is too large for octal digits."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        return -1
    raise SourceError(f"there is a tar header whose size is no number: {field!r}")


@dataclass(slots=True)
class Extension:
    """The fields of extended headers, which override those of the next member."""

    name: bytes | None = None
    nbytes: int | None = None
    is_sparse: bool = False

    def take(self, kind: int, content: bytes) -> None:
        """Apply an extended header of one of `EXTENSIONS`; errors as of `take_pax`."""
        if kind == ord("L"):
            self.name = content.partition(b"\0")[0]
        elif kind == ord("g"):
            Extension().take_pax(content, is_global=True)
        elif kind != ord("K"):
            self.take_pax(content)

    def take_pax(self, content: bytes, *, is_global: bool = False) -> None:
        """Apply the fields of a pax header; SourceError, with the reason only, if it is damaged."""
        at = 0
        while at < len(content):
            found = _PAX_LENGTH.match(content, at)
            stop = at + int(found[1]) if found is not None else 0
            if found is None or not found.end() < stop <= len(content) or content[stop - 1] != 10:
                # The rest may be padding by old programs.
                if content.count(0, at) == len(content) - at:
                    return
                raise SourceError("there is a pax header that cannot be read")
            key, _, value = content[found.end() : stop - 1].partition(b"=")
            if key in (b"path", b"size") and is_global:
                raise SourceError(f"there is a global pax header with a {key.decode()} for all")
            if key == b"path":
                self.name = value.rstrip(b"/")
            elif key == b"size":
                self.nbytes = _read_digits(value)
            elif key.startswith(b"GNU.sparse."):
                self.is_sparse = True
            at = stop


def _read_digits(value: bytes) -> int:
    """Parse the size in a pax header."""
    text = value.decode("ascii", "replace")
    if not _DIGITS.fullmatch(text):
        raise SourceError(f"there is a pax header whose size is no number: {text[:40]!r}")
    return int(text)
