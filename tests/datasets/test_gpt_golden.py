"""Vectors that Megatron Core itself produced: the tables of indices, hashes and items."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zindex
from tests.datasets.configs import plain_config
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.utils import Split
from zindex.execution.executor import SerialExecutor

LENGTHS = [3, 5, 2, 7, 4, 6]
ONE_EPOCH = [2, 1, 5, 0, 4, 3]
THREE_MIXED = [1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3, 1, 0, 3, 2, 5, 4]

# fmt: off
GOLDEN = [
    # samples, extra token, document_index, sample_index, shuffle_index
    (None, 1, ONE_EPOCH,
     [(0, 0), (1, 2), (2, 1), (2, 5), (4, 0), (5, 0), (5, 4)], [0, 4, 3, 2, 5, 1]),
    (None, 0, ONE_EPOCH,
     [(0, 0), (1, 2), (2, 1), (2, 5), (3, 3), (4, 4), (5, 4)], [0, 4, 3, 2, 5, 1]),
    # two epochs, of which the last one is shuffled apart
    (9, 1, [*ONE_EPOCH, 0, 4, 3, 2, 5, 1],
     [(0, 0), (1, 2), (2, 1), (2, 5), (4, 0), (5, 0), (5, 4), (6, 1), (7, 2), (8, 2), (8, 6),
      (10, 1), (10, 5), (11, 3)],
     [1, 0, 3, 2, 5, 4, 8, 9, 11, 7, 10, 12, 6]),
    # two epochs, mixed
    (13, 1, THREE_MIXED[:12],
     [(0, 0), (0, 4), (2, 1), (2, 5), (4, 1), (4, 5), (5, 2), (6, 2), (7, 1), (8, 2), (9, 2),
      (10, 0), (11, 1), (11, 5)],
     [7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 12]),
]
# fmt: on
HASHES = [
    (None, "c8ac5bd0460f5b4c398916cae3317aa4"),
    (9, "892a9abb015e7ca13d2ed5a0ee6bdd38"),
    (13, "c7d42e7714d8c591fb68ddaf1f8aa197"),
    (15, "261ac665b36355fb7b5de86431bc85ab"),
]


def open_golden(
    path: str, tmp_path: Any, num_samples: int | None, split: Split = Split.train, **settings: Any
) -> GPTDataset:
    shares = {Split.train: "100,0,0", Split.valid: "0,100,0"}[split]
    tokenizer = SimpleNamespace(
        unique_identifiers=OrderedDict(a=1), vocab_size=100, eod=0, pad=-1, eos=98
    )
    config = plain_config(
        random_seed=1234,
        sequence_length=4,
        blend=(["h"], None),
        split=shares,
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=tokenizer,
        **settings,
    )
    low_level = GPTDataset.build_low_level_dataset(path, config)
    return GPTDataset(low_level, "h", np.arange(6, dtype=np.int32), num_samples, split, config)


@pytest.fixture(params=["prefix", "store", "link"])
def corpus(request: pytest.FixtureRequest, write_corpus: Any, tmp_path: Any) -> str:
    prefix: str = write_corpus(LENGTHS, name="h")
    if request.param == "prefix":
        return prefix
    store = str(tmp_path / "h.zarr")
    zindex.convert(prefix, store, client=SerialExecutor(), link=request.param == "link")
    return store


@pytest.mark.parametrize(("num_samples", "extra", "documents", "samples", "shuffled"), GOLDEN)
def test_indices_are_megatrons(
    corpus: str,
    tmp_path: Any,
    num_samples: int | None,
    extra: int,
    documents: list[int],
    samples: list[tuple[int, int]],
    shuffled: list[int],
) -> None:
    dataset = open_golden(corpus, tmp_path, num_samples, add_extra_token_to_sequence=bool(extra))
    arrays = (dataset.document_index, dataset.sample_index, dataset.shuffle_index)
    assert [array.dtype for array in arrays] == [np.int32, np.int32, np.uint32]
    assert np.asarray(arrays[0]).tolist() == documents
    assert np.asarray(arrays[1]).tolist() == [list(row) for row in samples]
    assert np.asarray(arrays[2]).tolist() == shuffled
    assert len(dataset) == len(shuffled)


def test_three_mixed_epochs(corpus: str, tmp_path: Any) -> None:
    dataset = open_golden(corpus, tmp_path, 15)
    assert np.asarray(dataset.document_index).tolist() == THREE_MIXED
    assert dataset.sample_index.shape == (21, 2)
    assert dataset.sample_index[-1].tolist() == [17, 3]
    assert np.asarray(dataset.shuffle_index).tolist() == [
        *[7, 4, 1, 10, 3, 9, 2, 12, 6, 11, 5, 0, 8, 18, 14, 13, 17, 16, 15, 19]
    ]


@pytest.mark.parametrize(("num_samples", "digest"), HASHES)
@pytest.mark.parametrize("extra", [True, False])
def test_hash_is_megatrons(
    write_corpus: Any, tmp_path: Any, num_samples: int | None, digest: str, extra: bool
) -> None:
    prefix = write_corpus(LENGTHS)
    dataset = open_golden(prefix, tmp_path, num_samples, add_extra_token_to_sequence=extra)
    assert dataset.unique_description_hash == digest


def test_first_item(corpus: str, tmp_path: Any) -> None:
    item = open_golden(corpus, tmp_path, None)[0]
    assert item["tokens"].tolist() == [8, 9, 3, 4]
    assert item["labels"].tolist() == [9, 3, 4, 5]


def test_partial_validation_sample(corpus: str, tmp_path: Any) -> None:
    dataset = open_golden(
        corpus,
        tmp_path,
        None,
        Split.valid,
        add_extra_token_to_sequence=False,
        drop_last_partial_validation_sequence=False,
    )
    assert dataset.sample_index[-2:].tolist() == [[5, 4], [5, 7]]
    shuffled = np.asarray(dataset.shuffle_index).tolist()
    assert shuffled == [5, 0, 3, 4, 2, 6, 1]
    partial = dataset[shuffled.index(6)]
    assert partial["tokens"].tolist() == [14, 15, 16, 0]
    assert partial["labels"].tolist() == [15, 16, 0, 0]
    assert partial["loss_mask"].tolist() == [1, 1, 0, 0]
    # Without an extra token every full sample lacks its last label.
    assert dataset[0]["loss_mask"].tolist() == [1, 1, 1, 0]
