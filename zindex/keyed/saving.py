"""Write tensors by key to files in AstrAI's layouts, and read them back completely.

Use stores for training; these functions write and inspect small files.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray
from zindex.errors import ConfigError
from zindex.formats.keyed.bin_folder import read_bin_shards, write_bin_folder
from zindex.formats.keyed.h5_file import EMPTY_DTYPE, read_h5_shards, write_h5_file
from zindex.formats.keyed.keyed_array import open_h5, sum_lengths
from zindex.formats.keyed.schema_presets import TOKEN_KEYS
from zindex.formats.keyed.value_rules import check_records

#: A record: flat values, or a list of them if it is a group of items.
Record = torch.Tensor | AnyArray | Sequence[torch.Tensor | AnyArray]
TensorGroup = Mapping[str, Sequence[Record]]


def save_h5(file_path: str | os.PathLike[str], file_name: str, tensor_group: TensorGroup) -> None:
    """Write tensors to ``<file_path>/<file_name>.h5``, one dataset per record.

    Parameters
    ----------
    file_path
        The folder, created if missing.
    file_name
        File name without extension.
    tensor_group
        The records of each key: flat tensors or arrays, or lists of these if a record is a group of
        items, such as the responses to a prompt.

    Raises
    ------
    ConfigError
        If a record is of another type or of bfloat16, or h5py is not installed.
    SourceError
        If a key, a dtype or a shape cannot be stored, a token id is negative, or a float is not
        finite.
    """
    arrays = _to_arrays(tensor_group)
    write_h5_file(os.path.join(file_path, f"{file_name}.h5"), arrays)


def save_bin(
    file_path: str | os.PathLike[str],
    tensor_group: TensorGroup,
    record_keys: Sequence[str] | None = None,
) -> None:
    """Write tensors to a folder of raw arrays, the records of a key concatenated.

    Parameters
    ----------
    file_path
        The folder, created if missing.
    tensor_group
        The records of each key, of one dtype: flat tensors or arrays, or lists of these if a record
        is a group of items, such as the responses to a prompt.
    record_keys
        Keys whose record bounds are stored, so that records can be read individually; None for all.
        Keys with groups are always included.

    Raises
    ------
    ConfigError
        If a record is of another type or of bfloat16, or ``record_keys`` names no key.
    SourceError
        If a key, a dtype or a shape cannot be stored, a token id is negative, or a float is not
        finite.
    """
    arrays = _to_arrays(tensor_group)
    grouped = {
        key for key, records in arrays.items() if any(isinstance(item, list) for item in records)
    }
    named = set(arrays if record_keys is None else record_keys)
    if named - arrays.keys():
        raise ConfigError(
            f"record_keys must name keys of the tensors, {', '.join(arrays)}, got "
            f"{', '.join(sorted(named - arrays.keys()))}; leave them out"
        )
    groups = {
        key: [record if isinstance(record, list) else [record] for record in records]
        for key, records in arrays.items()
    }
    flat = {key: list(chain.from_iterable(records)) for key, records in groups.items()}
    write_bin_folder(
        file_path,
        flat,
        dtypes={key: items[0].dtype.name if items else EMPTY_DTYPE for key, items in flat.items()},
        item_offset={
            key: sum_lengths([item.size for item in flat[key]]) for key in (*grouped, *named)
        },
        group_offset={key: sum_lengths([len(group) for group in groups[key]]) for key in grouped},
    )


def load_h5(file_path: str | os.PathLike[str], share_memory: bool = True) -> dict[str, list[Any]]:
    """Read all HDF5 files at or below a path into memory.

    Parameters
    ----------
    file_path
        A file or a folder.
    share_memory
        Whether to move the tensors to shared memory, for processes that start later.

    Returns
    -------
    tensors
        The records of each key over all files, in natural order: tensors, or lists of tensors.

    Raises
    ------
    StoreNotFoundError
        If there are no such files.
    SourceError
        If a file is damaged.
    """
    loaded: dict[str, list[Any]] = {}
    for shard in read_h5_shards(file_path):
        for key, array in shard.arrays.items():
            with open_h5(array.path) as file:
                found = [file[name][:] for name in array.names or ()]
            items = [torch.from_numpy(item.astype(array.dtype, copy=False)) for item in found]
            if share_memory:
                items = [item.share_memory_() for item in items]  # type: ignore[no-untyped-call]
            records: list[Any] = items
            if array.group_offset is not None:
                bounds = array.group_offset.tolist()
                records = [items[a:b] for a, b in pairwise(bounds)]
            loaded.setdefault(key, []).extend(records)
    return loaded


def load_bin(file_path: str | os.PathLike[str]) -> dict[str, list[torch.Tensor]]:
    """Memory-map all folders of raw arrays at or below a path.

    Parameters
    ----------
    file_path
        A folder.

    Returns
    -------
    tensors
        One tensor per key and folder, in natural order. Writes to a tensor are private to this
        process and do not change the file; truncating the file kills the process with SIGBUS, which
        `MmapStore` reports as an error.

    Raises
    ------
    StoreNotFoundError
        If there is no such folder.
    SourceError
        If a folder is damaged.
    """
    loaded: dict[str, list[torch.Tensor]] = {}
    for shard in read_bin_shards(file_path):
        for key, array in shard.arrays.items():
            # An empty file cannot be mapped.
            values: AnyArray = np.empty(0, array.dtype)
            if array.length:
                values = np.memmap(array.path, array.dtype, mode="c", shape=(array.length,))
            loaded.setdefault(key, []).append(torch.from_numpy(values))
    return loaded


def _to_arrays(tensor_group: TensorGroup) -> dict[str, list[Any]]:
    """Return the records of each key as arrays, or lists of arrays."""
    if not tensor_group:
        raise ConfigError("tensors must have one or more keys, got none; give a key")
    arrays = {
        key: [_to_array(record, key) for record in records] for key, records in tensor_group.items()
    }
    for key, records in arrays.items():
        check_records(key, records, "these tensors", is_tokens=key in TOKEN_KEYS)
    return arrays


def _to_array(record: Record, key: str) -> AnyArray | list[AnyArray]:
    """Return a record as an array, or as a list of arrays if it is a group."""
    if isinstance(record, np.ndarray):
        return record
    if isinstance(record, torch.Tensor):
        if record.dtype == torch.bfloat16:
            raise ConfigError(
                f"tensors must have a dtype that numpy has, {key!r} has bfloat16; store "
                "tensor.float() instead"
            )
        return record.detach().cpu().numpy()
    if isinstance(record, list | tuple):
        items = [_to_array(item, key) for item in record if not isinstance(item, list | tuple)]
        if len(items) == len(record):
            return [item for item in items if isinstance(item, np.ndarray)]
    raise ConfigError(
        f"records must be flat tensors or arrays, or lists of them, {key!r} has "
        f"{type(record).__name__} {str(record)[:40]!r}; convert it"
    )
