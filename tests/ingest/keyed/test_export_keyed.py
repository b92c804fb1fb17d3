"""Stores of keyed tokens as files again: the same bytes, or the same records."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.ingest.keyed.keyed_files import (
    flat,
    grpo_records,
    sft_records,
    stored,
    write_bin,
    write_h5,
    write_lines,
)
from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl
from tests.trees import all_files
from zindex.errors import ConfigError, StoreError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed import export_keyed as module
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.keyed.export_keyed import export_keyed, name_shards
from zindex.ingest.records.import_records import import_records
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=16, shard_length=64)


@pytest.fixture(params=[1 << 22, 4], ids=["blocks", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the store in blocks of this many values."""
    monkeypatch.setattr(module, "_BLOCK_LENGTH", request.param)
    monkeypatch.setattr(module, "_BLOCK_RECORDS", min(request.param, 1 << 6))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("records", [sft_records, grpo_records])
@pytest.mark.parametrize("has_offsets", [True, False])
def test_bin_folders_are_the_same_bytes(tmp_path: Path, records: Any, has_offsets: bool) -> None:
    source = write_bin(tmp_path / "in", records(), has_offsets=has_offsets)
    strict = has_offsets or records is sft_records
    convert_keyed(source, tmp_path / "s", grid=SMALL, client=SERIAL, strict=strict)
    paths = export_keyed(tmp_path / "s", tmp_path / "back", client=SERIAL)
    assert all_files(tmp_path / "back") == all_files(source)
    assert paths[0] == str(tmp_path / "back/part/shard_0")


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("records", [sft_records, grpo_records])
def test_h5_files_have_the_same_content(tmp_path: Path, records: Any) -> None:
    source = write_h5(tmp_path / "in", records())
    convert_keyed(source, tmp_path / "s", grid=SMALL, client=SERIAL)
    export_keyed(tmp_path / "s", tmp_path / "back", client=SERIAL)
    names = sorted(path.name for path in source.iterdir())
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == names
    for name in names:
        assert h5_content(tmp_path / "back" / name) == h5_content(source / name)


def h5_content(path: Path) -> dict[str, Any]:
    """Return dtype and values of every dataset, and nothing of a group."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.__setitem__(
                name, (item.dtype, item[:].tolist()) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


@pytest.mark.parametrize("records", [sft_records, grpo_records])
@pytest.mark.parametrize("kind", ["h5", "bin"])
@pytest.mark.parametrize("to", ["h5", "bin", "jsonl"])
def test_any_format_to_any_other_and_back(tmp_path: Path, records: Any, kind: Any, to: Any) -> None:
    shards = [rows for rows in records() if rows]
    source = {"h5": write_h5, "bin": write_bin}[kind](tmp_path / "in", shards)
    convert_keyed(source, tmp_path / "s", grid=SMALL, client=SERIAL)
    export_keyed(tmp_path / "s", tmp_path / "out", storage_type=to, client=SERIAL)
    dtypes = None
    if to == "jsonl":
        dtypes = {
            key: (value[0] if isinstance(value, list) else value).dtype
            for key, value in shards[0][0].items()
        }
    again = convert_keyed(tmp_path / "out", tmp_path / "t", dtypes=dtypes, client=SERIAL)
    assert stored(again) == flat(shards)


def test_lines_come_back_as_lines(tmp_path: Path) -> None:
    rewards = np.array([0.1, -2e30, 3, 3.4e38, 1e-45], np.float32)
    records = [{"rewards": rewards, "mask": np.array([True])}]
    path = write_lines(tmp_path / "in/a.jsonl", records)
    convert_keyed(path, tmp_path / "s", client=SERIAL)
    assert export_keyed(tmp_path / "s", tmp_path / "o", client=SERIAL) == [
        str(tmp_path / "o/a.jsonl")
    ]
    text = (tmp_path / "o/a.jsonl").read_text()
    assert json.loads(text) == json.loads(path.read_text())
    again = convert_keyed(tmp_path / "o", tmp_path / "t", client=SERIAL)
    assert stored(again) == flat([records])


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    records = [{"rewards": np.array([reward], np.float32)} for reward in (0.5, np.inf)]
    source = ListFiles({"a.jsonl": [records]})  # a conversion would refuse them
    import_records(source, tmp_path / "s", dtypes={"rewards": "float32"}, client=SERIAL)
    with pytest.raises(StoreError, match=r"must be finite, record 1 of .* give another storage_ty"):
        export_keyed(tmp_path / "s", tmp_path / "o", storage_type="jsonl", client=SERIAL)
    assert not (tmp_path / "o/a.jsonl").exists()


@pytest.mark.parametrize(
    ("stored", "kind", "names"),
    [
        (["."], "bin", ["."]),
        (["."], "h5", ["data.h5"]),
        ([".", "b"], "jsonl", ["0-data.jsonl", "1-b.jsonl"]),
        (["x/data_2.h5", "x/data_10.hdf5"], "bin", ["x/data_2", "x/data_10"]),
        (["a.jsonl.gz", "b.ndjson"], "jsonl", ["a.jsonl", "b.jsonl"]),
        # Jsonl files are read in the order of their names: 10 before 9.
        (["s_9", "s_10"], "jsonl", ["0-s_9.jsonl", "1-s_10.jsonl"]),
        (["s_10.jsonl", "s_9.jsonl"], "jsonl", ["s_10.jsonl", "s_9.jsonl"]),
        (["a.h5", "a.hdf5"], "h5", ["0-a.h5", "1-a.h5"]),
        (["b.jsonl", "a.jsonl"], "h5", ["0-b.h5", "1-a.h5"]),
        ([f"{i % 7}" for i in range(11)], "bin", [f"{i:02d}-{i % 7}" for i in range(11)]),
    ],
)
def test_names_keep_the_order(stored: list[str], kind: Any, names: list[str]) -> None:
    assert name_shards(stored, kind) == names


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b", "a\0b"])
def test_names_stay_in_the_folder(name: str) -> None:
    with pytest.raises(StoreError, match="must lie in one folder to be written again, got"):
        name_shards([name], "bin")


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    source = write_bin(tmp_path / "in", sft_records())
    convert_keyed(source, tmp_path / "s", client=SERIAL)
    target = tmp_path / "out"
    export_keyed(tmp_path / "s", target, client=SERIAL)
    with pytest.raises(StoreError, match=r"exists; choose another folder or pass overwrite=.*--ov"):
        export_keyed(tmp_path / "s", target, client=SERIAL)
    (target / "part/shard_0/sequence.bin").write_bytes(b"")
    (target / "part/shard_0/sequence.bin.0123.partial").write_bytes(b"")
    export_keyed(tmp_path / "s", target, client=SERIAL, overwrite=True)
    (target / "part/shard_0/sequence.bin.0123.partial").unlink()
    assert all_files(target) == all_files(source)
    (target / "part/shard_9").mkdir()
    (target / "part/shard_9/meta.json").write_text("{}")
    with pytest.raises(StoreError, match=r"earlier export, it holds part/shard_9/meta\.json"):
        export_keyed(tmp_path / "s", target, client=SERIAL, overwrite=True)
    with pytest.raises(StoreError, match="must be a folder, it is a file; choose another place"):
        export_keyed(tmp_path / "s", target / "part/shard_9/meta.json", client=SERIAL)


def test_stores_that_are_not_keyed(tmp_path: Path) -> None:
    source = write_bin(tmp_path / "in", sft_records(), has_offsets=False)
    convert_keyed(source, tmp_path / "s", client=SERIAL)
    with pytest.raises(ConfigError, match="must know where records begin to be written as lines"):
        export_keyed(tmp_path / "s", tmp_path / "o", storage_type="jsonl", client=SERIAL)
    with pytest.raises(ConfigError, match=r"\(--to\) must be one of bin, h5, jsonl, got 'csv'"):
        export_keyed(tmp_path / "s", tmp_path / "o", storage_type="csv", client=SERIAL)  # type: ignore[arg-type]
    import_records(write_jsonl(tmp_path / "a.jsonl", [{"x": "text"}]), tmp_path / "t")
    with pytest.raises(ConfigError, match=r"its field 'x' holds something else; write lines with"):
        export_keyed(tmp_path / "t", tmp_path / "o", storage_type="bin", client=SERIAL)
    import_records(write_jsonl(tmp_path / "b.jsonl", [{}]), tmp_path / "u")
    with pytest.raises(ConfigError, match="it has no fields; convert keyed files"):
        export_keyed(tmp_path / "u", tmp_path / "o", client=SERIAL)


@pytest.mark.usefixtures("blocks")
def test_texts_are_written_as_lines(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "né\n\ud800", "ids": [1, 2], "meta": {"a": [1, None]}, "n": 7},
        {"text": "", "ids": []},
        {"meta": "a text", "ids": [3], "n": 0.5},
    ]
    path = write_jsonl(tmp_path / "in/a.jsonl", rows)
    import_records(path, tmp_path / "s", dtypes={"ids": "int32"}, client=SERIAL)
    [exported] = export_keyed(tmp_path / "s", tmp_path / "o", client=SERIAL)
    assert list(map(json.loads, Path(exported).read_text().splitlines())) == rows
    import_records(exported, tmp_path / "t", dtypes={"ids": "int32"}, client=SERIAL)
    found = [RecordReader(open_store(tmp_path / name)).read_many(range(3)) for name in "st"]
    for one, other in zip(*found, strict=True):
        assert repr(one | {"__url__": ""}) == repr(other | {"__url__": ""})


def test_bytes_are_no_lines(tmp_path: Path) -> None:
    for name, rows in {"s": [b"\0"], "t": ["text", b"\0"]}.items():
        source = ListFiles({"a.jsonl": [[{"image": value} for value in rows]]})
        import_records(source, tmp_path / name, client=SERIAL)
    with pytest.raises(ConfigError, match=r"the field 'image' of .*s holds bytes, which JSON la"):
        export_keyed(tmp_path / "s", tmp_path / "o", client=SERIAL)
    with pytest.raises(
        StoreError, match=r"record 1 of .*t has bytes, which JSON lacks; read the re"
    ):
        export_keyed(tmp_path / "t", tmp_path / "o", client=SERIAL)
