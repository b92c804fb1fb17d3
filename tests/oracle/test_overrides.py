"""Subclasses that override how Megatron Core builds indices give Megatron's samples here, too."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.datasets.configs import plain_config
from tests.oracle.conftest import OracleTokenizer, assert_same_array, assert_same_item
from zindex.datasets import blended_dataset as our_blend
from zindex.datasets import gpt_dataset as our_gpt
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.datasets.utils import Split

ARRAYS = ("document_index", "sample_index", "shuffle_index")
LENGTHS = [3, 5, 0, 2, 7, 9, 4, 6, 30, 1]


def in_order(base: Any) -> Any:
    """Return a class whose samples are not shuffled."""

    class InOrder(base):  # type: ignore[misc]
        def _build_document_sample_shuffle_indices(self) -> Any:
            documents, samples, shuffled = super()._build_document_sample_shuffle_indices()
            return documents, samples, np.sort(shuffled)

    return InOrder


def all_own(base: Any) -> Any:
    """Return a class that makes all arrays itself."""

    class AllOwn(base):  # type: ignore[misc]
        def _build_document_sample_shuffle_indices(self) -> Any:
            documents = np.arange(4, 7, dtype=np.int32)  # of 7, 9 and 4 tokens
            samples = np.array([[0, 0], [0, 5], [1, 3], [2, 1], [2, 2]], np.int32)
            return documents, samples, np.array([2, 0, 1, 0], np.uint32)

    return AllOwn


def one_epoch(base: Any) -> Any:
    """Return a class that never repeats its data."""

    class OneEpoch(base):  # type: ignore[misc]
        def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
            return 1

    return OneEpoch


def counted_epochs(base: Any) -> Any:
    """Return a class that counts epochs as Megatron does, in its own words."""

    class CountedEpochs(base):  # type: ignore[misc]
        def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
            assert num_tokens_per_epoch == self._get_num_tokens_per_epoch()
            return int(super()._get_num_epochs(num_tokens_per_epoch))

    return CountedEpochs


def fewer_tokens(base: Any) -> Any:
    """Return a class that does not count the last tokens of an epoch."""

    class FewerTokens(base):  # type: ignore[misc]
        def _get_num_tokens_per_epoch(self) -> int:
            return int(super()._get_num_tokens_per_epoch()) - 3

    return FewerTokens


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    prefix = str(tmp_path_factory.mktemp("corpus") / "c")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", np.int32)
    for number, length in enumerate(LENGTHS):
        builder.add_item(np.arange(length) + 50 * number)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix


def open_dataset(
    module: Any, make: Callable[[Any], Any], prefix: str, folder: Path, **own: Any
) -> Any:
    """Return a dataset of a subclass, ours or Megatron's."""
    num_samples = own.pop("num_samples", 25)
    config = plain_config(
        module.GPTDatasetConfig,
        blend=([prefix], None),
        split="100,0,0",
        tokenizer=OracleTokenizer(vocab_size=1000, eod=0, pad=None),
        path_to_cache=str(folder / module.__name__),
        **own,
    )
    cls = make(module.GPTDataset)
    low_level = cls.build_low_level_dataset(prefix, config)
    split = Split.train
    if module is not our_gpt:
        from megatron.core.datasets.utils import Split as TheirSplit

        split = TheirSplit.train
    indices = np.arange(len(LENGTHS), dtype=np.int32)
    return cls(low_level, prefix, indices, num_samples, split, config)


@pytest.mark.parametrize("settings", [{}, {"max_computed_rows": 0}, {"defer_npy_index_mmap": True}])
@pytest.mark.parametrize("num_samples", [None, 4, 25, 30])
@pytest.mark.parametrize("make", [in_order, all_own, one_epoch, counted_epochs, fewer_tokens])
def test_datasets(
    make: Any, num_samples: int | None, settings: Any, prefix: str, megatron: Any, tmp_path: Path
) -> None:
    ours = open_dataset(our_gpt, make, prefix, tmp_path, num_samples=num_samples, **settings)
    theirs = open_dataset(megatron.gpt, make, prefix, tmp_path, num_samples=num_samples)
    assert len(ours) == len(theirs)
    for name in ARRAYS:
        assert_same_array(getattr(ours, name), getattr(theirs, name), name)
    for position in range(len(theirs)):
        assert_same_item(ours[position], theirs[position], str(position))
    batch = ours.__getitems__(list(range(len(ours))))
    for position, item in enumerate(batch):
        assert item["tokens"].tolist() == theirs[position]["tokens"].tolist()


@pytest.mark.parametrize("size", [20, None])
def test_blends(size: int | None, prefix: str, megatron: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import blended_dataset as their_blend
    made = []
    for gpt, blend in ((our_gpt, our_blend), (megatron.gpt, their_blend)):

        class Reversed(blend.BlendedDataset):  # type: ignore[misc,name-defined]
            def _build_indices(self) -> Any:
                datasets, samples = super()._build_indices()
                return datasets[::-1], samples[::-1]

        members = [
            open_dataset(gpt, lambda cls: cls, prefix, tmp_path / str(n), num_samples=n)
            for n in (30, 15)
        ]
        weights = [2.0, 1.0] if size else [7, 5]
        config = members[0].config
        config.path_to_cache = None
        made.append(Reversed(members, weights, size, config))
    ours, theirs = made
    assert len(ours) == len(theirs) == (size or 12)
    assert_same_array(ours.dataset_index, theirs.dataset_index, "dataset_index")
    assert_same_array(
        ours.dataset_sample_index, theirs.dataset_sample_index, "dataset_sample_index"
    )
    for position in range(len(theirs)):
        item = dict(theirs[position])
        assert ours[position]["dataset_id"] == item["dataset_id"]
        assert ours[position]["tokens"].tolist() == item["tokens"].tolist()
