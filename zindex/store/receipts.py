"""Bind shards to the commit that a reader opened: their receipts in its manifest.

A reader reads the manifest once per store, at its first shard. A shard from another location, store
or version has a different receipt, even if its own checksums are valid.
"""

import hashlib
import json
from functools import lru_cache

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import StoreError, VerificationError
from zindex.io import files
from zindex.io.objects import Place
from zindex.store.codecs import checksum
from zindex.store.commit import MANIFEST_KEY, read_root
from zindex.store.shard import REMEDY, ArrayFiles

#: By array, shape (shards, 2), int64: bytes and crc32c of each shard's receipt.
Manifest = dict[str, Int64Array]

_DIGEST_LENGTH = 64


@lru_cache(maxsize=256)
def read_manifest(root: Place, digest: str) -> Manifest:
    """Return the manifest of a commit, read once per process.

    Raises
    ------
    VerificationError
        If the store holds another commit, or its manifest is missing or damaged.
    """
    path = root / MANIFEST_KEY
    try:
        content = files.read_file(path)
    except StoreError as error:
        raise _refuse(root, digest, f"{path} cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise _refuse(root, digest, f"{path} is not the manifest that was committed")
    try:
        rows = json.loads(content)
        return {name: np.array(pairs, np.int64).reshape(-1, 2) for name, pairs in rows.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise VerificationError(f"{path} must hold receipts of shards; {REMEDY}") from error


def find_receipts(root: Place, form: ArrayFiles, version: str) -> Int64Array | None:
    """Return the receipts of an array's shards; None if its version is not that of a commit.

    Raises
    ------
    VerificationError
        As of `read_manifest`.
    """
    if not form.ours or len(version) != _DIGEST_LENGTH:
        return None
    receipts = read_manifest(root, version).get(form.name)
    if receipts is None or len(receipts) != form.num_shards:
        raise VerificationError(
            f"{root / MANIFEST_KEY} must name {form.num_shards} shards of {form.name}; {REMEDY}"
        )
    return receipts


def check_receipt(
    root: Place, form: ArrayFiles, version: str, shard: int, nbytes: int, proof: bytes | None
) -> None:
    """Raise unless a shard is the one committed at this position in the opened commit.

    Parameters
    ----------
    root, form, version, shard
        The shard.
    nbytes
        Its size.
    proof
        The checksums of its chunks and its index; None compares only the size.

    Raises
    ------
    VerificationError
        If it is another shard, or the store holds another commit.
    """
    receipts = find_receipts(root, form, version)
    if receipts is None:
        return
    committed_nbytes, crc = receipts[shard].tolist()
    if nbytes != committed_nbytes or (proof is not None and checksum(proof) != crc):
        raise _refuse(root, version, f"{form.where(shard)} of {root} is not what was committed")


def _refuse(root: Place, digest: str, problem: str) -> VerificationError:
    """Return the error for a file that is not part of a commit, or for a replaced commit."""
    try:
        is_same = read_root(root)["manifest_sha256"] == digest
    except (StoreError, VerificationError, KeyError):
        is_same = True
    if is_same:
        return VerificationError(f"{problem}; {REMEDY}")
    return VerificationError(
        f"{root} must hold what was there when it was opened, it was built again since; open it "
        "again"
    )
