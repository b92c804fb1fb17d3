"""Keyed files to stores: every record round-trips, independent of files and interruptions."""

import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from tests.ingest.keyed.keyed_files import (
    flat,
    grpo_records,
    sft_records,
    stored,
    write_bin,
    write_h5,
    write_lines,
)
from tests.trees import all_files
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    SourceError,
    StoreNotFoundError,
)
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed.bin_folder import write_bin_folder
from zindex.ingest.keyed import convert_keyed as module
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.io import files
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=16, shard_length=64)


@pytest.mark.parametrize("records", [sft_records, grpo_records])
@pytest.mark.parametrize("write", [write_h5, write_bin])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_every_record_comes_back(tmp_path: Path, records: Any, write: Any, codec: Any) -> None:
    shards = records()
    source = write(tmp_path / "in", shards)
    grid = ChunkGrid(16, 64, codec)
    store = convert_keyed(source, tmp_path / "s", grid=grid, client=SERIAL)
    assert stored(store) == flat(shards)
    assert store.spec["has_records"]
    assert verify_store(store.root).is_sound
    counts = zarr.open_group(tmp_path / "s", mode="r")["url_record_bound"][:]
    assert np.diff(counts).tolist() == list(map(len, shards))
    names = {record["__url__"] for record in RecordReader(store).read_many([0, len(counts) - 1])}
    assert all(name.startswith(f"{source}/") for name in names)


def test_the_cluster_writes_the_same_bytes(tmp_path: Path, client: Any) -> None:
    source = write_h5(tmp_path / "in", grpo_records())
    convert_keyed(source, tmp_path / "a", grid=SMALL, client=SERIAL)
    convert_keyed(source, tmp_path / "b", grid=SMALL, client=client, progress=True)
    assert all_files(tmp_path / "a") == all_files(tmp_path / "b")


@pytest.mark.slow
def test_processes_write_the_same_bytes(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in/a.jsonl", [row for part in sft_records() for row in part])
    convert_keyed(source, tmp_path / "a", grid=SMALL, client=SERIAL)
    convert_keyed(source, tmp_path / "b", grid=SMALL, num_processes=2)
    assert all_files(tmp_path / "a") == all_files(tmp_path / "b")


def test_lines_are_records(tmp_path: Path) -> None:
    shards = grpo_records()
    for number, records in enumerate(shards):
        write_lines(tmp_path / f"in/{number}.jsonl", records)
    dtypes = {"prompts": "int64", "responses": int, "masks": bool, "rewards": "float32"}
    store = convert_keyed(tmp_path / "in", tmp_path / "s", dtypes=dtypes, client=SERIAL)
    assert stored(store) == flat(shards)
    names = [tmp_path / "in/0.jsonl", str(tmp_path / "in/1.jsonl")]
    again = convert_keyed(names, tmp_path / "t", dtypes=dtypes, client=SERIAL)
    assert stored(again) == flat(shards)
    first = convert_keyed(names[0], tmp_path / "u", client=SERIAL)
    assert stored(first)[0]["prompts"] == ("int32", [0, 1])


def test_lines_that_do_not_match_are_left_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row for part in sft_records() for row in part])
    path.write_text(path.read_text() + '{"sequence": [1], "loss_mask": []}\nno JSON\n')
    with pytest.raises(SourceError, match=r"got 0 and 1, in line 18 of .*a\.jsonl; fix it"):
        convert_keyed(path, tmp_path / "s", client=SERIAL)
    store = convert_keyed(path, tmp_path / "s", client=SERIAL, on_damage="skip", restart=True)
    assert stored(store) == flat(sft_records())
    assert store.attributes["num_skipped"] == 2


def test_without_offsets_a_shard_is_a_record(tmp_path: Path) -> None:
    shards = sft_records()
    source = write_bin(tmp_path / "in", shards, has_offsets=False)
    store = convert_keyed(source, tmp_path / "s", grid=SMALL, client=SERIAL)
    assert not store.spec["has_records"]
    found = [record["sequence"][1] for record in stored(store)]
    whole = [[token for row in rows for token in row["sequence"]] for rows in shards]
    assert found == whole


def test_keys_that_do_not_match_are_refused_or_kept_apart(tmp_path: Path) -> None:
    for name, keys in (("a", ("sequence", "loss_mask")), ("b", ("sequence",))):
        values = {key: [np.arange(3, dtype=np.int8)] for key in keys}
        write_bin_folder(tmp_path / "in" / name, values, dtypes=dict.fromkeys(keys, "int8"))
    with pytest.raises(SourceError, match="shard 'b' lacks 'loss_mask'"):
        convert_keyed(tmp_path / "in", tmp_path / "s", client=SERIAL)
    assert not (tmp_path / "s").exists()
    store = convert_keyed(tmp_path / "in", tmp_path / "s", client=SERIAL, strict=False)
    lengths = [{key: len(value) for key, (_, value) in row.items()} for row in stored(store)]
    assert lengths == [{"sequence": 3, "loss_mask": 3}, {"sequence": 3, "loss_mask": 0}]
    assert not store.spec["has_records"]


def test_a_conversion_goes_on_where_it_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_bin(tmp_path / "in", grpo_records())
    convert_keyed(source, tmp_path / "whole", grid=SMALL, client=SERIAL)
    right, done = module.store_spans, list[str]()

    def die(root: Any, layout: Any, shard: int, key: str, ranges: Any) -> Any:
        if len(done) == 3:
            raise OSError("the machine died")
        done.append(layout.shard_key(shard))
        return right(root, layout, shard, key, ranges)

    monkeypatch.setattr(module, "store_spans", die)
    with pytest.raises(OSError, match="the machine died"):
        convert_keyed(source, tmp_path / "s", grid=SMALL, client=SERIAL)
    with pytest.raises(NotReadyError):
        open_store(tmp_path / "s")
    before = {key: (tmp_path / "s" / key).stat().st_ino for key in done}
    monkeypatch.setattr(module, "store_spans", right)
    convert_keyed(source, tmp_path / "s", grid=SMALL, client=SERIAL)
    assert {key: (tmp_path / "s" / key).stat().st_ino for key in done} == before
    assert all_files(tmp_path / "s") == all_files(tmp_path / "whole")


def test_a_finished_store_stays(tmp_path: Path) -> None:
    source = write_h5(tmp_path / "in", sft_records())
    first = convert_keyed(source, tmp_path / "s", client=SERIAL)
    before = (tmp_path / "s/zarr.json").stat().st_mtime_ns
    assert convert_keyed(source, tmp_path / "s", client=SERIAL).fingerprint == first.fingerprint
    assert (tmp_path / "s/zarr.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["value", "offsets", "name", "dtype"])
def test_other_files_are_another_store(tmp_path: Path, change: str) -> None:
    values = np.arange(6, dtype=np.int32)
    offsets = {"x": np.array([0, 2, 6])}
    write_bin_folder(tmp_path / "in/a", {"x": [values]}, dtypes={"x": "int32"}, item_offset=offsets)
    convert_keyed(tmp_path / "in", tmp_path / "s", client=SERIAL)
    if change == "value":
        values[5] = 9
    elif change == "dtype":
        values = values.astype("uint32")
    elif change == "offsets":
        offsets = {"x": np.array([0, 3, 6])}
    folder = tmp_path / "in/a"
    if change == "name":
        folder = folder.rename(tmp_path / "in/b")
    write_bin_folder(folder, {"x": [values]}, dtypes={"x": values.dtype.name}, item_offset=offsets)
    with pytest.raises(FingerprintMismatchError, match="its data or settings differ"):
        convert_keyed(tmp_path / "in", tmp_path / "s", client=SERIAL)


def test_one_file_and_one_folder_are_sources(tmp_path: Path) -> None:
    write_h5(tmp_path / "in", sft_records())
    store = convert_keyed(tmp_path / "in/data_0000.h5", tmp_path / "s", client=SERIAL)
    assert stored(store) == flat(sft_records()[:1])
    write_bin(tmp_path / "b", sft_records())
    store = convert_keyed(tmp_path / "b/part/shard_2", tmp_path / "t", client=SERIAL)
    assert stored(store) == flat(sft_records()[2:3])


def test_a_file_without_values_is_a_store(tmp_path: Path) -> None:
    write_bin_folder(tmp_path / "in", {"x": []}, dtypes={"x": "int16"})
    store = convert_keyed(tmp_path / "in", tmp_path / "s", client=SERIAL)
    assert stored(store) == [{"x": ("int16", [])}]


def test_sources_that_cannot_be_converted(tmp_path: Path) -> None:
    source = write_h5(tmp_path / "in", sft_records())
    for setting in ({"dtypes": {"x": int}}, {"on_damage": "skip"}, {"restart": True}):
        with pytest.raises(ConfigError, match="must come with jsonl files, got one of them"):
            convert_keyed(source, tmp_path / "s", client=SERIAL, **setting)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"client \(--scheduler\) and num_processes"):
        convert_keyed(source, tmp_path / "s", client=SERIAL, num_processes=1)
    with pytest.raises(
        ConfigError, match=r"\(--kind\) .* must be one of bin, h5, jsonl, got .zarr"
    ):
        convert_keyed(source, tmp_path / "s", client=SERIAL, storage_type="zarr")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be named by one folder or file, got 2; put them"):
        convert_keyed([source, source], tmp_path / "s", client=SERIAL, storage_type="h5")
    assert stored(convert_keyed([source], tmp_path / "t", client=SERIAL, storage_type="h5"))
    lines = write_lines(tmp_path / "a.jsonl", sft_records()[0])
    with pytest.raises(ConfigError, match=r"strict=False \(--loose\) must come with h5 or bin"):
        convert_keyed(lines, tmp_path / "s", client=SERIAL, strict=False)
    with pytest.raises(StoreNotFoundError, match="No supported data files found"):
        convert_keyed(tmp_path / "none", tmp_path / "s", client=SERIAL)
    with pytest.raises(StoreNotFoundError, match="none"):
        convert_keyed(f"{tmp_path}/none{{1,2}}", tmp_path / "s", client=SERIAL)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("__key__", ", which is reserved in stores of"),
        ("__url__", ", which is reserved in stores of"),
        ("x_length", " next to x, for the"),
    ],
)
def test_a_key_is_not_called_like_what_stores_keep(tmp_path: Path, key: str, why: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x/data_0"] = file[f"{key}/data_0"] = np.arange(3)
    with pytest.raises(ConfigError, match=f"a key must not be called {key}{why}"):
        convert_keyed(tmp_path / "a.h5", tmp_path / "s", client=SERIAL)


_RUN = """
import sys
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.store.layout import ChunkGrid
convert_keyed(sys.argv[1], sys.argv[2], grid=ChunkGrid(16, 64))
"""


@pytest.mark.slow
def test_killed_conversions_are_finished_by_the_next(tmp_path: Path) -> None:
    values = np.arange(20_000, dtype=np.int32)
    write_bin_folder(tmp_path / "in", {"x": [values]}, dtypes={"x": "int32"})
    convert_keyed(tmp_path / "in", tmp_path / "whole", grid=SMALL, client=SERIAL)
    expected = all_files(tmp_path / "whole")
    for number, wanted in enumerate((1, 40, 400)):
        root = tmp_path / str(number)
        command = [sys.executable, "-c", _RUN, str(tmp_path / "in"), str(root)]
        with subprocess.Popen(command) as process:
            while process.poll() is None and len(list(root.glob("x_value/c/*"))) < wanted:
                pass
            process.kill()
        with pytest.raises(NotReadyError):
            open_store(root)
        done = {path: path.stat().st_ino for path in root.glob("x_value/c/[0-9]*")}
        done = {path: inode for path, inode in done.items() if path.suffix != ".partial"}
        convert_keyed(tmp_path / "in", root, grid=SMALL, client=SERIAL)
        assert {path: path.stat().st_ino for path in done} == done
        for left in root.rglob("*.partial"):
            left.unlink()
        assert all_files(root) == expected


@pytest.mark.parametrize("kind", ["bin", "h5", "gzip"])
def test_memory_does_not_grow_with_the_source(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard of the store is in memory, not one of the source, and not the source."""
    # Room for the largest file of metadata is asked for, but not used.
    small = partial(files.read_file, limit=1 << 18)
    monkeypatch.setattr(files, "read_file", lambda path: small(path))
    values = np.arange(1 << 21, dtype=np.int32)  # 8 MiB
    records = np.split(values, 4)
    if kind == "bin":
        write_bin_folder(tmp_path / "in", {"sequence": records}, dtypes={"sequence": "int32"})
    else:
        (tmp_path / "in").mkdir()
        with h5py.File(tmp_path / "in/a.h5", "w") as file:
            for number, record in enumerate(records):
                settings = {"chunks": (1 << 12,), "compression": "gzip"} if kind == "gzip" else {}
                file.create_dataset(f"sequence/data_{number}", data=record, **settings)
    grid = ChunkGrid(chunk_length=1 << 16, shard_length=1 << 18)  # bytes
    convert_keyed(tmp_path / "in", tmp_path / "once", grid=grid, client=SERIAL)  # imports
    tracemalloc.start()
    try:
        store = convert_keyed(tmp_path / "in", tmp_path / "s", grid=grid, client=SERIAL)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 21, peak
    reader = RecordReader(store)
    found = [reader.read(number)["sequence"] for number in range(len(reader))]
    np.testing.assert_array_equal(np.concatenate(found), values)


@pytest.mark.parametrize("form", ["bin", "h5"])
@pytest.mark.parametrize(
    ("key", "dtype", "value", "shown"),
    [
        ("sequence", "int64", -5, "token ids of 'sequence' must be from 0 to .*, got -5"),
        ("sequence", "uint64", 2**63 + 5, f"token ids of 'sequence' .*, got {2**63 + 5}"),
        ("loss_mask", "float32", np.nan, "numbers of 'loss_mask' must be finite, got nan"),
        ("rewards", "float64", -np.inf, "numbers of 'rewards' must be finite, got -inf"),
    ],
)
def test_invalid_values_are_refused_by_key_and_record(
    form: str, key: str, dtype: str, value: Any, shown: str, tmp_path: Path
) -> None:
    tokens = [np.arange(n, dtype=np.int64) for n in (3, 0, 5, 2)]
    shards = [[{"sequence": item, key: item.astype(dtype)} for item in tokens] for _ in range(2)]
    shards[1][2][key][4] = value
    write = write_h5 if form == "h5" else write_bin
    source = write(tmp_path / "in", shards)
    name = "data_0001.h5" if form == "h5" else "shard_1"
    with pytest.raises(SourceError, match=rf"{shown} in record 2 of .*{name}; fix"):
        convert_keyed(source, tmp_path / "s", grid=ChunkGrid(16, 64))
    shards[1][2][key][4] = 1
    assert (
        convert_keyed(write(tmp_path / "mended", shards), tmp_path / "t").spec["num_records"] == 8
    )


def test_weights_of_lines_stay_floats(tmp_path: Path) -> None:
    rows = [{"sequence": np.arange(3), "loss_mask": np.array([0.1, 0, 1])}] * 2
    source = write_lines(tmp_path / "in.jsonl", rows)
    store = convert_keyed(source, tmp_path / "s")
    assert [field["dtype"] for field in store.spec["fields"]] == ["uint8", "int32", "float32"]
    assert RecordReader(store).read(1)["loss_mask"].tolist() == np.float32([0.1, 0, 1]).tolist()
