"""A reader accepts only the shards and chunks of the commit that it opened."""

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.conftest import reset_cache
from tests.damage import swap_chunks
from tests.killing import exit_code, fork
from tests.store.stores import ONE, TWO, build_arrays, count_up
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.errors import VerificationError
from zindex.io import files
from zindex.io.objects import ObjectPath
from zindex.store.layout import ChunkGrid, PlainGrid
from zindex.store.open import open_store
from zindex.store.reader import forget_all_files
from zindex.store.receipts import read_manifest
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.tokens import FlatFile

LENGTH = 40
REPLACED = "must hold what was there when it was opened, it was built again since; open it again"


@pytest.fixture(autouse=True, params=["numpy", "kernel"])
def _readers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limit = 0 if request.param == "kernel" else 1 << 30
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", limit)
    yield
    forget_all_files()


def values_of(seed: int) -> Any:
    """Return values of which zstd frames have one size."""
    return np.random.default_rng(seed).integers(0, 2**16, LENGTH).astype(np.uint16)


def build(root: Any, seed: int = 0, codec: Any = "none") -> Any:
    values = values_of(seed)
    build_arrays(root, {ONE: values}, ChunkGrid(5, 20, codec), {"seed": seed})
    return values


def read_rows(reader: RowReader) -> list[int]:
    """Read an array by spans, which a kernel may read."""
    starts = np.arange(0, LENGTH, 4)
    return read_many([Spans(reader, starts, starts + 4)])[0].tolist()


def swap(root: Path, first: str, second: str) -> None:
    a, b = (root / first).read_bytes(), (root / second).read_bytes()
    (root / first).write_bytes(b)
    (root / second).write_bytes(a)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("verify", ["first", "always"])
def test_shards_committed_elsewhere_are_errors(tmp_path: Path, codec: Any, verify: Any) -> None:
    values, stale = build(tmp_path / "a", 0, codec), build(tmp_path / "b", 1, codec)
    assert values.tolist() != stale.tolist()
    sound = (tmp_path / "a" / "one" / "c" / "0").read_bytes()

    def refused(match: str, number: int) -> None:
        forget_all_files()
        with pytest.raises(VerificationError, match=match):
            read_rows(open_store(tmp_path / "a", verify=verify)["one"])
        report = open_store(tmp_path / "a")["one"]
        assert report.read(20, 40).tolist() == values[20:].tolist() or number

    swap(tmp_path / "a", "one/c/0", "one/c/1")
    forget_all_files()
    with pytest.raises(VerificationError, match=r"shard one/c/0 of .* is not what was committed"):
        read_rows(open_store(tmp_path / "a", verify=verify)["one"])
    swap(tmp_path / "a", "one/c/0", "one/c/1")
    shutil.copy(tmp_path / "b" / "one" / "c" / "0", tmp_path / "a" / "one" / "c" / "0")
    refused("shard one/c/0 of .* is not what was committed", 0)
    for table in (False, True):
        (tmp_path / "a" / "one" / "c" / "0").write_bytes(sound)
        swapped = swap_chunks(sound, 4, table=table)
        assert swapped is not None
        (tmp_path / "a" / "one" / "c" / "0").write_bytes(swapped)
        what = "shard one/c/0 of .*" if table else "chunk 0 of shard one/c/0"
        refused(f"{what} is not (the one|what) ?(that)? was committed", 0)
    (tmp_path / "a" / "one" / "c" / "0").write_bytes(sound)
    forget_all_files()
    assert read_rows(open_store(tmp_path / "a", verify=verify)["one"]) == values.tolist()
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "a", mode="r")["one"][:], values)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("touched", [False, True])
def test_a_reader_that_was_open_when_the_store_was_rebuilt_raises(
    tmp_path: Path, codec: Any, touched: bool
) -> None:
    values = build(tmp_path / "a", 0, codec)
    build(tmp_path / "b", 1, codec)
    reader = open_store(tmp_path / "a")["one"]
    before = reader.read(0, 5).tolist() if touched else values[:5].tolist()
    assert before == values[:5].tolist()
    read_manifest.cache_clear()
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(VerificationError, match=REPLACED):
        reader.read(20, 25)
    child = fork(lambda: read_rows(reader))
    assert exit_code(child) == 1
    with pytest.raises(VerificationError, match=REPLACED):
        read_rows(pickle.loads(pickle.dumps(reader)))
    assert read_rows(open_store(tmp_path / "a")["one"]) == values_of(1).tolist()
    with pytest.raises(VerificationError, match=REPLACED):
        reader.read(0, 5)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_objects_are_bound_to_their_commit(objects: ObjectPath, codec: Any) -> None:
    values = build(objects / "a", 0, codec)
    build(objects / "b", 1, codec)
    reader = open_store(objects / "a")["one"]
    assert reader.read(0, 5).tolist() == values[:5].tolist()
    for key in list(files.list_keys(objects / "b", depth=None)):
        files.write_once(objects / "a" / key, [files.read_file(objects / "b" / key)], replace=True)
    with pytest.raises(VerificationError, match=REPLACED):
        reader.read(20, 25)
    with pytest.raises(
        VerificationError, match=r"chunk 2 of shard one/c/0 is not the one|" + REPLACED
    ):
        reader.read(10, 15)
    assert read_rows(open_store(objects / "a")["one"]) == values_of(1).tolist()
    shards = [files.read_file(objects / "a" / f"one/c/{number}") for number in range(2)]
    for number in range(2):
        files.write_once(objects / "a" / f"one/c/{number}", [shards[1 - number]], replace=True)
    reset_cache()
    with pytest.raises(VerificationError, match=r"shard one/c/0 of .* is not what was committed"):
        read_rows(open_store(objects / "a")["one"])


def test_the_manifest_is_read_once_for_all_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_arrays(tmp_path, {ONE: count_up(40), TWO: count_up(40, num_columns=2)}, ChunkGrid(5, 20))
    read: list[str] = []
    real = files.read_file
    monkeypatch.setattr(
        files, "read_file", lambda path, **given: read.append(path.name) or real(path, **given)
    )
    store = open_store(tmp_path)
    assert read == ["zarr.json"]
    for name in ("one", "two"):
        store[name].read(0, 40)
    assert read == ["zarr.json", "manifest.json"]


@pytest.mark.parametrize("damage", ["missing", "other", "short"])
def test_a_damaged_manifest_is_named(tmp_path: Path, damage: str) -> None:
    build(tmp_path)
    path = tmp_path / "_zindex" / "manifest.json"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + (b" }" if damage == "other" else b""))
    with pytest.raises(VerificationError, match=r"manifest.json .*; `zindex verify` names all"):
        open_store(tmp_path)["one"].read(0, 1)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_stores_of_format_1_are_bound_as_far_as_is_cheap(tmp_path: Path, codec: Any) -> None:
    """Their checksums are spread over the shard: they are gathered for "always" alone."""
    values = values_of(0)
    for name, given in (("a", values), ("b", values + np.uint16(1))):
        build_arrays(tmp_path / name, {ONE: given}, PlainGrid(5, 20, codec), {"seed": name})
    store = open_store(tmp_path / "a")
    assert store.attributes["format_version"] == 1
    np.testing.assert_array_equal(store["one"], values)
    path = tmp_path / "a" / "one" / "c" / "0"
    sound = path.read_bytes()
    shutil.copy(tmp_path / "b" / "one" / "c" / "0", path)
    with pytest.raises(VerificationError, match=r"shard one/c/0 of .* is not what was committed"):
        open_store(tmp_path / "a", verify="always")["one"].read(0, 1)
    path.write_bytes(sound)
    np.testing.assert_array_equal(open_store(tmp_path / "a", verify="always")["one"], values)
    path.write_bytes(b"0" + sound)
    with pytest.raises(VerificationError, match=r"shard one/c/0 of .* is not what was committed"):
        open_store(tmp_path / "a")["one"].read(0, 1)


def test_a_pair_that_was_changed_since_it_was_opened_is_refused(write_corpus: Any) -> None:
    prefix = write_corpus([3, 2])
    dataset = IndexedDataset(prefix)
    assert dataset[0].tolist() == [0, 1, 2]
    unread = pickle.loads(pickle.dumps(dataset))
    flat = FlatFile(f"{prefix}.bin", 4, np.uint8)
    path = Path(f"{prefix}.bin")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes(len(content)))
    os.utime(path, ns=(1, 1))
    assert dataset[1].tolist() == [3, 4]
    with pytest.raises(VerificationError, match=r"\.bin must be as (it was|they were) when"):
        unread[1]
    with pytest.raises(VerificationError, match=r"\.bin must be as it was when it was opened"):
        pickle.loads(pickle.dumps(flat)).read(0, 1)
    assert FlatFile(f"{prefix}.bin", 4, np.uint8).read(0, 1).tolist() == [0]
