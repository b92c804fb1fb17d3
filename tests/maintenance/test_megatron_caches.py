"""Files of Megatron Core's caches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zindex.errors import VerificationError
from zindex.formats.megatron_cache import BLEND_ARRAYS
from zindex.maintenance.megatron_caches import MegatronCache, list_caches
from zindex.store.commit import StorePlan


def write_cache(folder: Path, name: str = "x-BlendedDataset-train") -> MegatronCache:
    cache = MegatronCache(folder, name, BLEND_ARRAYS)
    for kind in BLEND_ARRAYS:
        np.save(cache.paths[kind], np.arange(4))
    cache.paths["description"].write_text("{}")
    return cache


def test_missing_and_damaged_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = write_cache(tmp_path)
    plan = StorePlan(tmp_path / "store", "index", {}, ())
    checked: list[Any] = []
    assert cache.is_sound("{}", plan, checked.append)
    assert [array.tolist() for array in checked[0]] == [[0, 1, 2, 3]] * 2
    assert not cache.is_sound(json.dumps({"seed": 1}), plan, checked.append)
    assert not MegatronCache("s3://bucket/c", cache.name, BLEND_ARRAYS).exists
    samples = cache.paths["dataset_sample_index"]
    samples.write_bytes(samples.read_bytes()[:130])
    with pytest.raises(VerificationError, match=r"sample_index.npy must be an array of Megatron's"):
        cache.open()
    assert not cache.is_sound("{}", plan, checked.append)
    assert f"{cache.name} in {tmp_path} is not used: {samples} must be" in caplog.text
    samples.unlink()
    assert not cache.exists
    assert not cache.is_sound("{}", plan, checked.append)
    assert len(checked) == 1


def test_list(tmp_path: Path) -> None:
    for name in ("b-GPTDataset-train", "a-GPTDataset-valid", "a-BlendedDataset-train"):
        write_cache(tmp_path, name)
    names = ["a-BlendedDataset-train", "a-GPTDataset-valid", "b-GPTDataset-train"]
    assert list_caches(tmp_path) == names
    assert list_caches(tmp_path, "GPTDataset-train") == names[2:]
    assert list_caches(tmp_path / "none") == list_caches("s3://bucket/c") == []
