"""Damage to files: bits that are flipped."""

from pathlib import Path


def flipped(content: bytes, place: int, bits: int = 1) -> bytes:
    """Return content of which some bits of one byte are flipped."""
    changed = bytearray(content)
    changed[place] ^= bits
    return bytes(changed)


def flip(path: Path | str, *places: int) -> None:
    """Flip the lowest bit of some bytes of a file."""
    content = bytearray(Path(path).read_bytes())
    for place in places:
        content[place] ^= 1
    Path(path).write_bytes(content)
