"""The commit protocol: whole or nothing, resumed, raced, damaged and refused."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs.zstd import Zstd

from tests.damage import flipped
from tests.killing import death_before, exit_code, fork, kill_process
from tests.store.stores import GRID, ONE, TWO, Values, build_arrays, count_up, plan_arrays
from tests.trees import all_files
from zindex.errors import (
    FingerprintMismatchError,
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.io import create_only, local
from zindex.store import commit
from zindex.store.commit import (
    StorePlan,
    begin_store,
    commit_store,
    fingerprint,
    read_root,
    read_status,
)
from zindex.store.layout import CHUNK_LENGTH, ChunkGrid, PaddedGrid
from zindex.store.open import open_store
from zindex.store.shard import Receipt, encode_shard
from zindex.store.shard_files import find_receipt, store_all_shards, store_shard, write_shard
from zindex.store.zarr_array import open_array
from zindex.version import VERSION

# Newer Pythons warn of any fork beside threads; that readers and builders bear it is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

#: Ten elements: two shards of one column, two of two columns.
ARRAYS = {ONE: count_up(10), TWO: count_up(10, dtype="int64", num_columns=2)}
SHARD_KEYS = ["one/c/0", "one/c/1", "two/c/0/0", "two/c/1/0"]


def fail_compute() -> Values:
    raise AssertionError("a finished shard is computed again")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files in the order in which they get their final names."""
    order: list[str] = []
    real = local.write_once

    def write_once(path: Path, buffers: Any, **settings: bool) -> bool:
        done = real(path, buffers, **settings)
        if done:
            order.append(str(path))
        return done

    monkeypatch.setattr(local, "write_once", write_once)
    return order


def write_all(plan: StorePlan) -> list[Receipt]:
    """Store every shard of ``ARRAYS`` and return the receipts."""
    return [
        result.receipt
        for layout, values in zip(plan.layouts, ARRAYS.values(), strict=True)
        for result in store_all_shards(plan.root, layout, values)
    ]


def test_the_root_metadata_is_the_very_last_file(root: Path, created: list[str]) -> None:
    build_arrays(root, ARRAYS)
    keys = [os.path.relpath(path, root) for path in created]
    assert keys[:5] == ["_zindex/plan.json", *SHARD_KEYS]
    assert set(keys[5:8]) == {"_zindex/manifest.json", "one/zarr.json", "two/zarr.json"}
    assert keys[8:] == ["zarr.json"]


def test_every_directory_with_a_shard_is_durable_before_the_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = local.sync_directory

    def sync_directory(path: Path) -> None:
        synced.append((os.path.relpath(path, root), (root / "zarr.json").exists()))
        real(path)

    monkeypatch.setattr(local, "sync_directory", sync_directory)
    build_arrays(root, ARRAYS)
    before = {path for path, committed in synced if not committed}
    folders = {str(Path(path).parent) for path in all_files(root)}
    assert before == folders | {"two/c"}
    assert synced[-2:] == [(".", True), ("..", True)]


def test_readers_before_the_commit_are_told_how_far_it_is(root: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=re.escape(f"no zindex store at {root}; check")):
        open_store(root)
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    receipts = []
    layouts = [(layout, shard) for layout in plan.layouts for shard in range(layout.num_shards)]
    for num_done, (layout, shard) in enumerate(layouts):
        with pytest.raises(NotReadyError, match=rf"store is not built yet: {num_done} of 4 ") as e:
            open_store(root)
        assert (e.value.num_done, e.value.num_shards) == (num_done, 4)
        assert read_status(root) == commit.StoreStatus(num_done, 4, committed=False)
        with pytest.raises(FileNotFoundError):
            zarr.open_group(root, mode="r")
        start, stop = layout.shard_bounds(shard)
        values = ARRAYS[ONE if layout.name == "one" else TWO]
        receipts.append(write_shard(root, layout, shard, values[start:stop]).receipt)
    with pytest.raises(NotReadyError, match="4 of 4 shards are finished; run the build again"):
        open_store(root)
    commit_store(plan, receipts)
    assert read_status(root) == commit.StoreStatus(4, 4, committed=True)
    assert open_store(root).fingerprint == plan.fingerprint


def test_status_is_given_in_folders_too(root: Path) -> None:
    """A folder of a two-column shard counts only with its file in it."""
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    (root / "two" / "c" / "0").mkdir(parents=True)
    (root / "one" / "c").mkdir(parents=True)
    (root / "one" / "c" / "0.abc.partial").touch()
    assert read_status(root).num_done == 0
    (root / "two" / "c" / "0" / "0").touch()
    assert read_status(root).num_done == 1


def test_an_empty_store_can_be_committed(root: Path) -> None:
    plan = build_arrays(root, {ONE: count_up(0), TWO: count_up(0, num_columns=2)})
    assert plan.num_shards == plan.nbytes == 0
    assert len(open_store(root)["one"]) == 0


def test_a_second_builder_of_the_same_plan_writes_nothing(root: Path, created: list[str]) -> None:
    build_arrays(root, ARRAYS)
    before = all_files(root)
    del created[:]
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    receipts = [
        store_shard(root, layout, shard, fail_compute)
        for layout in plan.layouts
        for shard in range(layout.num_shards)
    ]
    assert not any(result.written for result in receipts)
    commit_store(plan, [result.receipt for result in receipts])
    assert created == []
    assert all_files(root) == before


def test_the_same_content_is_finished_on_the_grid_it_was_begun_on(root: Path) -> None:
    first = plan_arrays(root, ARRAYS)
    begin_store(first)
    other = plan_arrays(root, ARRAYS, type(GRID)(2, 6))
    assert other.layouts != first.layouts
    assert other.fingerprint == first.fingerprint
    assert begin_store(other).layouts == first.layouts


def test_short_arrays_are_not_padded(root: Path) -> None:
    build_arrays(root, ARRAYS, ChunkGrid())
    # One chunk with its checksum, the table of one, then the index of one chunk with its own.
    sizes = {key: path.stat().st_size for key in ("one/c/0", "two/c/0/0") for path in [root / key]}
    assert sizes == {"one/c/0": 40 + 4 + 4 + 16 + 4, "two/c/0/0": 160 + 4 + 4 + 16 + 4}
    for item, values in ARRAYS.items():
        np.testing.assert_array_equal(open_store(root)[item.name], values)
        np.testing.assert_array_equal(zarr.open_group(root, mode="r")[item.name][:], values)
        np.testing.assert_array_equal(open_array(root / item.name), values)


def test_chunks_of_an_array_of_one_shard_are_hardly_padded(root: Path) -> None:
    values = count_up(CHUNK_LENGTH + 1)
    build_arrays(root, {ONE: values}, ChunkGrid())
    assert (root / "one/c/0").stat().st_size == values.nbytes + 4 + 2 * 4 + 2 * 4 + 2 * 16 + 4
    np.testing.assert_array_equal(zarr.open_group(root, mode="r")["one"][:], values)
    np.testing.assert_array_equal(open_store(root)["one"], values)


def test_bytes_on_the_grid_of_an_earlier_version_are_frozen(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMMON_ATTRIBUTES", {})
    arrays = {ONE: count_up(5), TWO: count_up(20, dtype="int64", num_columns=2)}
    grid = PaddedGrid(8, 16)
    plan = begin_store(replace(plan_arrays(root, arrays, grid), grid=grid))
    for layout, values in zip(plan.layouts, arrays.values(), strict=True):
        store_all_shards(root, layout, values)
    # Another builder finishes it, whose own grid would not pad.
    other = replace(plan_arrays(root, arrays, ChunkGrid(8, 16)), grid=ChunkGrid(8, 16))
    assert other.layouts != plan.layouts
    plan = begin_store(other)
    receipts = [
        result.receipt
        for layout, values in zip(plan.layouts, arrays.values(), strict=True)
        for result in store_all_shards(root, layout, values)
    ]
    commit_store(plan, receipts)
    digest = sha256(b"".join(key.encode() + content for key, content in all_files(root).items()))
    assert digest.hexdigest() == "75307bad3d36d38d038924c653ce2ab420f2a009a17f66d8423aaa08dca365ae"


@pytest.mark.parametrize("spec", [{"seed": 2}, {"seed": 1, "more": 0}])
def test_another_plan_at_the_same_place_is_refused(root: Path, spec: dict[str, Any]) -> None:
    first = build_arrays(root, ARRAYS)
    other = plan_arrays(root, ARRAYS, GRID, spec)
    assert other.fingerprint != first.fingerprint
    message = (
        f"holds fingerprint {first.fingerprint[:16]}, the build wants {other.fingerprint[:16]}"
    )
    with pytest.raises(FingerprintMismatchError, match=re.escape(message)):
        begin_store(other)


def test_a_fingerprint_does_not_depend_on_the_place(tmp_path: Path) -> None:
    first = build_arrays(tmp_path / "a", ARRAYS)
    second = build_arrays(tmp_path / "b" / "c", ARRAYS)
    assert first.fingerprint == second.fingerprint
    assert all_files(first.root) == all_files(second.root)


@pytest.mark.parametrize("name", ["notes.txt", "zarr.json", ".hidden", "one/c/0"])
def test_a_place_with_other_files_is_refused_and_left_alone(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious")
    message = f"{root} must be empty or a zindex store, it holds other files"
    with pytest.raises(FingerprintMismatchError, match=re.escape(message)):
        begin_store(plan_arrays(root, ARRAYS))
    assert all_files(root) == {name: b"precious"}


def test_shards_whose_plan_is_gone_are_named_and_built_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = all_files(build_arrays(root, ARRAYS).root)
    (root / "zarr.json").unlink()
    (root / "_zindex" / "plan.json").unlink()
    stale = next(key for key in wanted if "/c/" in key)
    other = {name: values + 1 for name, values in ARRAYS.items()}
    build_arrays(root.parent / "other", other)
    shutil.copy(root.parent / "other" / stale, root / stale)  # sound, of another build
    assert all_files(build_arrays(root, ARRAYS).root) == wanted
    assert f"such as {stale}, of a build whose plan is missing" in caplog.text


def test_a_damaged_shard_without_a_plan_is_named_and_left_alone(root: Path) -> None:
    wanted = all_files(build_arrays(root, ARRAYS).root)
    (root / "zarr.json").unlink()
    (root / "_zindex" / "plan.json").unlink()
    key = next(key for key in wanted if "/c/" in key)
    os.truncate(root / key, 3)
    left = all_files(root)
    with pytest.raises(FingerprintMismatchError, match=f"it holds other files, such as {key};"):
        begin_store(plan_arrays(root, ARRAYS))
    assert all_files(root) == left


@pytest.mark.parametrize("inner", ["x", "c/x"])
def test_a_store_inside_a_store_is_refused(root: Path, inner: str) -> None:
    build_arrays(root, ARRAYS)
    with pytest.raises(
        FingerprintMismatchError, match=f"must not be inside another store, {root} is"
    ):
        begin_store(plan_arrays(root / inner, ARRAYS))
    assert not (root / inner).exists()


def test_a_place_that_is_a_file_is_refused(root: Path) -> None:
    root.write_bytes(b"precious")
    message = f"{root} must be a directory, it is a file; choose another place"
    with pytest.raises(FingerprintMismatchError, match=re.escape(message)):
        begin_store(plan_arrays(root, ARRAYS))
    assert root.read_bytes() == b"precious"


def test_partial_files_of_killed_writers_do_no_harm(root: Path) -> None:
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    for key in (*SHARD_KEYS, "_zindex/manifest.json", "one/zarr.json", "zarr.json"):
        path = root / f"{key}.0123456789abcdef0123456789abcdef.partial"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    assert read_status(root).num_done == 0
    commit_store(plan, write_all(plan))
    np.testing.assert_array_equal(open_store(root)["two"], ARRAYS[TWO])
    np.testing.assert_array_equal(zarr.open_group(root, mode="r")["two"][:], ARRAYS[TWO])


def test_a_symlink_to_a_directory_is_a_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    build_arrays(tmp_path / "link", ARRAYS)
    assert len(open_store(tmp_path / "real")["one"]) == 10


# --- damage ---------------------------------------------------------------------------------


def truncate(content: bytes) -> bytes:
    return content[:-1]


def flip_footer(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip_footer,
        lambda content: content + b"\0",
        lambda content: content[1:],  # the index is whole, the chunks are not
        lambda content: b"",
        lambda content: bytes(len(content)),
        lambda content: content[: len(content) // 2],
    ],
    ids=["truncated", "flipped", "longer", "shifted", "empty", "zeroed", "halved"],
)
@pytest.mark.parametrize("key", SHARD_KEYS)
def test_a_damaged_shard_is_replaced_and_the_others_are_kept(
    root: Path, created: list[str], key: str, damage: Callable[[bytes], bytes]
) -> None:
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    write_all(plan)
    good = all_files(root)
    (root / key).write_bytes(damage(good[key]))
    del created[:]
    receipts = write_all(plan)
    assert [os.path.relpath(path, root) for path in created] == [key]
    assert all_files(root) == good
    commit_store(plan, receipts)


def test_a_missing_or_damaged_shard_has_no_receipt(root: Path) -> None:
    plan = plan_arrays(root, ARRAYS)
    layout = plan.layouts[0]
    assert find_receipt(root, layout, 0) is None
    result = write_shard(root, layout, 0, ARRAYS[ONE][:6])
    assert result.written
    assert find_receipt(root, layout, 0) == result.receipt
    assert not write_shard(root, layout, 0, ARRAYS[ONE][:6]).written
    path = root / "one" / "c" / "0"
    for nbytes in range(path.stat().st_size):
        os.truncate(path, nbytes)
        assert find_receipt(root, layout, 0) is None
        path.unlink()
        write_shard(root, layout, 0, ARRAYS[ONE][:6])


def test_other_compression_of_the_same_values_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions of a compressor in one cluster: both builders commit what is on disk."""
    values = {ONE: np.arange(64, dtype=np.int32) // 3}
    plan = begin_store(plan_arrays(root, values, ChunkGrid(16, 64, "zstd")))
    (layout,) = plan.layouts
    first = write_shard(root, layout, 0, values[ONE])
    other = Zstd(level=19, checksum=True).encode
    monkeypatch.setattr("zindex.store.shard.compress_chunks", lambda chunks, *_: map(other, chunks))
    _, receipt = encode_shard(layout, 0, values[ONE])
    assert receipt != first.receipt
    second = write_shard(root, layout, 0, values[ONE])
    assert (second.receipt, second.written) == (first.receipt, False)
    commit_store(plan, [first.receipt])
    commit_store(plan, [second.receipt])
    np.testing.assert_array_equal(np.asarray(open_store(root)[ONE.name]), values[ONE])


def test_other_values_under_the_same_plan_are_seen(root: Path) -> None:
    """``write_shard`` has the right values in hand: what differs is put right."""
    plan = plan_arrays(root, ARRAYS)
    layout = plan.layouts[0]
    write_shard(root, layout, 0, ARRAYS[ONE][:6] + np.int32(1))
    result = write_shard(root, layout, 0, ARRAYS[ONE][:6])
    assert result.written
    assert find_receipt(root, layout, 0) == result.receipt


def test_a_commit_without_all_receipts_is_refused(root: Path) -> None:
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    receipts = write_all(plan)
    for missing, key in enumerate(SHARD_KEYS):
        rest = [receipt for i, receipt in enumerate(receipts) if i != missing]
        with pytest.raises(VerificationError, match=rf"shard {key} was never finished"):
            commit_store(plan, rest)
    assert not (root / "zarr.json").exists()
    commit_store(plan, reversed(receipts))
    assert (root / "zarr.json").exists()


@pytest.mark.parametrize("key", ["_zindex/manifest.json", "one/zarr.json", "zarr.json"])
def test_a_commit_beside_other_bytes_is_refused(root: Path, key: str) -> None:
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    receipts = write_all(plan)
    (root / key).write_bytes(b"{}")
    message = f"{root / key} must hold what this build computed, it holds other bytes"
    with pytest.raises(FingerprintMismatchError, match=re.escape(message)):
        commit_store(plan, receipts)
    assert (root / key).read_bytes() == b"{}"


def test_attributes_of_the_first_commit_stay(root: Path) -> None:
    """Builders of two versions, or with two names of one source, finish together."""
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    receipts = write_all(plan)
    commit_store(plan, receipts, {"made_by": "zindex 0.0.1", "sources": ["a"]})
    content = (root / "zarr.json").read_bytes()
    commit_store(plan, receipts)
    assert (root / "zarr.json").read_bytes() == content
    assert open_store(root).attributes["made_by"] == "zindex 0.0.1"


def test_facts_of_a_commit(root: Path) -> None:
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    receipts = write_all(plan)
    commit_store(plan, receipts, {"num_samples": 7})
    facts = read_root(root)
    assert facts["num_samples"] == 7
    assert facts["made_by"] == f"zindex {VERSION}"
    assert facts["spec"] == plan.spec
    manifest = json.loads((root / "_zindex" / "manifest.json").read_text())
    assert manifest == {
        name: [[item.nbytes, item.crc32c] for item in receipts if item.array == name]
        for name in ("one", "two")
    }
    for receipt, key in zip(receipts, SHARD_KEYS, strict=True):
        assert (root / key).stat().st_size == receipt.nbytes


# --- what stands at the root ----------------------------------------------------------------


def test_a_group_of_someone_else_is_refused(root: Path) -> None:
    zarr.open_group(root, mode="w", attributes={"title": "mine"})
    message = f"{root} must be a store written by zindex, its zarr.json is not"
    with pytest.raises(StoreError, match=re.escape(message)):
        open_store(root)


@pytest.mark.parametrize(
    "content",
    [
        '{"attributes":{"zindex":{}}}',
        '{"attributes":{"zindex":{"root_sha256":null}}}',
        '{"attributes":{"zindex":{"root_sha256":"00"}}}',
        '{"attributes":{"zindex":{"weight":NaN}}}',
        '{"attributes":{"zindex":{"weight":1e999,"root_sha256":null}}}',
        '{"attributes":{"zindex":{}},"a":' + "[" * 900 + "]" * 900 + "}",
    ],
)
def test_root_metadata_without_the_right_digest_is_refused(root: Path, content: str) -> None:
    root.mkdir()
    (root / "zarr.json").write_text(content)
    with pytest.raises(VerificationError, match=r"zarr.json fails its digest; `zindex verify`"):
        open_store(root)


@pytest.mark.parametrize("content", ["", "[]", '{"attributes":[]}', '{"attributes":{"zindex":1}}'])
def test_root_metadata_of_another_shape_is_refused(root: Path, content: str) -> None:
    root.mkdir()
    (root / "zarr.json").write_text(content)
    with pytest.raises(StoreError, match=r"zarr.json must hold (a )?JSON|its zarr.json is not"):
        open_store(root)


def test_a_later_format_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "FORMAT_VERSION", 3)
    build_arrays(root, ARRAYS)
    monkeypatch.setattr(commit, "FORMAT_VERSION", 2)
    with pytest.raises(StoreError, match=r"has format version 3, this zindex reads 2; update"):
        open_store(root)


@pytest.mark.parametrize("content", ["{}", '{"arrays":7}', '{"plan_sha256":null}', '{"a":NaN}'])
def test_a_plan_without_the_right_digest_is_refused(root: Path, content: str) -> None:
    (root / "_zindex").mkdir(parents=True)
    (root / "_zindex" / "plan.json").write_text(content)
    for use in (open_store, read_status, lambda root: begin_store(plan_arrays(root, ARRAYS))):
        with pytest.raises(VerificationError, match=r"plan.json fails its digest; `zindex verify`"):
            use(root)


def test_a_flipped_bit_in_any_byte_of_the_plan_is_detected(root: Path) -> None:
    """Otherwise a build could go on with other lengths than those it began with."""
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    path = root / "_zindex" / "plan.json"
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(flipped(content, position, 1 << position % 8))
        with pytest.raises((StoreError, VerificationError), match=r"plan.json"):
            begin_store(plan)


def test_a_plan_of_a_later_format_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "FORMAT_VERSION", 3)
    begin_store(plan_arrays(root, ARRAYS))
    monkeypatch.setattr(commit, "FORMAT_VERSION", 2)
    for use in (open_store, lambda root: begin_store(plan_arrays(root, ARRAYS))):
        with pytest.raises(StoreError, match=r"has format version 3, this zindex reads 2; update"):
            use(root)


def test_the_digest_covers_every_field(root: Path) -> None:
    """Whoever changes a value must know the digest; it is no signature, only a checksum."""
    build_arrays(root, ARRAYS)
    metadata = json.loads((root / "zarr.json").read_text())
    metadata["attributes"]["zindex"]["spec"]["seed"] = 3
    (root / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(VerificationError, match="fails its digest"):
        open_store(root)
    del metadata["attributes"]["zindex"]["root_sha256"]
    metadata["attributes"]["zindex"]["root_sha256"] = fingerprint(metadata)
    (root / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(VerificationError, match="must have the fingerprint of its description"):
        open_store(root)
    del metadata["attributes"]["zindex"]["root_sha256"]
    forged = fingerprint({"kind": "index", "spec": {"seed": 3}})
    metadata["attributes"]["zindex"]["fingerprint"] = forged
    metadata["attributes"]["zindex"]["root_sha256"] = fingerprint(metadata)
    (root / "zarr.json").write_text(json.dumps(metadata))
    assert open_store(root).spec == {"seed": 3}


# --- room -----------------------------------------------------------------------------------


def test_too_little_room_is_refused_with_the_numbers(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_arrays(root, ARRAYS)
    monkeypatch.setattr(local, "free_nbytes", lambda path: plan.nbytes - 1)
    with pytest.raises(StoreError, match=r"needs 200 bytes more but its file system has 199 free"):
        begin_store(plan)
    monkeypatch.setattr(local, "free_nbytes", lambda path: plan.nbytes)
    begin_store(plan)


def test_room_is_needed_only_for_what_is_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_arrays(root, ARRAYS)
    begin_store(plan)
    store_all_shards(root, plan.layouts[0], ARRAYS[ONE])
    monkeypatch.setattr(local, "free_nbytes", lambda path: 159)
    with pytest.raises(StoreError, match=r"needs 160 bytes more but its file system has 159 free"):
        begin_store(plan)
    commit_store(plan, write_all(plan))
    monkeypatch.setattr(local, "free_nbytes", lambda path: 0)
    begin_store(plan)


def test_compressed_shards_are_not_refused_for_their_size(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "free_nbytes", lambda path: 1000)
    zeros = {ONE: np.zeros(10**4, np.int32)}
    with pytest.raises(StoreError, match=r"needs 40,000 bytes more"):
        begin_store(plan_arrays(root / "plain", zeros))
    begin_store(plan_arrays(root / "zstd", zeros, ChunkGrid(codec="zstd")))


# --- failing disks --------------------------------------------------------------------------


def error_of(root: Path) -> int | None:
    """Build, and return the system's error number if that fails."""
    try:
        build_arrays(root, ARRAYS)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["fsync", "writev", "_rename_new"])
def test_a_disk_that_fails_at_any_call_commits_nothing_and_is_resumed(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """The n-th call fails, for every n of a whole build, until a build needs fewer calls."""
    module: Any = create_only if call.startswith("_") else os
    real = getattr(module, call)
    failed_after = 0
    for turn in range(1, 100):
        place = root / str(turn)
        calls = 0

        def fail_once(*args: Any, turn: int = turn) -> Any:
            nonlocal calls
            calls += 1
            if calls == turn:
                raise OSError(code, os.strerror(code))
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(module, call, fail_once)
            found = error_of(place)
        if found is None:
            break
        assert found == code
        failed_after = turn
        if (place / "zarr.json").exists():  # only the last sync of the directory may fail later
            assert call == "fsync"
            np.testing.assert_array_equal(open_store(place)["one"], ARRAYS[ONE])
        else:
            with pytest.raises(StoreNotFoundError):
                open_store(place)
        assert not list(place.rglob("*.partial"))
        for key, content in all_files(place).items():
            assert content == GOOD[key]
        build_arrays(place, ARRAYS)
        assert all_files(place) == GOOD
    assert failed_after >= 9  # plan, four shards, manifest, two arrays and the root


@pytest.fixture(scope="module", autouse=True)
def good_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("good") / "store"
    build_arrays(root, ARRAYS)
    GOOD.update(all_files(root))


GOOD: dict[str, bytes] = {}


def build_with_limit(root: Path, limit: int) -> None:
    """Build in a process whose files cannot grow beyond a limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        build_arrays(root, ARRAYS)
    except OSError as error:
        os._exit(3 if error.errno == errno.EFBIG else 4)
    os._exit(0)


@pytest.mark.parametrize("part", [0.02, 0.1, 0.2, 0.5, 0.9, 0.99])
def test_a_full_disk_commits_nothing_and_is_resumed(root: Path, part: float) -> None:
    limit = int(part * max(map(len, GOOD.values())))
    assert exit_code(fork(partial(build_with_limit, root, limit))) == 3
    assert not (root / "zarr.json").exists()
    assert not list(root.rglob("*.partial"))
    for key, content in all_files(root).items():
        assert content == GOOD[key]
    build_arrays(root, ARRAYS)
    assert all_files(root) == GOOD


def test_a_builder_killed_at_any_call_is_resumed(tmp_path: Path) -> None:
    calls = ((os, "open"), (os, "writev"), (os, "fsync"), (create_only, "_rename_new"))

    def build(root: Path, number: int) -> None:
        with death_before(number, *calls, die=kill_process):
            build_arrays(root, ARRAYS)

    for number in range(200):
        root = tmp_path / str(number)
        status = exit_code(fork(partial(build, root, number)))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        try:
            store = open_store(root)
        except StoreNotFoundError:
            pass
        else:
            np.testing.assert_array_equal(store["two"], ARRAYS[TWO])
        build_arrays(root, ARRAYS)
        found = {key: content for key, content in all_files(root).items() if "partial" not in key}
        assert found == GOOD
    assert number > 35  # nine files, four calls each


# --- races ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_builders", [2, 4, 8])
@pytest.mark.parametrize("way", ["renameat2", "links", "claims"])
def test_racing_threads_make_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_builders: int, way: str
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if way != "renameat2":
        monkeypatch.setattr(create_only, "_renameat2", lambda *names: -1)
    if way == "claims":
        monkeypatch.setattr(local.os, "link", refuse)
    for turn in range(12):
        root = tmp_path / str(turn)
        barrier = threading.Barrier(num_builders)

        def build(root: Path = root, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            build_arrays(root, ARRAYS)

        with ThreadPoolExecutor(num_builders) as pool:
            for future in [pool.submit(build) for _ in range(num_builders)]:
                future.result()
        assert all_files(root) == GOOD


def build_many(tmp_path: Path, num_rounds: int, barrier: Any) -> None:
    for turn in range(num_rounds):
        barrier.wait(200)
        build_arrays(tmp_path / str(turn), ARRAYS)


def test_racing_processes_make_one_commit(tmp_path: Path) -> None:
    context = get_context("fork")
    num_builders, num_rounds = 4, 40
    barrier = context.Barrier(num_builders)
    processes = [
        context.Process(target=build_many, args=(tmp_path, num_rounds, barrier))
        for _ in range(num_builders)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * num_builders
    for turn in range(num_rounds):
        assert all_files(tmp_path / str(turn)) == GOOD


def test_readers_beside_a_builder_see_nothing_or_all(tmp_path: Path) -> None:
    seen = []
    stop = threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = stop.is_set()
            for turn in range(20):
                try:
                    store = open_store(tmp_path / str(turn))
                except StoreNotFoundError:
                    continue
                seen.append(np.array_equal(store["one"], ARRAYS[ONE]))

    thread = threading.Thread(target=read)
    thread.start()
    for turn in range(20):
        build_arrays(tmp_path / str(turn), ARRAYS)
    stop.set()
    thread.join()
    assert seen
    assert all(seen)
