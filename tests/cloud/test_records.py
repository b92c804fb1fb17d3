"""Imports from and to object storage: the same records, and the same bytes, as on a disk."""

from pathlib import Path

import pytest

from tests.cloud.servers import Bucket
from tests.killing import Killed, death_before
from tests.sources.archives import write_jsonl, write_tar
from zindex.datasets.record_dataset import RecordDataset
from zindex.errors import NotReadyError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records.import_records import import_records
from zindex.io import files
from zindex.io.objects import place_of
from zindex.store.layout import ChunkGrid
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=64, shard_length=256)


def upload(bucket: Bucket, path: Path, key: str) -> None:
    files.write_once(place_of(f"{bucket.url}/{key}"), [path.read_bytes()])


def test_records_lie_in_object_storage_too(bucket: Bucket, tmp_path: Path) -> None:
    rows = [{"text": f"née {i}" * i, "n": 3**i} for i in range(60)]
    path = write_jsonl(tmp_path / "in/a.jsonl", rows)
    upload(bucket, path, "in/a.jsonl")
    there = import_records(f"{bucket.url}/in", f"{bucket.url}/out", client=SERIAL, grid=SMALL)
    here = import_records(path, tmp_path / "out", client=SERIAL, grid=SMALL, part_nbytes=500)
    for name in here.layouts:
        assert there[name][:].tolist() == here[name][:].tolist()
    distant, near = RecordDataset(f"{bucket.url}/out"), RecordDataset(tmp_path / "out")
    assert distant[7] == near[7] | {"__url__": f"{bucket.url}/in/a.jsonl"}
    numbers = [59, 0, -3, 0]
    assert [record["text"] for record in distant.__getitems__(numbers)] == [
        rows[number]["text"] for number in numbers
    ]
    assert verify_store(f"{bucket.url}/out").is_sound
    assert not verify_store(f"{bucket.url}/out").notes  # no scratch is left


def test_an_import_into_object_storage_goes_on_where_it_died(
    bucket: Bucket, tmp_path: Path
) -> None:
    members = [(f"{i:02}.{suffix}", bytes([i]) * i * 9) for i in range(30) for suffix in "ab"]
    path = write_tar(tmp_path / "in/a.tar", members)
    golden = import_records(path, tmp_path / "out", client=SERIAL, grid=SMALL)
    target = f"{bucket.url}/out"
    for limit in (0, 1, 2, 3, 5, 8, 20):
        with (
            pytest.raises((Killed, BaseExceptionGroup)),
            death_before(limit, (files, "write_once")),
        ):
            import_records(path, target, client=SERIAL, grid=SMALL)
    with pytest.raises(NotReadyError, match="is not built yet"):
        RecordDataset(target)
    store = import_records(path, target, client=SERIAL, grid=SMALL)
    assert store.fingerprint == golden.fingerprint
    dataset, near = RecordDataset(target), RecordDataset(tmp_path / "out")
    assert dataset.__getitems__(range(30)) == near.__getitems__(range(30))
