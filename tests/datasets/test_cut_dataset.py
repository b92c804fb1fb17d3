"""Samples of a new length: of one span of the corpus, or of several."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.maintenance.edits.walks import edit_here, weighted_run, write_corpora
from zindex.datasets.cut_dataset import CutDataset
from zindex.datasets.run_datasets import open_run


def open_cut(config: Any, **settings: Any) -> CutDataset:
    dataset = open_run(config, FakeTokenizer(vocab_size=None), **settings)["train"]
    cut = [item for item in dataset.sources if isinstance(item, CutDataset)]
    return cut[-1]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_spans_tile_the_unused_samples(
    tmp_path: Path, write_corpus: WriteCorpus, order: str
) -> None:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12])
    config = weighted_run(tmp_path, paths, samples={"train": 80}, order=order)
    edit_here(config, 30, sequence_length=10)
    cut = open_cut(config)
    assert isinstance(cut.parent, type(cut.base))
    first = open_run(config, FakeTokenizer(vocab_size=None))["train"]
    _, used = first.find_samples(np.arange(30))
    gone = {int(cut.base.shuffle_index[i]) for i in used.tolist()}
    left = [
        token
        for sample in range(len(cut.base))
        if sample not in gone
        for token in range(4 * sample, 4 * sample + 4)
    ]
    samples = np.arange(len(cut))
    spans = cut.find_tokens(10 * samples, 10 * samples + 10)
    found = [np.arange(*pair) for pair in zip(spans.starts, spans.stops, strict=True)]
    assert np.concatenate(found).tolist() == left[: 10 * len(cut)]
    assert len(left) - 10 * len(cut) < 10
    # Neighbours that touch are one span.
    same = np.diff(spans.owners) == 0
    assert (spans.starts[1:][same] > spans.stops[:-1][same]).all()
    assert sorted(cut.shuffle(samples).tolist()) == samples.tolist()


def test_single_items_are_rows_of_batches(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12])
    config = weighted_run(tmp_path, paths, samples={"train": 80}, order="scalable")
    edit_here(config, 30, sequence_length=10)
    cut = open_cut(config)
    batch = cut.__getitems__([3, -1, None])
    assert batch[0]["tokens"].tolist() == cut[3]["tokens"].tolist()
    assert batch[1]["tokens"].tolist() == cut[len(cut) - 1]["tokens"].tolist()
    assert float(batch[2]["loss_mask"].sum()) == 0
    assert batch[0]["attention_mask"].shape == (1, 10, 10)
    assert len(cut.__getitems__([])) == 0
    with pytest.raises(IndexError, match="of what was left of train of"):
        cut[len(cut)]


def test_ends_of_documents_have_no_weight_at_joints(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    # Every token is the end of a document, or padding follows it.
    path = write_corpus([4] * 40, name="ends", tokens=[9, 7, 7, 0] * 40)
    config = weighted_run(tmp_path, [path], samples={"train": 30}, order="scalable")
    edit_here(config, 12, sequence_length=6)
    cut = open_cut(config, eod_mask_loss=True)
    for position in range(len(cut)):
        item = cut[position]
        expected = [float(token != 0) for token in item["tokens"].tolist()]
        assert item["loss_mask"].tolist() == expected
        assert item["labels"].tolist() == [
            {9: 7, 0: 9}.get(token, label)
            for token, label in zip(item["tokens"].tolist(), item["labels"].tolist(), strict=True)
        ]
