"""Tar archives written byte by byte, so that each can be wrong in one known way."""

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

END = bytes(1024)


def header(
    name: bytes = b"a.txt",
    *,
    size: int | bytes = 0,
    kind: bytes = b"0",
    prefix: bytes = b"",
    magic: bytes = b"ustar\00000",
    checksum: int | None = None,
) -> bytes:
    """Return the 512 bytes of a header; a size in bytes is put there as it is."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = (
        name.ljust(100, b"\0")
        + b"0000644\0"
        + b"0000000\0" * 2
        + field.ljust(12, b"\0")
        + b"00000000000\0"
        + b" " * 8
        + kind
        + bytes(100)
        + magic
        + bytes(80)
        + prefix
    ).ljust(512, b"\0")
    total = sum(block) if checksum is None else checksum
    return block[:148] + b"%06o\0 " % total + block[156:]


def member(name: bytes, content: bytes = b"", **fields: Any) -> bytes:
    """Return a header and its content, padded."""
    size = fields.pop("size", len(content))
    return header(name, size=size, **fields) + content + bytes(-len(content) % 512)


def pax(fields: Mapping[str, str | bytes], kind: bytes = b"x") -> bytes:
    """Return a pax header with its fields."""
    content = b""
    for key, value in fields.items():
        text = value.encode() if isinstance(value, str) else value
        record = b" " + key.encode() + b"=" + text + b"\n"
        length = len(record)
        while length != len(b"%d" % length) + len(record):
            length = len(b"%d" % length) + len(record)
        content += b"%d" % length + record
    return member(b"PaxHeaders/x", content, kind=kind)


def write_members(path: Path, *members: bytes, end: bytes = END) -> Path:
    """Write an archive of given blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(members) + end)
    return path


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], *, form: int = tarfile.GNU_FORMAT
) -> Path:
    """Write an archive with the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def numbered(count: int, *, size: int = 100) -> list[tuple[str, bytes]]:
    """Return the members of samples 0000, 0001, ... with a txt, a png and an empty id."""
    members: list[tuple[str, bytes]] = []
    for number in range(count):
        members.append((f"{number:04d}.txt", f"text {number}".encode()))
        members.append((f"{number:04d}.png", bytes([number % 256]) * (size + number)))
        members.append((f"{number:04d}.id", b""))
    return members


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    """Write a jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in rows))
    return path


def read_all(files: Any) -> list[dict[str, Any]]:
    """Return the samples of all parts, in order."""
    return [sample for part in range(files.num_parts) for sample in files.read_part(part)]


def plain(samples: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return samples without the name of their file."""
    return [{key: value for key, value in sample.items() if key != "__url__"} for sample in samples]


def bgzip(content: bytes, size: int = 1 << 12, *, end: bool = True) -> tuple[bytes, bytes]:
    """Return content as bgzip writes it, in blocks of a size, and its index."""
    blocks, entries, at = [], [], 0
    for start in range(0, len(content), size):
        part = content[start : start + size]
        if start:
            entries.append(struct.pack("<QQ", at, start))
        blocks.append(_block(part))
        at += len(blocks[-1])
    blocks += [_block(b"")] * end
    return b"".join(blocks), struct.pack("<Q", len(entries)) + b"".join(entries)


def _block(content: bytes) -> bytes:
    stream = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = stream.compress(content) + stream.flush()
    size = struct.pack("<H", len(packed) + 25)
    ends = struct.pack("<II", zlib.crc32(content), len(content))
    return b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\6\0BC\2\0" + size + packed + ends


def seekable_zstd(content: bytes, size: int = 1 << 12, *, checksums: bool = True) -> bytes:
    """Return content in frames of a size, with a table of them; checksums are in the table only."""
    import zstandard

    frames, entries = [], b""
    summing = zstandard.ZstdCompressor(write_checksum=True)
    for start in range(0, len(content), size):
        part = content[start : start + size]
        frames.append(zstandard.ZstdCompressor().compress(part))
        entries += struct.pack("<II", len(frames[-1]), len(part))
        entries += summing.compress(part)[-4:] if checksums else b""
    foot = struct.pack("<IBI", len(frames), 0x80 * checksums, 0x8F92EAB1)
    head = struct.pack("<II", 0x184D2A5E, len(entries) + len(foot))
    return b"".join([*frames, head, entries, foot])
