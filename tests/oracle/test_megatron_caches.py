"""Caches that Megatron Core has written are read instead of built again."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import numbers
from tests.oracle.conftest import fit
from tests.oracle.test_blended_dataset import OURS, Case, build
from tests.oracle.test_blended_dataset import corpora as corpora
from tests.oracle.test_blended_dataset import theirs_modules as theirs_modules
from tests.oracle.test_masked_datasets import OURS as OUR_MASKED
from tests.oracle.test_masked_datasets import assert_same
from tests.oracle.test_overrides import ARRAYS, open_dataset
from tests.oracle.test_overrides import prefix as prefix
from tests.samples.masking.corpora import PieceTokenizer, draw_settings, write_sentences
from zindex.datasets import gpt_dataset as our_gpt
from zindex.datasets.utils import Split
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


@pytest.mark.usefixtures("masked_megatron")  # Megatron Core asks for its rank, too
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("weights", [[0.5, 0.2, 0.3], None])
def test_caches_of_blends(
    theirs_modules: Any,
    corpora: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: list[float] | None,
    defer: bool,
) -> None:
    """Blends whose size is given, and those of all samples, with their members."""
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 0)
    monkeypatch.setattr(store_computed, "MIN_STORED_ERRORS", 0)
    settings = {
        "random_seed": 3,
        "sequence_length": 8,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
        "blend": ([corpus.prefix for corpus in corpora[:3]], weights),
        "split": "100,0,0",
        "path_to_cache": str(tmp_path),
    }
    case = Case(settings, [None if weights is None else 700, 0, 0], has_empty_split=False)
    theirs = build(theirs_modules, case)[0]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3 + 3 * 4
    # As if it were too large to be computed, so that a builder would begin it first.
    ours = build(OURS, case, max_computed_rows=0, defer_npy_index_mmap=defer)[0]
    assert ours.unique_description_hash == theirs.unique_description_hash
    for blend in (ours, pickle.loads(pickle.dumps(ours))):
        assert isinstance(blend.dataset_index, np.memmap)
        np.testing.assert_array_equal(blend.dataset_index, theirs.dataset_index)
        np.testing.assert_array_equal(blend.dataset_sample_index, theirs.dataset_sample_index)
        for position in range(0, len(theirs), 7):
            item, expected = blend[position], theirs[position]
            assert item["tokens"].tolist() == expected["tokens"].tolist()
    assert sorted(tmp_path.iterdir()) == files
    found = convert_cache(tmp_path, tmp_path, remove=True)
    assert [each.problem for each in found] == [None] * 4
    stores = sorted(tmp_path.iterdir())
    assert len(stores) == sum(len(each.stores) for each in found)
    moved = build(OURS, case, max_computed_rows=0)[0]
    np.testing.assert_array_equal(moved.dataset_index[:], theirs.dataset_index)
    assert sorted(tmp_path.iterdir()) == stores


@pytest.mark.filterwarnings("ignore:The pad token:UserWarning")
@pytest.mark.filterwarnings("ignore:the pad token:UserWarning")
@pytest.mark.parametrize("number", numbers(4, 60))
def test_caches_of_masked_datasets(masked_megatron: Any, tmp_path: Path, number: int) -> None:
    rng = np.random.default_rng((number, 11))
    kind = ("bert", "t5")[number % 2]
    prefix, cache = str(tmp_path / "c"), tmp_path / "cache"
    write_sentences(prefix, rng)
    split = ("1", "70,30,0")[number // 2 % 2]
    settings = draw_settings(rng, kind) | {
        "tokenizer": PieceTokenizer(rng),
        "blend": ([prefix], None),
        "split": split,
        "path_to_cache": str(cache),
        "masking_do_permutation": False,
    }
    source = masked_megatron.indexed(prefix)
    num_documents = len(source.document_indices) - 1
    stop = num_documents if split == "1" else round(0.7 * num_documents)
    args = (prefix, np.arange(stop, dtype=np.int32), int(rng.integers(1, 300)))
    cls, config = getattr(masked_megatron, kind)
    settings, fitting = fit(config, settings)
    try:
        theirs = cls(source, *args, masked_megatron.utils.Split.train, config(**fitting))
    except ValueError:
        pytest.skip("no document gives a sample")
    if not len(theirs):
        pytest.skip("no document gives a sample")
    files = sorted(cache.iterdir())
    own, own_config = OUR_MASKED[kind]
    low_level = own.build_low_level_dataset(prefix, own_config(**settings))
    ours = own(low_level, *args, Split.train, own_config(**settings))
    for dataset in (ours, pickle.loads(pickle.dumps(ours))):
        assert isinstance(dataset.sample_index, np.memmap)
        np.testing.assert_array_equal(dataset.sample_index, theirs.sample_index)
        assert len(dataset) == len(theirs)
    assert sorted(cache.iterdir()) == files
    [found] = convert_cache(cache, cache, remove=True)
    assert found.problem is None
    [store] = cache.iterdir()
    assert found.stores == (str(store),)
    moved = own(low_level, *args, Split.train, own_config(**settings))
    np.testing.assert_array_equal(moved.sample_index[:], theirs.sample_index)
    for position in (0, len(theirs) // 2, len(theirs) - 1):
        assert_same(ours[position], moved[position], (number, position))
    assert [*cache.iterdir()] == [store]
