"""Indices that a subclass makes, or whose arrays are assigned, determine the samples."""

import pickle
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.datasets.configs import plain_config
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError

NUM_SAMPLES = 12


class InOrder(GPTDataset):
    """Samples in the order of their text."""

    num_calls = 0

    def _build_document_sample_shuffle_indices(self) -> Any:
        type(self).num_calls += 1
        documents, samples, shuffled = super()._build_document_sample_shuffle_indices()
        return documents, samples, np.sort(shuffled)


class Reversed(BlendedDataset):
    """The positions of a blend, from its end."""

    def _build_indices(self) -> Any:
        datasets, samples = super()._build_indices()
        return datasets[::-1], samples[::-1]


@pytest.fixture
def path(write_corpus: WriteCorpus) -> str:
    return write_corpus([7, 9, 4, 6, 30, 1], name="c")


def open_dataset(path: str, cls: Any = GPTDataset, **settings: Any) -> Any:
    config = plain_config(**{"blend": ([path], None), "split": "100,0,0"} | settings)
    low_level = cls.build_low_level_dataset(path, config)
    return cls(low_level, path, range(6), NUM_SAMPLES, Split.train, config)


def tokens(dataset: Any) -> list[list[int]]:
    """Return the tokens of all samples, one by one; batches have the same."""
    found = [dataset[position]["tokens"].tolist() for position in range(len(dataset))]
    batch = dataset.__getitems__(range(len(dataset)))
    assert [item["tokens"].tolist() for item in batch] == found
    return found


@pytest.mark.parametrize("max_computed_rows", [0, 1000])
def test_a_subclass_makes_the_index(path: str, max_computed_rows: int) -> None:
    plain = open_dataset(path)
    own = open_dataset(path, InOrder, max_computed_rows=max_computed_rows)
    assert tokens(own) == [tokens(plain)[i] for i in np.argsort(plain.shuffle_index)]
    assert own.fingerprint != plain.fingerprint
    # A process with a copy does not make it again.
    num_calls = InOrder.num_calls
    assert tokens(pickle.loads(pickle.dumps(own))) == tokens(own)
    assert InOrder.num_calls == num_calls


def test_assigned_arrays(path: str) -> None:
    dataset, plain = open_dataset(path), open_dataset(path)
    before = tokens(dataset), dataset.fingerprint
    dataset.shuffle_index = np.sort(dataset.shuffle_index)
    assert tokens(dataset) == tokens(open_dataset(path, InOrder)) != before[0]
    assert dataset.fingerprint == open_dataset(path, InOrder).fingerprint != before[1]
    assert tokens(pickle.loads(pickle.dumps(dataset))) == tokens(dataset)
    dataset.sample_index = dataset.sample_index[:4]
    assert len(dataset) == 3
    assert plain.fingerprint == before[1]


def test_blends(path: str) -> None:
    members = [open_dataset(path), open_dataset(path)]
    config = members[0].config
    plain = BlendedDataset(members, [2.0, 1.0], 15, config)
    own = Reversed(members, [2.0, 1.0], 15, config)
    assert tokens(own) == tokens(plain)[::-1]
    assert own.dataset_count.tolist() == [10, 5]
    assert own.fingerprint != plain.fingerprint
    assert tokens(pickle.loads(pickle.dumps(own))) == tokens(own)
    assigned = BlendedDataset(members, [2.0, 1.0], 15, config)
    assigned.dataset_index = np.zeros(9, np.int16)
    assert len(assigned) == 9
    assert {int(item["dataset_id"]) for item in map(assigned.__getitem__, range(9))} == {0}


def test_blends_of_subclasses(path: str) -> None:
    members = [open_dataset(path, InOrder) for _ in range(2)]
    blend = BlendedDataset(members, [1, 1], None, members[0].config)
    assert tokens(blend) == [tokens(members[i])[0] for i in range(2)]


def test_wrong_arrays_are_refused(path: str) -> None:
    class Flat(GPTDataset):
        def _build_document_sample_shuffle_indices(self) -> Any:
            return np.zeros(3), np.zeros(3), np.zeros(3)

    with pytest.raises(ConfigError, match=r"Flat\._build_.* of shapes .* got \(3,\), \(3,\) and"):
        open_dataset(path, Flat)

    class Wrong(BlendedDataset):
        def _build_indices(self) -> Any:
            return np.array([0, 2]), np.array([0, 0])

    members = [open_dataset(path), open_dataset(path)]
    with pytest.raises(
        ConfigError, match=r"Wrong\._build_indices must return a dataset from 0 to 1 "
    ):
        Wrong(members, [1, 1], None, members[0].config)
