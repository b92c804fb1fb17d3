"""The base of every dataset: cache key, pad token, indices and pickling."""

import json
import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.utils import Split


class Numbers(MegatronDataset):
    """The least that a dataset is."""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, idx: Any) -> dict[str, Any]:
        return {"number": self.indices[idx], "tokens": self.dataset[int(self.indices[idx])]}


def make_config(tokenizer: Any = None, **settings: Any) -> BlendedMegatronDatasetConfig:
    return BlendedMegatronDatasetConfig(
        random_seed=1234,
        sequence_length=4,
        blend=(["h"], None),
        split="100,0,0",
        tokenizer=tokenizer,
        **settings,
    )


def make(tokenizer: Any = None, indices: Any = range(3), **settings: Any) -> Numbers:
    config = make_config(tokenizer, **settings)
    return Numbers([[5], [6], [7]], "h", indices, 9, Split.train, config)


def test_description_has_megatrons_text() -> None:
    assert make(SimpleNamespace(unique_identifiers={"a": 1})).unique_description == json.dumps(
        {
            "class": "Numbers",
            "dataset_path": "h",
            "num_samples": 9,
            "index_split": "train",
            "random_seed": 1234,
            "sequence_length": 4,
            "split": "100,0,0",
            "split_matrix": [[0, 1.0], None, None],
            "tokenizer": {"a": 1},
        },
        indent=4,
    )


def test_another_order_is_another_dataset() -> None:
    assert make().unique_description_hash != make(order="scalable").unique_description_hash
    assert make(order="scalable").unique_identifiers["order"] == "scalable"


def test_numbers_of_numpy_are_numbers() -> None:
    config = make_config()
    dataset = Numbers([], "h", range(3), np.int64(9), Split.train, config)  # type: ignore[arg-type]
    assert dataset.unique_description == make().unique_description


class Bare:
    """A tokenizer without any special token, that says so as Megatron's do."""

    def __init__(self) -> None:
        self.unique_identifiers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


@pytest.mark.parametrize(
    ("special", "allow", "pad"),
    [
        ({}, False, -1),  # no pad
        ({"pad": None}, False, -1),
        ({"pad": 7}, False, 7),
        ({"pad": 7, "eos": 8, "eod": 9}, False, 7),
        ({"pad": 7, "special_tokens_dict": {"pad_token": 7, "eos_token": 8}}, False, 7),
        # named special tokens count, eos and eod then do not
        ({"pad": 7, "eod": 7, "special_tokens_dict": {"eos_token": 8}}, False, 7),
    ],
)
def test_unambiguous_pad(special: dict[str, Any], allow: bool, pad: int) -> None:
    tokenizer = SimpleNamespace(unique_identifiers={}, **special)
    assert make(tokenizer, allow_ambiguous_pad_tokens=allow)._pad_token_id == pad


@pytest.mark.parametrize(
    "special",
    [
        {"eos": 7},
        {"eod": 7},
        {"special_tokens_dict": {"pad_token": 1, "eos_token": 7}},
        {"special_tokens_dict": {"pad_token": 7}, "eos": 7},
    ],
)
@pytest.mark.parametrize(
    ("allow", "pad", "told"), [(False, -1, "-1 marks padding"), (True, 7, "masked out")]
)
def test_ambiguous_pad(special: dict[str, Any], allow: bool, pad: int, told: str) -> None:
    tokenizer = SimpleNamespace(unique_identifiers={}, pad=7, **special)
    with pytest.warns(UserWarning, match=f"got 7, which is another special token too: .*{told}"):
        dataset = make(tokenizer, allow_ambiguous_pad_tokens=allow)
    assert dataset._pad_token_id == pad


def test_tokenizer_without_special_tokens() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(Bare())._pad_token_id == -1


def test_ranges_keep_their_step() -> None:
    assert make(indices=range(2, -1, -2)).indices.tolist() == [2, 0]


@pytest.mark.parametrize("indices", [range(1, 3), np.array([1, 2], np.int32)])
def test_consecutive_indices_become_a_range(indices: Any) -> None:
    dataset = make(indices=indices)
    assert dataset.indices.tolist() == [1, 2]
    assert dataset.indices.dtype == np.int32
    many = range(10**6) if isinstance(indices, range) else np.arange(10**6, dtype=np.int32)
    assert len(pickle.dumps(make(indices=many))) < 2_000


def test_other_indices_are_kept() -> None:
    assert make(indices=np.array([2, 0])).indices.tolist() == [2, 0]
    assert make(indices=np.array([], np.int32)).indices.tolist() == []
    assert make(indices=range(0)).indices.tolist() == []


def test_a_pair_is_opened_where_it_is_read(write_corpus: Any, tmp_path: Any) -> None:
    prefix = write_corpus([3, 2])
    dataset = Numbers(IndexedDataset(prefix), "h", range(2), None, Split.train, make_config())
    content = pickle.dumps(dataset)
    (tmp_path / "corpus.idx").rename(tmp_path / "elsewhere.idx")
    arrived = pickle.loads(content)  # nothing is read
    again = pickle.loads(pickle.dumps(arrived))
    (tmp_path / "elsewhere.idx").rename(tmp_path / "corpus.idx")
    assert arrived[1]["tokens"].tolist() == again[1]["tokens"].tolist() == [3, 4]


def test_low_level_methods_of_subclasses() -> None:
    with pytest.raises(NotImplementedError):
        MegatronDataset.numel_low_level_dataset([])
    with pytest.raises(NotImplementedError):
        MegatronDataset.build_low_level_dataset("h", None)
    assert MegatronDataset._key_config_attributes() == [
        *["random_seed", "sequence_length", "split", "split_matrix", "tokenizer"]
    ]
