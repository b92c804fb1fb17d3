"""Made-up samples with images, and corpora with modes below datasets of a caller's own."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from tests.conftest import FakeTokenizer
from tests.datasets.configs import build_datasets
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.multimodal_dataset import MockMultimodalDataset, MultimodalDatasetConfig
from zindex.datasets.utils import Split
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor

# As in Megatron Core's own test of its multimodal dataset, but for smaller images.
SETTINGS: dict[str, Any] = {
    "random_seed": 1234,
    "sequence_length": 64,
    "reset_position_ids": False,
    "reset_attention_mask": False,
    "eod_mask_loss": True,
    "image_h": 4,
    "image_w": 6,
    "split": "990,9,1",
    "mid_level_dataset_surplus": 0.005,
}


def make_config(**settings: Any) -> MultimodalDatasetConfig:
    return MultimodalDatasetConfig(
        tokenizer=FakeTokenizer(vocab_size=50, eod=49), **(SETTINGS | settings)
    )


def build(**settings: Any) -> Any:
    return build_datasets(MockMultimodalDataset, [20, 20, 20], make_config(**settings))


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {"twice": sample["tokens"] * 2, "image": sample["image"] + 1}


def test_items_are_megatron_cores() -> None:
    theirs = pytest.importorskip("megatron.core.datasets.multimodal_dataset")
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    ours = [
        field.name for field in dataclasses.fields(MultimodalDatasetConfig) if not field.kw_only
    ]
    assert ours == [field.name for field in dataclasses.fields(theirs.MultimodalDatasetConfig)]
    config = theirs.MultimodalDatasetConfig(
        tokenizer=FakeTokenizer(vocab_size=50, eod=49), **SETTINGS
    )
    expected = builder.BlendedMegatronDatasetBuilder(
        theirs.MockMultimodalDataset, [20, 20, 20], lambda: True, config
    ).build()
    for built, other in zip(build(), expected, strict=True):
        assert len(built) == len(other)
        for position in (0, 3, len(built) - 1):
            mine, item = built[position], other[position]
            assert list(mine) == list(item)
            for name in item:
                assert mine[name].dtype == item[name].dtype
                assert torch.equal(mine[name], item[name]), name


def test_batches_are_items() -> None:
    dataset = pickle.loads(pickle.dumps(build()[0]))
    positions = [2, None, -1]
    batch = dataset.__getitems__(positions)
    assert batch.tensors["image"].shape == (3, 3, 4, 6)
    for item, position in zip(batch, positions, strict=True):
        expected = dataset[position]
        assert list(item) == list(expected)
        assert all(torch.equal(item[name], expected[name]) for name in item)
    changed = pickle.loads(pickle.dumps(build(preprocess_func=double)[0]))
    for item, position in zip(changed.__getitems__(positions), positions, strict=True):
        assert list(item) == ["twice", "image"]
        assert torch.equal(item["twice"], 2 * dataset[position]["tokens"])
        assert item["image"].min() == 1


@pytest.mark.parametrize("name", ["image_h", "image_w"])
def test_images_need_a_size(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a number of pixels, got None"):
        make_config(**{name: None})


class Pictures(MegatronDataset):
    """A dataset as a user may write one: text and picture of each document, by their modes."""

    def __len__(self) -> int:
        return self.num_samples or len(self.indices)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        document = int(self.indices[idx % len(self.indices)])
        tokens, mode = self.dataset[document]
        return {"tokens": torch.from_numpy(np.array(tokens)), "mode": int(mode)}

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        kind = ZarrIndexedDataset if dataset_path.endswith(".zarr") else IndexedDataset
        return kind(dataset_path, multimodal=True)


@pytest.mark.parametrize("kind", ["prefix", "store"])
def test_modes_in_a_custom_dataset(write_corpus: Any, kind: str, tmp_path: Path) -> None:
    lengths, modes = [3, 1, 4, 2, 5, 3, 2, 6, 1, 2], [0, 1] * 5
    path = write_corpus(lengths, modes=modes)
    if kind == "store":
        zindex.convert(path, f"{path}.zarr", client=SerialExecutor())
        path = f"{path}.zarr"
    config = make_config(blend=([path], [1.0]), split="80,20,0", path_to_cache=str(tmp_path / "c"))
    train, valid, _ = build_datasets(Pictures, [16, 2, 0], config)
    train = pickle.loads(pickle.dumps(train))
    ends = np.cumsum(lengths)
    for position in range(len(train)):
        document = int(train.dataset_sample_index[position]) % 8
        item = train[position]
        assert item["mode"] == modes[document]
        stop = ends[document]
        assert item["tokens"].tolist() == list(range(stop - lengths[document], stop))
    assert valid.datasets[0][1]["mode"] == modes[9]


@pytest.mark.parametrize("kind", ["prefix", "store"])
def test_gpt_samples_are_the_tokens_of_all_modes(write_corpus: Any, kind: str) -> None:
    lengths = [30, 10, 40, 20, 50]
    paths = [write_corpus(lengths, name="plain"), write_corpus(lengths, modes=[0, 1, 0, 0, 1])]
    if kind == "store":
        for path in paths:
            zindex.convert(path, f"{path}.zarr", client=SerialExecutor())
        paths = [f"{path}.zarr" for path in paths]
    opened: Any = ZarrIndexedDataset if kind == "store" else IndexedDataset
    plain, mixed = (
        GPTDataset(
            opened(path, multimodal=number == 1),
            path,
            range(5),
            20,
            Split.train,
            make_config(blend=([path], None), sequence_length=16, split="1,0,0"),
        )
        for number, path in enumerate(paths)
    )
    batch = mixed.__getitems__(range(len(mixed)))
    for position in range(len(plain)):
        expected = plain[position]["tokens"]
        assert torch.equal(mixed[position]["tokens"], expected)
        assert torch.equal(batch[position]["tokens"], expected)
