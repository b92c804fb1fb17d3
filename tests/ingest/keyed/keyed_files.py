"""Small keyed files of every kind, and what they hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from zindex.formats.keyed.bin_folder import write_bin_folder
from zindex.formats.keyed.h5_file import write_h5_file
from zindex.store.open import Store
from zindex.store.record_reader import RecordReader

#: Records of three shards, of which one is empty: of each key the dtype and values of each record.
SFT_COUNTS = [[3, 0, 5, 2], [], [7] * 12, [1]]


def sft_records() -> list[list[dict[str, Any]]]:
    """Records of each shard; tokens count through all of them."""
    shards, token = [], 0
    for counts in SFT_COUNTS:
        records = []
        for count in counts:
            sequence = np.arange(token, token + count, dtype=np.int32)
            records.append({"sequence": sequence, "loss_mask": sequence % 3 == 0})
            token += count
        shards.append(records)
    return shards


def grpo_records() -> list[list[dict[str, Any]]]:
    """Groups of responses of different numbers and lengths, one of them empty."""
    shards, token = [], 0
    for groups in ([[2, 3], [], [0, 1, 4]], [[5]]):
        records = []
        for lengths in groups:
            responses = []
            for count in lengths:
                responses.append(np.arange(token, token + count, dtype=np.int64))
                token += count
            records.append(
                {
                    "prompts": np.arange(len(lengths), dtype=np.int64),
                    "responses": responses,
                    "masks": [item % 2 == 1 for item in responses],
                    "rewards": np.arange(len(lengths), dtype=np.float32) / 4,
                }
            )
        shards.append(records)
    return shards


def write_h5(folder: Path, shards: list[list[dict[str, Any]]]) -> Path:
    """Write one file for each shard."""
    keys = list(shards[0][0])
    for number, records in enumerate(shards):
        values = {key: [record[key] for record in records] for key in keys}
        write_h5_file(folder / f"data_{number:04d}.h5", values)
    return folder


def write_bin(
    folder: Path, shards: list[list[dict[str, Any]]], *, has_offsets: bool = True
) -> Path:
    """Write one folder for each shard."""
    for number, records in enumerate(shards):
        values: dict[str, list[np.ndarray]] = {}
        items: dict[str, np.ndarray] = {}
        groups: dict[str, np.ndarray] = {}
        first = shards[0][0]
        for key, example in first.items():
            rows = [record[key] for record in records]
            if isinstance(example, list):
                groups[key] = np.cumsum([0, *map(len, rows)])
                rows = [item for row in rows for item in row]
            values[key] = rows
            items[key] = np.cumsum([0, *map(len, rows)])
        write_bin_folder(
            folder / f"part/shard_{number}",
            values,
            dtypes={key: _dtype(example) for key, example in first.items()},
            item_offset=items if has_offsets else None,
            group_offset=groups if has_offsets else None,
        )
    return folder


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write a record a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{key: plain(value) for key, value in record.items()} for record in records]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _dtype(example: Any) -> str:
    """Return the dtype of a key."""
    values = example[0] if isinstance(example, list) else example
    return values.dtype.name


def plain(value: Any) -> Any:
    """Return arrays as lists."""
    return [item.tolist() for item in value] if isinstance(value, list) else value.tolist()


def flat(shards: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return all records as dtypes and lists."""
    return [
        {key: (_name(value), plain(value)) for key, value in record.items()}
        for records in shards
        for record in records
    ]


def _name(value: Any) -> str:
    """Return the dtype name of a value, or nothing of a group without items."""
    values = value[0] if isinstance(value, list) and value else value
    return "" if isinstance(values, list) else values.dtype.name


def stored(store: Store) -> list[dict[str, Any]]:
    """Return all records of a store as `flat` does."""
    found = []
    reader = RecordReader(store)
    for i in range(len(reader)):
        record = reader.read(i)
        row = {}
        for key, value in record.items():
            if key.startswith("__") or key.endswith("_length"):
                continue
            lengths = record.get(f"{key}_length")
            items = None if lengths is None else np.split(value, np.cumsum(lengths))[:-1]
            row[key] = (_name(value if items is None else items), plain(items or value))
        found.append(row)
    return found
