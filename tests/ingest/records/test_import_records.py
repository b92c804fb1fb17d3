"""Imports: records round-trip, independent of partitions, workers and interruptions."""

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import zindex
from tests.conftest import numbers
from tests.damage import flip
from tests.ingest.records.sources import ListFiles, draw_files
from tests.killing import Killed, death_before
from tests.sources.archives import write_jsonl, write_tar
from tests.trees import all_files
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    SourceError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records import import_records as module
from zindex.ingest.records import partitions
from zindex.ingest.records import read_partitions as reading
from zindex.ingest.records.import_records import import_records
from zindex.io import files
from zindex.store import scratch
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_store
from zindex.store.record_reader import RecordReader
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=32, shard_length=128)


def read_all(store: Store) -> list[dict[str, Any]]:
    reader = RecordReader(store)
    return [reader.read(i) for i in range(len(reader))]


def plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records whose arrays compare."""
    return [
        {
            name: (value.dtype.name, value.tolist()) if isinstance(value, np.ndarray) else value
            for name, value in record.items()
        }
        for record in records
    ]


@pytest.mark.parametrize("seed", numbers(12, 60))
def test_records_come_back_as_they_were(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(scratch, "BLOCK_NBYTES", rng.choice([7, 64, 1 << 20]))
    monkeypatch.setattr(reading, "BUFFER_NBYTES", rng.choice([1, 200, 1 << 20]))
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", rng.choice([1, 3 << 20, 1 << 30]))
    source = draw_files(seed)
    store = import_records(source, tmp_path / "s", client=SERIAL, grid=SMALL)
    expected = source.records()
    assert read_all(store) == expected
    assert RecordReader(store).read_many(range(len(expected))) == expected
    assert store.spec["num_records"] == len(expected)
    assert verify_store(tmp_path / "s").is_sound
    assert not verify_store(tmp_path / "s").notes
    assert not (tmp_path / "s/_zindex/scratch").exists()


def test_stores_are_the_same_however_they_are_made(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draw_files(3)
    digests = []
    for number, (buffer, partition, where) in enumerate(
        [(1 << 20, 1 << 30, SERIAL), (100, 1, SERIAL), (1, 2 << 20, client)]
    ):
        monkeypatch.setattr(reading, "BUFFER_NBYTES", buffer)
        monkeypatch.setattr(partitions, "PARTITION_NBYTES", partition)
        store = import_records(source, tmp_path / f"{number}/s", client=where, grid=SMALL)
        digests.append(all_files(tmp_path / f"{number}/s"))
        assert read_all(store) == source.records()
    assert digests[0] == digests[1] == digests[2]


def test_processes_make_the_same_store(tmp_path: Path) -> None:
    source = draw_files(3)
    import_records(source, tmp_path / "0/s", client=SERIAL, grid=SMALL)
    import_records(source, tmp_path / "1/s", num_processes=2, grid=SMALL)
    assert all_files(tmp_path / "0/s") == all_files(tmp_path / "1/s")
    with pytest.raises(ConfigError, match=r"client \(--scheduler\) and num_processes \(--p"):
        import_records(source, tmp_path / "2/s", client=SERIAL, num_processes=2)


def test_many_imports_at_a_time_make_one_store(tmp_path: Path) -> None:
    source = draw_files(8)
    golden = import_records(source, tmp_path / "golden", client=SERIAL, grid=SMALL)
    for turn in range(4):
        root = tmp_path / str(turn)
        with ThreadPoolExecutor(4) as pool:
            tasks = [
                pool.submit(import_records, source, root, client=SerialExecutor(), grid=SMALL)
                for _ in range(4)
            ]
            stores = [task.result() for task in tasks]
        assert {store.fingerprint for store in stores} == {golden.fingerprint}
        assert read_all(stores[0]) == source.records()
        assert verify_store(root).is_sound


def test_shards_of_another_size_hold_the_same_records(tmp_path: Path) -> None:
    source = draw_files(5)
    grids = [SMALL, ChunkGrid(8, 8), ChunkGrid(1, 3), ChunkGrid(64, 256, "zstd")]
    stores = [
        import_records(source, tmp_path / str(i), client=SERIAL, grid=grid)
        for i, grid in enumerate(grids)
    ]
    assert len({store.fingerprint for store in stores}) == 1
    for store in stores:
        assert read_all(store) == source.records()


def test_jsonl_files_come_back(tmp_path: Path, client: Any) -> None:
    rows = [{"text": f"née {i} " * i, "n": i**9, "x": [i / 7, {"": None}]} for i in range(200)]
    path = write_jsonl(tmp_path / "in/a.jsonl", rows[:150])
    other = write_jsonl(tmp_path / "in/sub/b.jsonl", rows[150:])
    expected = [
        row
        | {"__key__": str(i if i < 150 else i - 150), "__url__": str(path if i < 150 else other)}
        for i, row in enumerate(rows)
    ]
    stores = [
        import_records(str(tmp_path / "in"), tmp_path / name, part_nbytes=size, client=where)
        for name, size, where in [("a", 100, SERIAL), ("b", 1 << 20, SERIAL), ("c", 777, client)]
    ]
    for store in stores:
        assert read_all(store) == expected
    assert all_files(tmp_path / "a") == all_files(tmp_path / "b") == all_files(tmp_path / "c")
    assert stores[0].attributes["url_prefix"] == f"{tmp_path}/in/"


def test_tar_files_come_back_with_their_metadata(tmp_path: Path) -> None:
    members = []
    for i in range(30):
        members += [(f"d/{i:03}.jpg", bytes([i]) * 900 * i), (f"d/{i:03}.Seg.png", b"")]
        if i % 2:
            members.append((f"d/{i:03}.id", b"?"))
    path = write_tar(tmp_path / "in/a.tar", members)
    lines = [{"key": f"d/{i:03}", "caption": f"é{i}", "rating": i / 3} for i in range(0, 30, 3)]
    write_jsonl(tmp_path / "in/a.meta.jsonl", lines)
    metadata = {line["key"]: line for line in lines}
    expected = []
    for i in range(30):
        key = f"d/{i:03}"
        record = {"__key__": key, "__url__": str(path), "jpg": bytes([i]) * 900 * i, "seg.png": b""}
        if i % 2:
            record["id"] = b"?"
            for name in ("caption", "rating"):
                record[name] = metadata.get(key, {}).get(name)
        expected.append(record)
    for size in (1000, 1 << 30):
        store = import_records(
            str(path),
            tmp_path / str(size),
            meta_names=["caption", "rating"],
            part_nbytes=size,
            client=SERIAL,
        )
        assert read_all(store) == expected
    assert all_files(tmp_path / "1000") == all_files(tmp_path / str(1 << 30))


def test_a_folder_that_is_repeated_is_there_as_often(tmp_path: Path) -> None:
    write_tar(tmp_path / "in/a.tar", [("k.txt", b"1")])
    write_tar(tmp_path / "in/b.tar", [("k.txt", b"2")])
    store = import_records("", tmp_path / "s", include_dirs=f"{tmp_path}/in*3", client=SERIAL)
    found = [(record["__url__"][-5:], record["txt"]) for record in read_all(store)]
    assert found == [("a.tar", b"1"), ("b.tar", b"2")] * 3


def test_numbers_come_back_as_arrays(tmp_path: Path) -> None:
    parts = [[{"ids": [1, -2, 300], "x": [0.5]}, {"ids": []}, {"x": [2, 1e300]}, {"ids": None}]]
    source = ListFiles({"a": parts, "b": [[{"ids": list(range(100))}]]})
    store = import_records(
        source, tmp_path / "s", dtypes={"ids": "int16", "x": float}, grid=SMALL, client=SERIAL
    )
    found = plain(read_all(store))
    assert [record.get("ids") for record in found] == [
        ("int16", [1, -2, 300]),
        ("int16", []),
        None,
        None,
        ("int16", list(range(100))),
    ]
    assert [record.get("x") for record in found[:3]] == [
        ("float64", [0.5]),
        None,
        ("float64", [2.0, 1e300]),
    ]
    assert store.layouts["ids_value"].dtype == "int16"
    assert plain(RecordReader(store).read_many(range(5))) == found


def test_booleans_come_back_as_arrays_and_from_any_reader(tmp_path: Path) -> None:
    rows = [[True, False, 1], [], [0] * 200, [1] * 7]
    path = write_jsonl(tmp_path / "a.jsonl", [{"mask": row} for row in rows])
    store = import_records(path, tmp_path / "s", dtypes={"mask": bool}, grid=SMALL, client=SERIAL)
    found = plain(RecordReader(store).read_many(range(4)))
    assert [record["mask"] for record in found] == [("bool", list(map(bool, row))) for row in rows]
    assert plain(read_all(store)) == found
    assert verify_store(store.root).is_sound
    values = zarr.open_group(tmp_path / "s", mode="r")["mask_value"]
    assert values.dtype == bool
    assert values[:].tolist() == [bool(item) for row in rows for item in row]


def test_null_is_a_missing_number_or_an_empty_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"ids": None, "x": None}, {"ids": [1], "x": [None]}])
    store = import_records(path, tmp_path / "s", dtypes={"ids": "int8"}, client=SERIAL)
    one, other = plain(read_all(store))
    assert (one.get("ids"), one["x"]) == (None, "")
    assert (other["ids"], other["x"]) == (("int8", [1]), [None])


def test_plain_readers_open_the_store(tmp_path: Path) -> None:
    source = ListFiles({"/d/a": [[{"text": "née", "n": 5}, {"text": ""}, {"text": "x", "n": 7}]]})
    import_records(source, tmp_path / "s", client=SERIAL)
    group = zarr.open_group(tmp_path / "s", mode="r")
    offsets = group["text_offset"][:]
    assert offsets.tolist() == [0, 4, 4, 5]
    assert bytes(group["text_value"][offsets[0] : offsets[1]]).decode() == "née"
    assert group["text_offset"].metadata.dimension_names == ("record_bound",)
    assert "0 nothing, 1 bytes" in group["n_form"].attrs["description"]
    dataset = xarray.open_zarr(tmp_path / "s")
    assert dataset["n_form"].values.tolist() == [3, 0, 3]
    assert dataset["n_value"].dims == ("n_item",)
    assert dict(dataset.sizes)["record_bound"] == 4
    assert bytes(dataset["url_text"].values) == b"a"
    assert dataset["url_record_bound"].values.tolist() == [0, 3]


@pytest.mark.parametrize(
    "files", [{"a": [[]]}, {"a": [[]], "b": [[], []]}, {"a": [[{}]]}, {"a": [[{"x": ""}]]}]
)
def test_hardly_any_records(files: dict[str, Any], tmp_path: Path) -> None:
    source = ListFiles(files)
    store = import_records(source, tmp_path / "s", client=SERIAL)
    assert read_all(store) == source.records()
    assert RecordReader(store).read_many([]) == []
    xarray.open_zarr(tmp_path / "s").load()
    assert verify_store(tmp_path / "s").is_sound


def test_one_key_twice_is_two_records(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"__key__": "k", "x": 1}], [{"__key__": "k", "x": 2}]]})
    store = import_records(source, tmp_path / "s", client=SERIAL)
    assert [(record["__key__"], record["x"]) for record in read_all(store)] == [("k", 1), ("k", 2)]


def test_only_the_fields_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"x": 1, "y": 2, "z": 3}, {"x": 4}]]})
    store = import_records(source, tmp_path / "s", fields=["z", "x", "z"], client=SERIAL)
    found = [{k: v for k, v in record.items() if k[0] != "_"} for record in read_all(store)]
    assert found == [{"z": 3, "x": 1}, {"x": 4}]
    assert RecordReader(store).fields == ("z", "x")
    with pytest.raises(
        SourceError, match=r"got 'w', which no record has; there are \['x', 'y', 'z'\]"
    ):
        import_records(source, tmp_path / "t", fields=["w", "x"], client=SERIAL)


def test_too_many_fields_are_refused(tmp_path: Path) -> None:
    wide = ListFiles({"a": [[{str(i): i for i in range(65)}]]})
    with pytest.raises(ConfigError, match=r"at most 64 fields together, got 65 or more \('0', '1'"):
        import_records(wide, tmp_path / "s", client=SERIAL)
    many = ListFiles({"a": [[{f"{part}-{i}": i for i in range(40)}] for part in range(2)]})
    with pytest.raises(ConfigError, match="at most 64 fields together, got "):
        import_records(many, tmp_path / "t", client=SERIAL)
    store = import_records(many, tmp_path / "u", fields=["1-5"], client=SERIAL)
    assert read_all(store)[1]["1-5"] == 5
    full = ListFiles({"a": [[{str(i): i for i in range(64)}]]})
    assert len(read_all(import_records(full, tmp_path / "v", client=SERIAL))[0]) == 66


def test_damage_is_an_error_or_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "in/a.jsonl"
    write_jsonl(path, [{"x": i} for i in range(50)])
    lines = path.read_text().splitlines()
    lines[7], lines[30] = '{"x": ', "[1]"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(SourceError, match=r"a\.jsonl must be lines of JSON objects"):
        import_records(path, tmp_path / "s", client=SERIAL)
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "s")
    for size in (60, 1 << 20):
        root = tmp_path / str(size)
        store = import_records(path, root, on_damage="skip", part_nbytes=size, client=SERIAL)
        assert store.attributes["num_skipped"] == 2
        assert [record["x"] for record in read_all(store)] == [
            i for i in range(50) if i not in (7, 30)
        ]
        assert read_all(store)[7]["__key__"] == "8"
    assert all_files(tmp_path / "60") == all_files(tmp_path / str(1 << 20))


def test_values_that_do_not_fit_are_damage_too(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"x": [1]}, {"x": [300]}, {"x": "no"}]]})
    problem = (
        r"the numbers must fit uint8, got \[300\], in field 'x', in record '0/1' of a; fix it, "
        r"give it another dtype with dtypes \(--dtype NAME=int64\), leave the field out"
    )
    with pytest.raises(SourceError, match=problem):
        import_records(source, tmp_path / "s", dtypes={"x": "uint8"}, client=SERIAL)
    store = import_records(
        source, tmp_path / "t", dtypes={"x": "uint8"}, on_damage="skip", client=SERIAL
    )
    assert (store.spec["num_records"], store.attributes["num_skipped"]) == (1, 2)


def test_an_import_that_fails_goes_on_from_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 1)
    source = ListFiles({"a": [[{"x": i}] * 3 for i in range(6)]})
    source.broken = {4}
    with pytest.raises(SourceError, match="part 4 is broken"):
        import_records(source, tmp_path / "s", client=SERIAL)
    source.broken = {0, 1, 2, 3}  # those are read already
    store = import_records(source, tmp_path / "s", client=SERIAL)
    assert [record["x"] for record in read_all(store)] == [i for i in range(6) for _ in range(3)]
    source.broken = set(range(6))  # a finished store asks for nothing
    assert import_records(source, tmp_path / "s", client=SERIAL).fingerprint == store.fingerprint


def test_every_death_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die at the n-th write, for every n: nothing half is ever seen, and all is made in the end."""
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 1)
    source = draw_files(8)
    golden = import_records(source, tmp_path / "golden", client=SERIAL, grid=SMALL)
    deaths, root = 0, tmp_path / "s"
    for limit in range(1000):
        try:
            with death_before(limit, (files, "write_once"), (files, "remove_file")):
                import_records(source, root, client=SERIAL, grid=SMALL)
        except (Killed, BaseExceptionGroup):
            deaths += 1
        else:
            break
        with suppress(NotReadyError, StoreNotFoundError):
            assert read_all(open_store(root)) == source.records()
        if limit % 3 == 0 or limit > 40:
            store = import_records(source, root, client=SERIAL, grid=SMALL)
            assert store.fingerprint == golden.fingerprint
            assert all_files(root) == all_files(tmp_path / "golden")
            shutil.rmtree(root)
    assert deaths > 30
    assert all_files(tmp_path / "s") == all_files(tmp_path / "golden")


def test_other_content_is_refused(tmp_path: Path) -> None:
    one, other = ListFiles({"a": [[{"x": 1}]]}), ListFiles({"b": [[{"x": 1}, {"x": 2}]]})
    import_records(one, tmp_path / "s", client=SERIAL)
    problem = "holds records of another source, or imported with other settings"
    with pytest.raises(FingerprintMismatchError, match=problem):
        import_records(other, tmp_path / "s", client=SERIAL)
    with pytest.raises(FingerprintMismatchError, match=problem):
        import_records(one, tmp_path / "s", fields=["x"], client=SERIAL)


def test_scratch_removed_by_a_finished_import_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draw_files(2)
    golden = import_records(source, tmp_path / "golden", client=SERIAL)
    build_table = module.RecordTable

    def build_late(*args: Any) -> Any:
        """Another import is done by the time that this one begins to write."""
        monkeypatch.setattr(module, "RecordTable", build_table)
        import_records(source, tmp_path / "s", client=SERIAL)
        shutil.rmtree(tmp_path / "s/key_text")
        return build_table(*args)

    monkeypatch.setattr(module, "RecordTable", build_late)
    store = import_records(source, tmp_path / "s", client=SERIAL)
    assert store.fingerprint == golden.fingerprint

    def lose(*args: Any) -> Any:
        shutil.rmtree(tmp_path / "t/_zindex/scratch")
        return build_table(*args)

    monkeypatch.setattr(module, "RecordTable", lose)
    with pytest.raises(StoreNotFoundError, match=r"no file .*scratch"):
        import_records(source, tmp_path / "t", client=SERIAL)


def test_scratch_that_is_damaged_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ListFiles({"a": [[{"x": "abc"}]]})
    build_table = module.RecordTable

    def damage(*args: Any) -> Any:
        [path] = [path for path in (tmp_path / "s/_zindex/scratch").iterdir() if not path.suffix]
        flip(path, 0)
        return build_table(*args)

    monkeypatch.setattr(module, "RecordTable", damage)
    with pytest.raises(VerificationError, match=r"scratch/.* must hold what was imported"):
        import_records(source, tmp_path / "s", client=SERIAL)


def test_the_public_name_and_its_summary(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": "1"}])
    store = zindex.import_records(path, tmp_path / "s", client=SERIAL)
    assert json.loads((tmp_path / "s/zarr.json").read_bytes())["node_type"] == "group"
    assert store.kind == "records"
