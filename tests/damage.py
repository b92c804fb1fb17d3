"""Damage to files: bits that are flipped, and chunks that change places."""

from pathlib import Path

import numpy as np


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


def swap_chunks(content: bytes, chunks_per_shard: int, *, table: bool) -> bytes | None:
    """Return a shard whose first two chunks are swapped, and the table of checksums if asked for.

    None if they are not there, or of different sizes.
    """
    if chunks_per_shard < 2:
        return None
    tail = 16 * chunks_per_shard + 4
    index = np.frombuffer(content[-tail:-4], "<u8").reshape(-1, 2)
    if index[0, 1] != index[1, 1] or index[1, 1] > len(content):
        return None
    (first, size), (second, _) = index[:2].tolist()
    changed = bytearray(content)
    changed[first : first + size] = content[second : second + size]
    changed[second : second + size] = content[first : first + size]
    if table:
        at = int(index[index[:, 0] < len(content)].sum(axis=1).max())
        changed[at : at + 8] = content[at + 4 : at + 8] + content[at : at + 4]
    return bytes(changed)
