"""Calls of the file system per store: each is a round trip on a parallel file system."""

import builtins
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.indexing.conftest import PlanIndex
from tests.trees import all_files
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing.ensure import build_store
from zindex.indexing.store_build import find_index
from zindex.ingest.convert import convert
from zindex.io import create_only
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store

_CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "mkdir", "rmdir", "link", "unlink", "rename", "replace")),
    *((os, name) for name in ("fsync", "stat", "lstat", "listdir", "scandir", "utime", "statvfs")),
    (create_only, "_rename_new"),
    (builtins, "open"),
)


@contextmanager
def counting(folder: Path) -> Iterator[Counter[str]]:
    """Count the calls that name a path below a folder, and all calls of fsync."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for module, name in _CALLS:
            real = getattr(module, name)

            def call(*args: Any, _real: Any = real, _name: str = name, **options: Any) -> Any:
                is_path = not isinstance(args[0], int) and str(args[0]).startswith(str(folder))
                is_path &= "opener" not in options  # which calls os.open
                counts[_name.strip("_")] += is_path or _name == "fsync"
                return _real(*args, **options)

            patch.setattr(module, name, call)
        yield counts
    for name in [name for name, count in counts.items() if not count]:
        del counts[name]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_a_small_index_is_built_and_opened_by_few_calls(
    write_corpus: WriteCorpus, plan_index: PlanIndex, tmp_path: Path, order: str
) -> None:
    plan, source = plan_index(write_corpus([5, 7, 3, 9]), grid=ChunkGrid(), order=order)
    folder = tmp_path / "index"
    with counting(folder) as built:
        result = run_builds(build_store(plan, source, folder, SerialExecutor()))
    # Three shards, three arrays' metadata, plan, manifest and root: one rename each.
    assert len(all_files(result.store.root)) == built["rename_new"] == 9
    # Each file, each of the ten directories, the root again after the commit, and the new folder.
    assert built["fsync"] == 9 + 10 + 1 + 1
    assert not {"link", "unlink", "replace", "rename", "utime", "rmdir"} & built.keys()
    assert built["mkdir"] <= 16
    assert built["open"] <= 33
    assert built["stat"] <= 3
    assert built["listdir"] + built["scandir"] <= 1
    store_plan = plan.store_plan(folder)
    for opening in (lambda: find_index(store_plan), lambda: open_store(store_plan.root)):
        with counting(folder) as opened:
            opening()
        assert opened == {"open": 1}
    store = open_store(store_plan.root)
    with counting(folder) as read:
        for name in store.layouts:
            np.asarray(store[name])
    assert read == {"open": 4}  # the manifest, and each shard
    with counting(folder) as again:
        run_builds(build_store(plan, source, folder, SerialExecutor()))
    assert again == {"open": 1}


def test_a_dataset_is_opened_by_few_calls(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus([5, 7, 3, 9])
    with counting(tmp_path) as opened:
        pair = IndexedDataset(prefix)
    assert opened == {"open": 2, "stat": 4}  # of the index; of both files, and their versions
    with counting(tmp_path) as read:
        pair[2]
        pair.get(3, 1, 2)
    assert read == {"open": 3, "stat": 2}  # two arrays of the index, and the text
    (store,) = convert(prefix, tmp_path / "made", client=SerialExecutor())
    with counting(tmp_path) as opened:
        dataset = ZarrIndexedDataset(str(store.root))
    assert opened == {"open": 1}
    with counting(tmp_path) as read:
        np.testing.assert_array_equal(dataset[2], pair[2])
    assert read == {"open": 3}  # the manifest too
