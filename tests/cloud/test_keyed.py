"""Keyed files to and from object storage: the same records, and the same files back."""

from pathlib import Path

import torch

from tests.cloud.servers import Bucket
from tests.ingest.keyed.keyed_files import (
    flat,
    grpo_records,
    sft_records,
    stored,
    write_bin,
    write_lines,
)
from tests.trees import all_files
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.keyed.export_keyed import export_keyed
from zindex.io import files
from zindex.io.objects import place_of
from zindex.keyed.stores import StoreFactory
from zindex.store.layout import ChunkGrid
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=64, shard_length=256)


def test_keyed_stores_lie_in_object_storage_too(bucket: Bucket, tmp_path: Path) -> None:
    source = write_bin(tmp_path / "in", grpo_records())
    there = convert_keyed(source, f"{bucket.url}/s", client=SERIAL, grid=SMALL)
    assert stored(there) == flat(grpo_records())
    assert verify_store(f"{bucket.url}/s").is_sound
    again = convert_keyed(source, f"{bucket.url}/s", client=SERIAL, grid=SMALL)
    assert again.fingerprint == there.fingerprint
    export_keyed(f"{bucket.url}/s", tmp_path / "back", client=SERIAL)
    assert all_files(tmp_path / "back") == all_files(source)


def test_lines_from_object_storage_are_windows(bucket: Bucket, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row for part in sft_records() for row in part])
    files.write_once(place_of(f"{bucket.url}/in/a.jsonl"), [path.read_bytes()])
    url = f"{bucket.url}/in/a.jsonl"
    convert_keyed(url, f"{bucket.url}/s", client=SERIAL, grid=SMALL)
    store = StoreFactory.create("zarr").load(f"{bucket.url}/s")
    assert (len(store), store.num_records) == (95, 17)
    assert torch.equal(store.fetch(7, 90, "sequence"), torch.arange(7, 90, dtype=torch.int32))
