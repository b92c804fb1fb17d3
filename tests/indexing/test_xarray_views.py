"""Pairs, stores and runs as xarray opens them, without conversion."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.indexing.runs import make_config
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.run_datasets import open_run
from zindex.errors import MissingKeyError, SourceError
from zindex.ingest.records.import_records import import_records

LENGTHS = [5, 0, 7, 3, 9, 1]


@pytest.fixture(params=["pair", "zarr", "linked"])
def corpus(request: Any, write_corpus: WriteCorpus, tmp_path: Path) -> str:
    prefix = write_corpus(LENGTHS, name="web")
    if request.param == "pair":
        return f"{prefix}.idx"
    zindex.convert(prefix, tmp_path / "web.zarr", link=request.param == "linked")
    return str(tmp_path / "web.zarr")


def test_a_corpus_is_opened_lazily(corpus: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="error"):
        dataset = xarray.open_dataset(corpus, engine="zindex", chunks={})
    assert dataset.tokens.chunks is not None
    assert dataset.tokens.attrs["units"] == "token id"
    assert dataset.sequence_length.values.tolist() == LENGTHS
    document = dataset.zindex.document(2)
    expected = IndexedDataset(str(tmp_path / "web"))[2]
    np.testing.assert_array_equal(document, expected)
    assert document.token.values.tolist() == list(range(5, 12))
    np.testing.assert_array_equal(dataset.zindex.document(-4), expected)
    several = dataset.zindex.documents([2, 1, 5]).tolist()
    assert several == [expected.tolist(), [], dataset.tokens[-1:].values.tolist()]
    for number in (6, -7):
        with pytest.raises(IndexError, match=f"document {number} is none of 6"):
            dataset.zindex.document(number)
    plain = xarray.open_dataset(corpus, engine="zindex", drop_variables="sequence_offset")
    assert "sequence_offset" not in plain
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(plain)).tokens, dataset.tokens)
    with pytest.raises(MissingKeyError, match="the dataset must have sequence_offset"):
        plain.zindex.document(0)


def test_an_idx_needs_no_engine(write_corpus: WriteCorpus) -> None:
    dataset = xarray.open_dataset(f"{write_corpus(LENGTHS)}.idx")
    assert dataset.sizes["token"] == sum(LENGTHS)
    with pytest.raises(SourceError, match=r"missing\.idx is not"):
        xarray.open_dataset("missing.idx", engine="zindex")


@pytest.mark.parametrize("order", ["megatron", "scalable"])
@pytest.mark.parametrize("is_built", [False, True])
def test_samples_are_those_of_the_datasets(
    order: str, is_built: bool, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS * 3, name="web"), order=order)
    if is_built:
        zindex.build(config)
    node = zindex.open_index(config)["train/datasets/web"].to_dataset()
    [dataset] = open_run(config, FakeTokenizer())["train"]
    for position in range(len(dataset)):
        item = dataset[position]
        tokens = np.append(item["tokens"], item["labels"][-1])
        np.testing.assert_array_equal(node.zindex.sample(position), tokens)


def test_records_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "three"}\n')
    import_records(tmp_path / "a.jsonl", tmp_path / "store")
    dataset = xarray.open_dataset(tmp_path / "store", engine="zindex")
    assert bytes(dataset.zindex.record(1)["text"]) == b"three"

    class Bytes:
        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode()

    assert dataset.text_value[3:].zindex.decode(Bytes()) == "three"


def test_a_run_file_is_a_tree(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus(LENGTHS, name="web")
    run = tmp_path / "run.yaml"
    run.write_text(f"sequence_length: 4\nsplit: '1,0,0'\ndatasets: [{prefix}]\n")
    tree = xarray.open_datatree(run, engine="zindex")
    assert tree["train/datasets/web"].shuffle_index.sizes == {"sample": 6}
