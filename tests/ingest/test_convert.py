"""Corpora to token stores and back: any dtype, any cut, any interruption."""

import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import zindex
from tests.cluster.dask_processes import local_processes
from tests.conftest import WriteCorpus
from tests.killing import Killed, death_before
from tests.trees import all_files, shard_stamps
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    SourceError,
    StoreError,
    VerificationError,
)
from zindex.execution.executor import SerialExecutor, embedded_client
from zindex.formats.idx_writer import write_index
from zindex.ingest import convert as module
from zindex.ingest import driver
from zindex.ingest.convert import expand_prefixes
from zindex.ingest.corpora.pairs import find_corpora
from zindex.io import local
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_store
from zindex.store.tokens import open_tokens

SERIAL = SerialExecutor()
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
LENGTHS = [3, 0, 5, 2, 7, 0, 4]
DIMENSIONS = {
    "tokens": ("token",),
    "sequence_length": ("sequence",),
    "sequence_offset": ("sequence_bound",),
    "document_offset": ("document_bound",),
    "sequence_mode": ("sequence",),
}


def write_pair(
    prefix: Path,
    lengths: list[int],
    *,
    dtype: str = "int32",
    bounds: list[int] | None = None,
    modes: list[int] | None = None,
    content: bytes | None = None,
) -> Path:
    """Write a pair; its tokens count up unless the bytes of the .bin are given."""
    bounds = list(range(len(lengths) + 1)) if bounds is None else bounds
    write_index(f"{prefix}.idx", dtype, lengths, bounds, modes)
    if content is None:
        content = np.arange(sum(lengths)).astype(dtype).tobytes()
    Path(f"{prefix}.bin").write_bytes(content)
    return prefix


def read_pair(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def convert_one(prefix: Any, store_url: Any, **options: Any) -> Store:
    (store,) = zindex.convert(prefix, store_url, **({"client": SERIAL} | options))
    return store


@st.composite
def corpora(draw: st.DrawFn) -> dict[str, Any]:
    """Sequences of 0 to 12 tokens, documents of any number of them, any bytes as tokens."""
    lengths = draw(st.lists(st.integers(0, 12), max_size=30))
    inner = draw(st.lists(st.integers(0, len(lengths)), max_size=12))
    # Without sequences there may still be documents, or none.
    bounds = [0, *sorted(inner), len(lengths)] if lengths or draw(st.booleans()) else [0]
    modes = st.lists(st.integers(-128, 127), min_size=len(lengths), max_size=len(lengths))
    dtype = draw(st.sampled_from(DTYPES))
    num_bytes = sum(lengths) * np.dtype(dtype).itemsize
    seed = draw(st.integers(0, 2**32 - 1))
    return {
        "lengths": lengths,
        "bounds": bounds,
        # A file without sequences has no room to show whether it has modes.
        "modes": draw(st.none() | modes) if lengths else None,
        "dtype": dtype,
        "content": np.random.default_rng(seed).bytes(num_bytes),
    }


@settings(max_examples=60)
@given(
    corpus=corpora(),
    chunk_length=st.sampled_from([1, 2, 3, 7, 1000]),
    chunks_per_shard=st.sampled_from([1, 2, 5]),
    codec=st.sampled_from(["none", "zstd"]),
    link=st.booleans(),
)
def test_export_restores_the_source(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: dict[str, Any],
    chunk_length: int,
    chunks_per_shard: int,
    codec: Any,
    link: bool,
) -> None:
    folder = tmp_path_factory.mktemp("round_trip")
    prefix = write_pair(folder / "corpus", **corpus)
    grid = ChunkGrid(chunk_length, chunk_length * chunks_per_shard, codec)
    store = convert_one(prefix, folder / "corpus.zarr", grid=grid, link=link)
    zindex.export(store.root, folder / "back", client=SERIAL)
    assert read_pair(folder / "back") == read_pair(prefix)
    assert ("tokens" in store) is not link
    assert ("sequence_mode" in store) is (corpus["modes"] is not None)
    tokens = open_tokens(store).read(0, store.spec["num_tokens"])
    assert (tokens.tobytes(), tokens.dtype.name) == (corpus["content"], corpus["dtype"])
    shutil.rmtree(folder)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zarr_and_xarray_read_the_store_without_us(tmp_path: Path, dtype: str, codec: Any) -> None:
    prefix = write_pair(
        tmp_path / "corpus", LENGTHS, dtype=dtype, bounds=[0, 2, 2, 5, 7], modes=[*range(7)]
    )
    store = convert_one(prefix, tmp_path / "corpus.zarr", grid=ChunkGrid(2, 6, codec))
    expected = {
        "tokens": np.arange(sum(LENGTHS)).astype(dtype),
        "sequence_length": np.array(LENGTHS, np.int32),
        "sequence_offset": np.array([0, 3, 3, 8, 10, 17, 17, 21]),
        "document_offset": np.array([0, 2, 2, 5, 7]),
        "sequence_mode": np.arange(7, dtype=np.int8),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(store.root, mode="r")
        dataset = xarray.open_zarr(store.root)
        assert set(group.array_keys()) == set(dataset.data_vars) == set(expected)
        for name, values in expected.items():
            array = group[name]
            assert isinstance(array, zarr.Array)
            assert array.metadata.dimension_names == DIMENSIONS[name]
            assert dataset[name].dims == DIMENSIONS[name]
            for found in (array[:], dataset[name].values):
                assert found.dtype == values.dtype
                np.testing.assert_array_equal(found, values)
        assert array.attrs.keys() >= {"unit", "description"}


@pytest.mark.parametrize("link", [False, True])
def test_empty_corpus(tmp_path: Path, link: bool) -> None:
    prefix = write_pair(tmp_path / "empty", [])
    store = convert_one(prefix, tmp_path / "empty.zarr", link=link)
    assert [store.spec[name] for name in ("num_tokens", "num_sequences", "num_documents")] == [
        0
    ] * 3
    assert zarr.open_group(store.root, mode="r")["sequence_offset"][:].tolist() == [0]
    zindex.export(store.root, tmp_path / "back", client=SERIAL)
    assert read_pair(tmp_path / "back") == read_pair(prefix)


def test_several_corpora_are_named_like_their_prefixes(tmp_path: Path) -> None:
    for name, lengths in (("web", [1, 2]), ("code", [3]), ("books", [4, 5, 6])):
        write_pair(tmp_path / name, lengths)
    given_as = [tmp_path / "web.idx", f"{tmp_path}/code.bin", tmp_path / "books"]
    stores = zindex.convert(given_as, tmp_path / "stores", client=SERIAL)
    assert [store.root.name for store in stores] == ["web.zarr", "code.zarr", "books.zarr"]
    assert [store.spec["num_tokens"] for store in stores] == [3, 3, 15]
    assert {store.root.parent for store in stores} == {tmp_path / "stores"}


@pytest.mark.parametrize("pattern", ["part-*", "part-*.idx", "part-[0-9]*"])
def test_globs_are_sorted(tmp_path: Path, pattern: str) -> None:
    for name in ("part-2", "part-0", "part-10", "other"):
        write_pair(tmp_path / name, [1])
    found = [os.path.basename(path) for path in expand_prefixes(tmp_path / pattern)]
    assert found == ["part-0", "part-10", "part-2"]


def test_glob_or_sequence_of_one_corpus_names_a_folder(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    prefix = write_corpus([3, 4], name="only")
    for i, wanted in enumerate((f"{prefix[:-1]}*", [prefix])):
        (store,) = zindex.convert(wanted, tmp_path / f"folder{i}", client=SerialExecutor())
        assert store.root == tmp_path / f"folder{i}" / "only.zarr"
    (store,) = zindex.convert(prefix, tmp_path / "store.zarr", client=SerialExecutor())
    assert store.root == tmp_path / "store.zarr"


def test_name_that_looks_like_a_glob_is_a_name_if_it_exists(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "web[en]", [3])
    write_pair(tmp_path / "webe", [4])
    assert expand_prefixes(prefix) == [str(prefix)]


def test_both_files_of_a_pair_are_one_corpus() -> None:
    # As a shell expands a pattern such as data/* without quotes.
    files = ["a/code.bin", "a/code.idx", "a/web.bin", "a/web.idx"]
    assert expand_prefixes(files) == ["a/code", "a/web"]
    assert find_corpora(files) == ["a/code", "a/web"]


def test_glob_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no-such-\* must match at least one \.idx file"):
        zindex.convert(tmp_path / "no-such-*", tmp_path / "stores", client=SERIAL)
    assert not (tmp_path / "stores").exists()


def test_no_prefix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="needs at least one prefix, got none"):
        zindex.convert([], tmp_path / "stores", client=SERIAL)


def test_equal_names_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "web", tmp_path / "b" / "web"
    for prefix in (first, second):
        prefix.parent.mkdir()
        write_pair(prefix, [1])
    message = f"must have different names, got {second} and {first}"
    with pytest.raises(ConfigError, match=message):
        zindex.convert([first, second], tmp_path / "stores", client=SERIAL)
    assert not (tmp_path / "stores").exists()


def test_every_pair_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    good = write_pair(tmp_path / "good", [1, 2])
    cut = write_pair(tmp_path / "cut", [1, 2], content=b"123")
    with pytest.raises(SourceError, match=r"cut\.bin must have 12 bytes.* has 3"):
        zindex.convert([good, cut], tmp_path / "stores", client=SERIAL)
    with pytest.raises(SourceError, match=r"missing\.idx is not \(No such file"):
        zindex.convert([good, tmp_path / "missing"], tmp_path / "stores", client=SERIAL)
    with pytest.raises(
        SourceError, match=r"multimodal .idx file of 2 sequences must have 84 bytes"
    ):
        zindex.convert(good, tmp_path / "stores", client=SERIAL, multimodal=True)
    assert not (tmp_path / "stores").exists()


def test_other_schemes_are_refused(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", [1])
    with pytest.raises(ConfigError, match="'ftp'"):
        zindex.convert(prefix, "ftp://host/corpus.zarr", client=SERIAL)


def test_finished_store_is_opened_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_pair(tmp_path / "corpus", LENGTHS)
    grid = ChunkGrid(2, 4)
    first = convert_one(prefix, tmp_path / "corpus.zarr", grid=grid)
    files = sorted((path, path.stat().st_mtime_ns) for path in first.root.rglob("*"))
    monkeypatch.setattr(module, "store_corpus_shard", None)
    assert convert_one(prefix, tmp_path / "corpus.zarr", grid=grid) == first
    assert sorted((path, path.stat().st_mtime_ns) for path in first.root.rglob("*")) == files


@pytest.mark.parametrize("change", ["lengths", "bounds", "modes", "tokens", "dtype", "link"])
def test_other_content_at_the_same_place_is_refused(tmp_path: Path, change: str) -> None:
    corpus: dict[str, Any] = {"lengths": [3, 4], "bounds": [0, 1, 2], "modes": [0, 0]}
    first = convert_one(write_pair(tmp_path / "a", **corpus), tmp_path / "store")
    corpus |= {
        "lengths": {"lengths": [4, 3]},
        "bounds": {"bounds": [0, 2]},
        "modes": {"modes": [0, 1]},
        "tokens": {"content": np.array([0, 1, 2, 3, 4, 5, 7], np.int32).tobytes()},
        "dtype": {"dtype": "int64"},
        "link": {},
    }[change]
    other = write_pair(tmp_path / "b", **corpus)
    with pytest.raises(
        FingerprintMismatchError, match=f"it has {first.fingerprint[:16]}: its data"
    ):
        convert_one(other, tmp_path / "store", link=change == "link")
    assert open_store(tmp_path / "store") == first


def test_compressed_chunks_fit_the_sequences(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", [3000, 3000])
    store = convert_one(prefix, tmp_path / "store", grid=ChunkGrid(codec="zstd"))
    layouts = store.layouts
    # 8,192 tokens are more than there are.
    assert layouts["tokens"].chunk_length <= 1 << 13
    assert layouts["tokens"].codec == layouts["sequence_offset"].codec == "zstd"
    np.testing.assert_array_equal(np.asarray(store["tokens"]), np.arange(6000))


def test_store_keeps_the_grid_that_it_was_begun_on(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", LENGTHS)
    begun = ChunkGrid(2, 4)
    assert not convert_killed(5, prefix, tmp_path / "store", grid=begun)
    before = shard_stamps(tmp_path / "store")
    assert len(before) == 4
    store = convert_one(prefix, tmp_path / "store", grid=ChunkGrid(3, 9, "zstd"))
    after = shard_stamps(tmp_path / "store")
    assert {name: after[name] for name in before} == before
    assert {(item.chunk_length, item.codec) for item in store.layouts.values()} == {(2, "none")}
    assert convert_one(prefix, tmp_path / "store", grid=ChunkGrid(1, 1)) == store
    np.testing.assert_array_equal(np.asarray(store["tokens"]), np.arange(21))


def test_same_content_elsewhere_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    first = convert_one(write_pair(tmp_path / "corpus", LENGTHS), tmp_path / "a.zarr")
    moved = write_pair(tmp_path / "moved" / "renamed", LENGTHS)
    assert convert_one(moved, tmp_path / "b.zarr").fingerprint == first.fingerprint
    assert convert_one(moved, tmp_path / "a.zarr") == first


def test_link_to_a_corpus_that_moved_is_not_finished(tmp_path: Path) -> None:
    first, second = write_pair(tmp_path / "corpus", [3]), str(tmp_path / "moved")
    convert_one(first, tmp_path / "store", link=True)
    for suffix in ("bin", "idx"):
        os.rename(f"{first}.{suffix}", f"{second}.{suffix}")
    with pytest.raises(SourceError, match=r"corpus\.bin must have .*, it is missing; restore it"):
        convert_one(second, tmp_path / "store", link=True)
    assert open_tokens(convert_one(second, tmp_path / "other", link=True)).read(0, 3).size == 3


def test_several_corpora_are_not_written_into_a_store(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", [1])
    convert_one(prefix, tmp_path / "store")
    with pytest.raises(
        ConfigError, match=r"need a directory for their stores, \S+store is a store"
    ):
        zindex.convert(str(tmp_path / "c*"), tmp_path / "store")
    assert sorted(os.listdir(tmp_path / "store" / "_zindex")) == ["manifest.json", "plan.json"]
    assert not (tmp_path / "store" / "corpus.zarr").exists()


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", [1])
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.txt").write_text("do not lose")
    with pytest.raises(FingerprintMismatchError, match="must be empty or a zindex store"):
        convert_one(prefix, tmp_path / "store")
    assert os.listdir(tmp_path / "store") == ["thesis.txt"]


def test_full_disk_is_seen_before_the_first_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_pair(tmp_path / "corpus", [1000])
    monkeypatch.setattr("zindex.io.local.free_nbytes", lambda path: 4000)
    with pytest.raises(StoreError, match=r"needs 4,036 bytes more but .* has 4,000 free"):
        convert_one(prefix, tmp_path / "store")
    assert not shard_stamps(tmp_path / "store")


def convert_killed(num_writes: int, *arguments: Any, **options: Any) -> bool:
    """Convert until so many writes are done; return whether the conversion needed no more."""
    try:
        with death_before(num_writes, (local, "write_once")):
            convert_one(*arguments, **options)
    except (Killed, BaseExceptionGroup):
        return False
    return True


def test_death_before_every_write(tmp_path: Path) -> None:
    """Cut before the k-th write for every k: not ready, then no finished shard is redone."""
    prefix = write_pair(tmp_path / "corpus", LENGTHS, modes=[1] * 7)
    grid = ChunkGrid(2, 4)
    num_writes, finished = 0, False
    while not finished:
        root = tmp_path / f"cut-{num_writes}"
        finished = convert_killed(num_writes, prefix, root, grid=grid)
        before = shard_stamps(root)
        if not finished and num_writes:
            with pytest.raises(NotReadyError, match=f"{len(before)} of 14 shards") as caught:
                open_store(root)
            assert (caught.value.num_done, caught.value.num_shards) == (len(before), 14)
            # What a reader without zindex finds is nothing, and not a part.
            with pytest.raises(FileNotFoundError):
                zarr.open_group(root, mode="r")
        store = convert_one(prefix, root, grid=grid)
        after = shard_stamps(root)
        assert {name: after[name] for name in before} == before
        assert not list(root.rglob("*.partial"))
        zindex.export(store.root, tmp_path / f"back-{num_writes}", client=SERIAL)
        assert read_pair(tmp_path / f"back-{num_writes}") == read_pair(prefix)
        num_writes += 1
    # The plan, 14 shards, the manifest, five arrays' metadata and the commit.
    assert num_writes - 1 == 1 + 14 + 1 + 5 + 1


@pytest.mark.parametrize("what", ["tokens", "modes", "bounds"])
def test_a_corpus_rewritten_before_the_resume_is_an_error(tmp_path: Path, what: str) -> None:
    corpus: dict[str, Any] = {"lengths": LENGTHS, "modes": [1] * 7}
    prefix = write_pair(tmp_path / "corpus", **corpus)
    grid = ChunkGrid(2, 4)
    assert not convert_killed(3, prefix, tmp_path / "store", grid=grid)
    before = shard_stamps(tmp_path / "store")
    assert len(before) == 2
    corpus |= {
        "tokens": {"content": np.arange(21, 42, dtype=np.int32).tobytes()},
        "modes": {"modes": [1] * 6 + [2]},
        "bounds": {"bounds": [0, 1, 2, 3, 4, 5, 5, 7]},
    }[what]
    write_pair(prefix, **corpus)
    with pytest.raises(FingerprintMismatchError, match=r"store holds fingerprint [0-9a-f]{16}, "):
        convert_one(prefix, tmp_path / "store", grid=grid)
    assert shard_stamps(tmp_path / "store") == before


def test_touched_corpus_is_accepted(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", LENGTHS)
    assert not convert_killed(3, prefix, tmp_path / "store", grid=ChunkGrid(2, 4))
    write_pair(prefix, LENGTHS)
    os.utime(f"{prefix}.bin", (1, 1))
    assert convert_one(prefix, tmp_path / "store", grid=ChunkGrid(2, 4)).spec["num_tokens"] == 21


def test_tokens_are_sampled_at_the_start_of_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is seen where the identity looks: the first bytes of each block of the .bin."""
    monkeypatch.setattr(module, "_BIN_BLOCK_NBYTES", 16)
    monkeypatch.setattr(module, "_BIN_SAMPLE_NBYTES", 4)
    prefix = write_pair(tmp_path / "corpus", [10])
    first = convert_one(prefix, tmp_path / "store")
    for token, seen in ((0, True), (4, True), (8, True), (5, False)):
        tokens = np.arange(10, dtype=np.int32)
        tokens[token] = 99
        tokens.tofile(f"{prefix}.bin")
        if seen:
            with pytest.raises(
                FingerprintMismatchError, match=f"it has {first.fingerprint[:16]}: its"
            ):
                convert_one(prefix, tmp_path / "store")
        else:
            assert convert_one(prefix, tmp_path / "store") == first


def test_bin_that_is_cut_while_it_is_read_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_pair(tmp_path / "corpus", LENGTHS)
    begin_store = driver.begin_store

    def cut(plan: Any) -> Any:
        os.truncate(f"{prefix}.bin", 80)
        return begin_store(plan)

    monkeypatch.setattr(driver, "begin_store", cut)
    with pytest.raises(VerificationError, match=r"must hold 84 bytes.* now holds 80") as caught:
        convert_one(prefix, tmp_path / "store", grid=ChunkGrid(4, 20))
    assert caught.value.__notes__ == ["in task convert-store-tokens-0"]
    with pytest.raises(NotReadyError):
        open_store(tmp_path / "store")


def test_damaged_shard_is_replaced_by_the_resumed_build(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "corpus", LENGTHS)
    grid = ChunkGrid(2, 4)
    assert not convert_killed(5, prefix, tmp_path / "store", grid=grid)
    before = shard_stamps(tmp_path / "store")
    damaged = str(tmp_path / "store" / "tokens" / "c" / "1")
    os.truncate(damaged, 5)
    store = convert_one(prefix, tmp_path / "store", grid=grid)
    after = shard_stamps(tmp_path / "store")
    assert {name for name in before if after[name] != before[name]} == {damaged}
    np.testing.assert_array_equal(np.asarray(store["tokens"]), np.arange(21))


@pytest.mark.parametrize("link", [False, True])
def test_clusters_write_the_same_bytes(tmp_path: Path, link: bool) -> None:
    prefixes = [
        write_pair(tmp_path / "a", LENGTHS, modes=[1] * 7),
        write_pair(tmp_path / "b", [9, 0, 30], dtype="uint16"),
    ]
    options: dict[str, Any] = {"grid": ChunkGrid(2, 4), "link": link}
    zindex.convert(prefixes, tmp_path / "serial", client=SERIAL, **options)
    with embedded_client(2) as client:
        zindex.convert(prefixes, tmp_path / "embedded", client=client, **options)
        zindex.export(tmp_path / "embedded" / "a.zarr", tmp_path / "back", client=client)
    assert read_pair(tmp_path / "back") == read_pair(prefixes[0])
    with local_processes(2) as client:
        zindex.convert(prefixes, tmp_path / "processes", client=client, **options)
        zindex.export(tmp_path / "processes" / "b.zarr", tmp_path / "other", client=client)
    assert read_pair(tmp_path / "other") == read_pair(prefixes[1])
    files = all_files(tmp_path / "serial")
    assert len(files) > 20
    assert all_files(tmp_path / "embedded") == all_files(tmp_path / "processes") == files


@pytest.mark.parametrize("link", [False, True])
def test_converters_side_by_side_help_each_other(tmp_path: Path, link: bool) -> None:
    prefix = write_pair(tmp_path / "corpus", LENGTHS * 3)
    barrier = threading.Barrier(4)

    def convert(number: int) -> Store:
        barrier.wait()
        return convert_one(prefix, tmp_path / "store", grid=ChunkGrid(2, 4), link=link)

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(convert, range(4)))
    assert stores == [open_store(tmp_path / "store")] * 4
    assert not list((tmp_path / "store").rglob("*.partial"))
    zindex.export(tmp_path / "store", tmp_path / "back", client=SERIAL)
    assert read_pair(tmp_path / "back") == read_pair(prefix)


def test_without_a_client_a_cluster_is_embedded(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus(LENGTHS)
    (store,) = zindex.convert(prefix, tmp_path / "store")
    np.testing.assert_array_equal(np.asarray(store["tokens"]), np.arange(21))


CONVERT_AND_MEASURE = """
import json, sys
import zindex
from zindex.execution.executor import embedded_client

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

with embedded_client(2) as client:
    before = peak()
    zindex.convert(sys.argv[1], sys.argv[2], client=client)
    zindex.export(sys.argv[2], sys.argv[3], client=client)
print(json.dumps([before, peak()]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    num_tokens = 1 << 28  # 1 GiB of int32
    if shutil.disk_usage(tmp_path).free < 12 << 30:
        pytest.skip("needs 12 GiB of disk")
    write_index(tmp_path / "big.idx", np.int32, [1 << 10] * (num_tokens >> 10), range(2**18 + 1))
    with open(tmp_path / "big.bin", "wb") as stream:
        stream.truncate(4 * num_tokens)
    paths = [str(tmp_path / name) for name in ("big", "big.zarr", "back")]
    command = [sys.executable, "-c", CONVERT_AND_MEASURE, *paths]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    before, peak = json.loads(done.stdout)
    assert read_pair(tmp_path / "back")[1] == read_pair(tmp_path / "big")[1]
    assert os.path.getsize(tmp_path / "back.bin") == 4 * num_tokens
    # One shard of 64 MiB per thread, as read and as written.
    assert peak - before < 320 << 20, (before >> 20, peak >> 20)
