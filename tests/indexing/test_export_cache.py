"""Megatron's ``.npy`` index caches: plain arrays, complete before their description."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus
from zindex.errors import ConfigError, NotReadyError, StoreNotFoundError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import export_cache as module
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store

SERIAL = SerialExecutor()


@pytest.fixture
def store(write_corpus: WriteCorpus, tmp_path: Path) -> Store:
    prefix = write_corpus([3, 0, 5, 2, 7, 0, 4], sequences_per_document=2)
    (store,) = zindex.convert(prefix, tmp_path / "corpus.zarr", client=SERIAL, grid=ChunkGrid(2, 4))
    return store


def make_config(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    return {
        "datasets": [str(tmp_path / "corpus")],
        "sequence_length": 4,
        "split": "1",
        "index": str(tmp_path / "index"),
    } | settings


def test_cache_of_packed_documents_is_refused(tmp_path: Path) -> None:
    config = {"datasets": ["a"], "sequence_length": 8, "packing": {}, "index": str(tmp_path)}
    with pytest.raises(ConfigError, match="cut out of a stream, got packing; leave it out"):
        zindex.export_cache(config, tokenizer={})


def test_cache_of_another_order_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must hold Megatron's order, got order='scalable'"):
        zindex.export_cache(make_config(tmp_path, order="scalable"), tokenizer={})


def test_cache_of_an_index_that_is_not_built_is_refused(store: Store, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with pytest.raises(StoreNotFoundError, match=r"no zindex store at .*index/gpt-train-"):
        zindex.export_cache(config, tmp_path / "cache", tokenizer={})
    ((_, result),) = zindex.build(config, client=SERIAL).items()
    os.unlink(result.store.root / "zarr.json")
    with pytest.raises(NotReadyError, match=r"is not built yet: 3 of 3 shards"):
        zindex.export_cache(config, tmp_path / "cache", tokenizer={})
    assert not (tmp_path / "cache").exists()


def test_path_for_a_dataset_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with pytest.raises(ConfigError, match="must name datasets of the run, got 'web'; it has /"):
        zindex.export_cache(config, tokenizer={}, dataset_paths={"web": "/data/web"})


def test_cache_files_are_plain_arrays(store: Store, tmp_path: Path) -> None:
    config = make_config(tmp_path, samples={"train": 11})
    ((_, result),) = zindex.build(config, client=SERIAL).items()
    (description,) = zindex.export_cache(config, tmp_path / "cache", tokenizer={"a": 1})
    base = str(description).removesuffix("description.txt")
    for name in ("document_index", "sample_index", "shuffle_index"):
        stored = np.asarray(result.store[name])
        found = np.load(f"{base}{name}.npy", allow_pickle=False)
        assert (found.dtype, found.shape) == (stored.dtype, stored.shape)
        np.testing.assert_array_equal(found, stored)
        np.save(tmp_path / "numpy.npy", stored)
        assert Path(f"{base}{name}.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_description_is_last(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron takes a cache for complete when its files exist."""
    config = make_config(tmp_path)
    zindex.build(config, client=SERIAL)

    def fail(path: Path, array: Any) -> None:
        if "shuffle" in path.name:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"array")

    monkeypatch.setattr(module, "write_npy", fail)
    with pytest.raises(OSError, match="No space left"):
        zindex.export_cache(config, tmp_path / "cache", tokenizer={})
    assert not list((tmp_path / "cache").glob("*description.txt"))


def test_failed_array_leaves_no_file(tmp_path: Path) -> None:
    class Broken:
        dtype = np.dtype(np.int32)
        shape = (3,)

        def __getitem__(self, rows: slice) -> Any:
            raise VerificationError("chunk 5 fails its checksum")

    with pytest.raises(VerificationError, match="chunk 5"):
        module.write_npy(tmp_path / "a.npy", Broken())
    assert not list(tmp_path.iterdir())
