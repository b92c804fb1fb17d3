"""Keyed stores of files on this machine's file systems: HDF5 files, and folders of raw arrays."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.formats.keyed.agreement import check_shards
from zindex.formats.keyed.bin_folder import read_bin_shards
from zindex.formats.keyed.h5_file import read_h5_shards
from zindex.formats.keyed.shards import KeyedArray, KeyedShard
from zindex.formats.keyed.value_ranges import read_values
from zindex.keyed.columns import Column
from zindex.keyed.mapped_column import MappedColumn
from zindex.keyed.store import Store
from zindex.store.identity import fingerprint
from zindex.store.objects import Place

# Values at the begin and at the end of every key of a shard that go into the fingerprint.
_NUM_SAMPLED = 512


class _FileStore(Store):
    """What stores of files have in common: shards that agree, and a column for every key."""

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        """Return the columns of the files at a path, and what identifies them."""
        if not isinstance(path, Path):
            raise ConfigError(
                f"a store of format {self.format!r} must be in a file system, got {path}; convert "
                "it to Zarr, which may be in an object store"
            )
        shards = check_shards(self._read_shards(path), strict)
        keys = dict.fromkeys(key for shard in shards for key in shard.arrays)
        columns = {
            key: MappedColumn([shard.arrays[key] for shard in shards if key in shard.arrays])
            for key in keys
        }
        return columns, _identify(shards)

    def _read_shards(self, path: Path) -> list[KeyedShard]:
        """Return the shards at a path."""
        raise NotImplementedError


class H5Store(_FileStore):
    """HDF5 files with a group for every key: a file, or all below a folder.

    Files are in natural order of their paths, and in each group the datasets in natural order of
    their names. Each dataset is a record, or, if it is a group of datasets, a record of items.
    Datasets in one plain piece are mapped; others are read into memory when they are first used.
    """

    format = "h5"

    def _read_shards(self, path: Path) -> list[KeyedShard]:
        """Return the files at a path."""
        return read_h5_shards(path)


class MmapStore(_FileStore):
    """Folders with a ``meta.json`` and one ``.bin`` file of raw values for every key.

    Folders are in natural order of their paths. Where records begin is known if ``meta.json`` has
    offsets, as `save_bin` writes them with ``record_keys``.
    """

    format = "bin"

    def _read_shards(self, path: Path) -> list[KeyedShard]:
        """Return the folders at a path."""
        return read_bin_shards(path)


def _identify(shards: Sequence[KeyedShard]) -> str:
    """Return the SHA-256, in hex, of what decides the samples of some shards.

    Lengths and offsets go into it whole, and values at the begin and the end of every key of a
    shard. Names and places do not, so that a copy elsewhere is the same store.
    """
    described = [
        {key: _describe(array) for key, array in sorted(shard.arrays.items())} for shard in shards
    ]
    return fingerprint({"kind": "keyed_files", "shards": described})


def _describe(array: KeyedArray) -> dict[str, Any]:
    """Return what decides the samples of one key of a shard, as JSON values."""
    digest = hashlib.sha256()
    if length := array.length:
        for start, stop in ((0, _NUM_SAMPLED), (length - _NUM_SAMPLED, length)):
            digest.update(read_values(array, max(0, start), min(stop, length)).data)
    offsets = [
        None if offset is None else hashlib.sha256(offset.data).hexdigest()
        for offset in (array.item_offset, array.group_offset)
    ]
    return {
        "dtype": array.dtype,
        "length": length,
        "offsets": offsets,
        "sampled": digest.hexdigest(),
    }
