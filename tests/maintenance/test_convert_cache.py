"""Megatron's caches become index stores; tests/oracle converts those of Megatron Core itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import commands
from tests.maintenance.test_cache_checks import (
    open_dataset,
    write_cache,
)
from tests.maintenance.test_cache_checks import (
    path as path,
)
from zindex.errors import StoreNotFoundError
from zindex.maintenance.convert_cache import convert_cache
from zindex.store.open import open_store
from zindex.store.verify import verify_store


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("extra", [True, False])
def test_settings_are_found(path: str, tmp_path: Path, drop_last: bool, extra: bool) -> None:
    """Megatron's description names neither the extra token nor a partial sample."""
    settings: dict[str, Any] = {
        "add_extra_token_to_sequence": extra,
        "drop_last_partial_validation_sequence": drop_last,
    }
    separate = [None, ([path], None), None]
    config = settings | {"split": None, "blend": None, "blend_per_split": separate}
    dataset = open_dataset(path, tmp_path / "own", 900, span=range(400), **config)
    write_cache(dataset, tmp_path / "cache")
    [found] = convert_cache(tmp_path / "cache", tmp_path / "index")
    assert found.problem is None
    roots = {Path(root).name for root in found.stores}
    assert dataset._plan().store_plan(tmp_path / "index").root.name in roots
    for root in found.stores:
        assert verify_store(root).is_sound
        store = open_store(root)
        assert np.array_equal(store["shuffle_index"][:], dataset.shuffle_index[:])
    # Again: nothing to do.
    assert convert_cache(tmp_path / "cache", tmp_path / "index") == [found]


def test_the_command(path: str, tmp_path: Path) -> None:
    dataset = open_dataset(path, tmp_path / "own", 900, span=range(360), split="0,90,10")
    cache = tmp_path / "cache"
    files = write_cache(dataset, cache)
    facts = json.loads(files["description"].read_text())
    moved = facts | {"dataset_path": "/there/c"}
    files["description"].write_text(json.dumps(moved))
    (cache / "x-BERTMaskedWordPieceDataset-description.txt").write_text('{"class": "BERT"}')
    (cache / "y-GPTDataset-train-description.txt").write_text("{")
    (cache / "z-GPTDataset-train-description.txt").write_text(files["description"].read_text())
    arguments = ("convert-cache", cache, tmp_path / "index")
    lines = commands.succeed(*arguments).splitlines()
    assert lines[-1] == f"0 of 4 caches are in {tmp_path}/index"
    assert "caches of BERT are not converted" in lines[1]
    assert "must describe a dataset of Megatron Core" in lines[2]
    assert lines[3] == "z-GPTDataset-train: some of its files are missing"
    assert "/there/c" in lines[0]
    there = ("--dataset-path", f"/there/c={path}", "--remove")
    lines = commands.succeed(*arguments, *there).splitlines()
    assert lines[-1] == f"1 of 4 caches are in {tmp_path}/index"
    assert len(list(cache.iterdir())) == 3
    assert "cache" in commands.fail("convert-cache", tmp_path / "none", tmp_path / "index")
    with pytest.raises(StoreNotFoundError, match="must be a folder of Megatron's caches"):
        convert_cache(tmp_path / "none", tmp_path / "index")


def test_a_cache_that_differs_in_one_value_is_not_converted(path: str, tmp_path: Path) -> None:
    dataset = open_dataset(path, tmp_path / "own", 900, span=range(360))
    shuffled = np.array(dataset.shuffle_index[:])
    shuffled[[0, 5]] = shuffled[[5, 0]]
    write_cache(dataset, tmp_path / "cache", shuffle_index=shuffled)
    [found] = convert_cache(tmp_path / "cache", tmp_path / "index", remove=True)
    assert "in row 0 of shuffle_index, got" in str(found.problem)
    assert not found.stores
    assert len(list((tmp_path / "cache").iterdir())) == 4
