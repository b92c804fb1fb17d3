"""Classes that count epochs themselves; tests/oracle compares their indices with Megatron's."""

from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.errors import ConfigError, PlanError


class OneEpoch(GPTDataset):
    def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
        return 1


class ThreeEpochs(GPTDataset):
    def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
        assert num_tokens_per_epoch == 81
        return 3


@pytest.fixture
def path(write_corpus: WriteCorpus) -> str:
    return write_corpus([9] * 9, name="c")


def build(path: str, cls: Any, size: int | None = None, **settings: Any) -> Any:
    config = plain_config(blend=([path], None), split="100,0,0", **settings)
    return build_datasets(cls, [size, 0, 0], config)[0]


@pytest.mark.parametrize("defer", [False, True])
def test_epochs(path: str, tmp_path: Any, defer: bool) -> None:
    settings = {"path_to_cache": str(tmp_path / "index"), "defer_npy_index_mmap": defer}
    dataset = build(path, ThreeEpochs, **settings)
    assert len(dataset) == (3 * 81 - 1) // 8
    counts = np.bincount(dataset.document_index)
    assert counts.tolist() == [3] * 9
    # All epochs are mixed, as Megatron mixes them if the last one is needed whole.
    assert set(dataset.document_index[:9].tolist()) != set(range(9))
    whole = build(path, GPTDataset, 30, **settings)
    same = build(path, ThreeEpochs, 30, **settings)
    for name in ("document_index", "sample_index", "shuffle_index"):
        assert np.array_equal(getattr(same, name), getattr(whole, name)[:]), name
    assert same[29]["tokens"].tolist() == whole[29]["tokens"].tolist()


def test_refusals(path: str) -> None:
    text = r"OneEpoch counts epochs itself, .* got order='scalable'"
    with pytest.raises(ConfigError, match=text):
        build(path, OneEpoch, order="scalable")
    text = r"ThreeEpochs._get_num_epochs .* the 5 samples requested .* got 3 epochs of 81 tokens"
    with pytest.raises(PlanError, match=text):
        build(path, ThreeEpochs, 5)
    with pytest.raises(PlanError, match="must have at least 25 samples, its OneEpoch has 10; ask"):
        build(path, OneEpoch, 25)
