"""Caches that Megatron Core has written are read instead of built again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracle.test_overrides import ARRAYS, open_dataset
from tests.oracle.test_overrides import prefix as prefix
from zindex.datasets import gpt_dataset as our_gpt
from zindex.indexing import store_computed
from zindex.maintenance.convert_cache import convert_cache


def same(cls: Any) -> Any:
    return cls


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("num_samples", [None, 4, 25, 30, 200])
def test_caches_are_adopted_and_moved(
    prefix: str,
    megatron: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_samples: int | None,
    extra: bool,
) -> None:
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 0)
    own: dict[str, Any] = {"num_samples": num_samples, "add_extra_token_to_sequence": extra}
    theirs = open_dataset(megatron.gpt, same, prefix, tmp_path, **own)
    (tmp_path / megatron.gpt.__name__).rename(tmp_path / our_gpt.__name__)
    cache = tmp_path / our_gpt.__name__
    files = sorted(cache.iterdir())
    assert len(files) == 4
    ours = open_dataset(our_gpt, same, prefix, tmp_path, **own)
    for name in ARRAYS:
        assert isinstance(getattr(ours, name), np.memmap)
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for position in range(len(theirs)):
        assert ours[position]["tokens"].tolist() == theirs[position]["tokens"].tolist()
    assert sorted(cache.iterdir()) == files
    [found] = convert_cache(cache, cache, remove=True)
    assert found.problem is None
    assert sorted(cache.iterdir()) == sorted(map(Path, found.stores))
    moved = open_dataset(our_gpt, same, prefix, tmp_path, **own, max_computed_rows=0)
    assert not isinstance(moved.shuffle_index, np.memmap)
    # Nothing was built: also the store for the setting that the description does not name.
    assert len(list(cache.iterdir())) == len(found.stores)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(moved, name)[:], getattr(theirs, name))
