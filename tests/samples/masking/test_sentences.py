"""Sentences of several datasets, read together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.datasets.test_masked_dataset import MASKING, Sentences, open_dataset
from tests.samples.masking.corpora import PieceTokenizer, write_sentences
from zindex.datasets.bert_dataset import BERTMaskedWordPieceDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.samples.batch import BatchRequest
from zindex.samples.masking.masked_batches import read_sentences


@pytest.mark.parametrize("kinds", ["pair", "pair zarr", "zarr zarr pair zarr", "pair memory zarr"])
def test_any_datasets_together(tmp_path: Path, kinds: str) -> None:
    config = BERTMaskedWordPieceDatasetConfig(
        random_seed=2**31 - 2,
        sequence_length=30,
        blend=(["c"], None),
        split="1",
        tokenizer=PieceTokenizer(np.random.default_rng(0)),
        path_to_cache=str(tmp_path / "cache"),
        classification_head=False,
        **MASKING,
    )
    datasets: list[Any] = []
    for number, kind in enumerate(kinds.split()):
        prefix = str(tmp_path / f"c{number}")
        write_sentences(prefix, np.random.default_rng(number))
        source: Any = IndexedDataset(prefix)
        if kind == "zarr":
            convert(prefix, f"{prefix}.zarr", client=SerialExecutor())
            source = ZarrIndexedDataset(f"{prefix}.zarr")
        elif kind == "memory":
            source = Sentences(source)
        datasets.append(open_dataset(source, config))
    rng = np.random.default_rng(9)
    which = rng.integers(0, len(datasets), 50)
    positions = np.array([rng.integers(len(datasets[i])) for i in which])
    texts = read_sentences(BatchRequest(datasets, which, positions, np.zeros(50, np.bool_)))
    assert sorted(texts.rows.tolist()) == list(range(50))
    begin = 0
    for sample, row in enumerate(texts.rows.tolist()):
        dataset, position = datasets[which[row]], int(positions[row])
        first, last, target = (int(number) for number in dataset.sample_index[position])
        sentences = [dataset.dataset[i].tolist() for i in range(first, last)]
        start, stop = texts.firsts[sample : sample + 2].tolist()
        assert texts.lengths[start:stop].tolist() == [*map(len, sentences)]
        tokens = [token for sentence in sentences for token in sentence]
        assert texts.tokens[begin : begin + len(tokens)].tolist() == tokens
        begin += len(tokens)
        assert texts.targets[sample] == target
        assert texts.seeds[sample] == (config.random_seed + position) % 2**32
    assert begin == len(texts.tokens)
