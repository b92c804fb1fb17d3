"""Made-up documents and the datasets over them."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import FakeTokenizer
from zindex.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset, MockGPTLowLevelDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError

DOCUMENTS = MockGPTLowLevelDataset(FakeTokenizer(vocab_size=50, eod=49))


def make_config(tokenizer: Any, **settings: Any) -> GPTDatasetConfig:
    return GPTDatasetConfig(
        random_seed=1,
        sequence_length=64,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        **settings,
    )


def test_lengths_are_numpys() -> None:
    expected = np.random.default_rng(0).integers(1, 4096, size=100_000, dtype=np.int32)
    np.testing.assert_array_equal(DOCUMENTS.sequence_lengths, expected)
    assert len(DOCUMENTS) == 100_000


def test_a_document_counts_and_ends() -> None:
    document = DOCUMENTS[0]
    expected = (np.arange(len(document)) + 1) % 50
    expected[-1] = 49
    np.testing.assert_array_equal(document, expected)
    assert document.dtype == np.int64


@given(st.integers(0, 20), st.integers(0, 5000), st.none() | st.integers(0, 5000))
def test_a_span_is_a_slice(idx: int, offset: int, length: int | None) -> None:
    document = DOCUMENTS[idx]
    stop = None if length is None else offset + length
    if length is None and offset > len(document):
        return  # a negative length
    np.testing.assert_array_equal(DOCUMENTS.get(idx, offset, length), document[offset:stop])


def test_pickle_is_small() -> None:
    assert len(DOCUMENTS.sequence_lengths)
    content = pickle.dumps(DOCUMENTS)
    assert len(content) < 300
    np.testing.assert_array_equal(pickle.loads(content)[7], DOCUMENTS[7])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_nothing_is_stored(tokenizer: Any, tmp_path: Path, cached: bool, order: Any) -> None:
    folder = str(tmp_path / "cache") if cached else None
    config = make_config(tokenizer, path_to_cache=folder, order=order)
    documents = MockGPTDataset.build_low_level_dataset(None, config)
    dataset = MockGPTDataset(documents, None, np.arange(33_333), 70_000, Split.train, config)
    assert os.listdir(tmp_path) == []
    assert len(dataset) >= 70_000
    shuffled = np.asarray(dataset.shuffle_index)
    np.testing.assert_array_equal(np.sort(shuffled), np.arange(len(dataset)))
    item = dataset[5]
    content = pickle.dumps(dataset)
    assert len(content) < 5_000
    again = pickle.loads(content)[5]
    assert all((item[key] == again[key]).all() for key in item)


def test_config_must_name_no_data(tokenizer: Any) -> None:
    config = make_config(tokenizer, blend=(["a"], None), split="1")
    with pytest.raises(ConfigError, match=r"got blend \(\['a'\], None\)"):
        MockGPTDataset(DOCUMENTS, None, np.arange(10), None, Split.train, config)
