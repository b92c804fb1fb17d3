"""Windows over a Zarr corpus: as TextPacking makes them of one text, in any batch and process."""

import multiprocessing
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.loading.collate import collate
from zindex.processing.text_packing import TextPacking
from zindex.processing.zarr_text import ZarrText
from zindex.streaming.configuration.from_yaml import instantiate_from_yaml

LENGTHS = [3, 0, 9, 1, 0, 7, 4]
TOKENS = list(range(1, 25))


@pytest.fixture
def store(write_corpus: Any, tmp_path: Path) -> str:
    prefix = write_corpus(LENGTHS, tokens=TOKENS, dtype=np.uint16, sequences_per_document=2)
    path = str(tmp_path / "corpus.zarr")
    zindex.convert(prefix, path, client=SerialExecutor())
    return path


def pack(texts: list[list[int]], length: int, **settings: Any) -> list[dict[str, Any]]:
    """Return what text packing makes of token lists, each of them one stream."""
    made = []
    for tokens in texts:
        packing = TextPacking(length, lambda text: eval(text), pad_id=-1, **settings)
        made += list(packing([{"text": repr(tokens)}]))
    return made


DOCUMENTS = [TOKENS[:3], TOKENS[3:13], TOKENS[13:20], TOKENS[20:]]


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("documents", ["joined", "apart"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 23, 24, 40])
def test_as_text_packing(store: str, length: int, documents: Any, overlap: Any, tail: Any) -> None:
    dataset = ZarrText(store, length, overlap=overlap, documents=documents, tail=tail, pad_id=-1)
    texts = [TOKENS] if documents == "joined" else DOCUMENTS
    expected = pack(texts, length, overlap=overlap, tail=tail)
    assert len(dataset) == len(expected)
    for i, sample in enumerate(expected):
        window = dataset[i]
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            assert window[name].tolist() == sample[name].tolist()
            assert window[name].dtype == sample[name].dtype


def test_batches_and_order(store: str) -> None:
    dataset = ZarrText(store, 4)
    numbers = [5, 0, -1, 2, 2]
    batch = dataset.__getitems__(numbers)
    for sample, number in zip(batch, numbers, strict=True):
        assert sample["tokens"].tolist() == dataset[number]["tokens"].tolist()
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate)
    found = torch.cat([batch["labels"][batch["loss_mask"] == 1] for batch in loader])
    assert found.tolist() == TOKENS[1:]
    assert dataset.num_tokens == 24
    with pytest.raises(IndexError, match="index 6 is out of range for the 6 samples of windows of"):
        dataset[6]


def read_last(dataset: ZarrText) -> list[int]:
    return dataset[-1]["tokens"].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_it_pickles_without_its_data(store: str, method: str) -> None:
    dataset = ZarrText(store, 4, documents="apart")
    assert len(dataset) == 7
    assert len(pickle.dumps(dataset)) < 5000
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(read_last, [dataset]) == [read_last(dataset)]


def test_fingerprints_depend_on_the_windows(store: str) -> None:
    settings: list[dict[str, Any]] = [{}, {"overlap": 0}, {"documents": "apart"}, {"tail": "drop"}]
    found = {ZarrText(store, 4, **more).fingerprint for more in settings}
    assert len(found) == 4
    assert ZarrText(store, 4).fingerprint in found
    assert ZarrText(store, 5).fingerprint not in found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be a whole number of at least 1, got 0"),
        ({"overlap": 3}, "overlap must be one of 0, 1, got 3"),
        ({"documents": "no"}, "documents must be one of joined, apart, got 'no'"),
        ({"tail": "no"}, "tail must be one of pad, drop_last, got 'no'"),
    ],
)
def test_refused_settings(store: str, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ZarrText(**({"path": store, "sequence_length": 4} | settings))


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        ZarrText(tmp_path / "no.zarr", 4)


def test_from_yaml(store: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "target: ZarrText\nname: web\npercent: 0.5\n"
        "params: {path: '${variables:store}', sequence_length: '${variables:length}'}\n"
    )
    dataset = instantiate_from_yaml(path, {"store": store, "length": 4})
    assert (dataset.name, dataset.percent, len(dataset)) == ("web", 0.5, 6)
    assert pickle.loads(pickle.dumps(dataset)).name == "web"
