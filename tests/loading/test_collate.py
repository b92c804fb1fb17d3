"""Batches through torch's DataLoader: without a copy, in workers too."""

from typing import Any

import pytest
import torch

from tests.datasets.test_gpt_dataset import open_dataset
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.loading.collate import collate, pin, to_device
from zindex.samples.batch import BatchTensors, SampleBatch, pin_tensor

LENGTHS = [3, 5, 2, 7, 0, 4, 6, 1, 9, 0, 8, 13]


@pytest.fixture
def dataset(write_corpus: Any) -> GPTDataset:
    return open_dataset(write_corpus(LENGTHS), 40, with_provenance=True)


def test_nothing_is_copied(dataset: GPTDataset) -> None:
    batch = dataset.__getitems__([1, 5, 2])
    assert collate(batch) is batch.tensors
    assert batch[0]["tokens"].data_ptr() == batch.tensors["tokens"].data_ptr()
    assert batch.tensors["position_ids"].stride() == (0, 1)
    assert batch.tensors["attention_mask"].stride()[0] == 0
    # Written to through an item, plain positions stay what they are.
    batch[0]["position_ids"].fill_(-1)
    assert batch[1]["position_ids"].tolist() == [0, 1, 2, 3]
    assert [len(part) for part in (batch[1:], batch[:0], list(batch))] == [2, 0, 3]
    with pytest.raises(IndexError):
        batch[3]


def test_items_one_by_one_are_stacked(dataset: GPTDataset) -> None:
    items = [dataset[i] for i in (1, 5, 2)]
    expected = dataset.__getitems__([1, 5, 2]).tensors
    for batch in (items, SampleBatch.of_items(items)):
        tensors = collate(batch)
        assert list(tensors) == list(expected)
        assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("function", [collate, torch.utils.data.default_collate])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loaders(dataset: GPTDataset, num_workers: int, function: Any) -> None:
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=3,
        num_workers=num_workers,
        collate_fn=function,
        timeout=60 * num_workers,
    )
    batches = list(loader)
    start = 0
    for batch in batches:
        expected = [dataset[i] for i in range(start, start + len(batch["tokens"]))]
        stacked = torch.utils.data.default_collate(expected)
        assert list(batch) == list(stacked)
        assert all(torch.equal(batch[name], tensor) for name, tensor in stacked.items())
        if len(expected) > 1:  # one mask for all samples
            assert batch["attention_mask"].stride(0) == 0
        if num_workers and function is collate:
            # One piece of shared memory for all that is the batch's own.
            own = [batch[name].untyped_storage() for name in ("tokens", "labels", "loss_mask")]
            assert all(storage.is_shared() for storage in own)
            assert len({storage.data_ptr() for storage in own}) == 1
            assert start or batch["position_ids"].stride(0) == 0
        start += len(expected)
    assert start == len(dataset)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_batch_that_is_written_to_changes_no_later_one(
    dataset: GPTDataset, num_workers: int
) -> None:
    """Masks of all batches are one tensor, in memory that workers do not share."""
    expected = dataset.__getitems__([0, 1, 2]).tensors["attention_mask"].clone()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=3, num_workers=num_workers, collate_fn=collate, timeout=60 * num_workers
    )
    num_batches = 0
    for batch in loader:
        mask = batch["attention_mask"]
        assert torch.equal(mask, expected[: len(mask)])
        assert len(mask) == 1 or not mask.is_shared()
        mask[0].logical_not_()
        num_batches += 1
    assert num_batches > 5
    (item,) = dataset.__getitems__([3])
    assert torch.equal(item["attention_mask"], expected[0])
    item["attention_mask"].logical_not_()
    assert torch.equal(dataset[3]["attention_mask"], expected[0])


def test_to_a_device_without_gpu(dataset: GPTDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = dataset.__getitems__([1, 5, 2]).tensors
    if not torch.cuda.is_available():
        assert all(pin(batch)[name] is tensor for name, tensor in batch.items())
    moved = to_device(batch, "meta")
    assert isinstance(moved, BatchTensors)
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}
    assert moved["attention_mask"].shape == batch["attention_mask"].shape
    assert moved["position_ids"].stride() == (0, 1)
    # Pinned memory cannot repeat a row in place; what is expanded is pinned once.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    pinned = batch.pin_memory()
    assert pinned["position_ids"].stride() == (0, 1)
    assert all(torch.equal(pinned[name], tensor) for name, tensor in batch.items())
    assert pin_tensor(batch["tokens"]) is not batch["tokens"]


def test_errors_of_other_samples_are_torchs_own() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        collate([torch.zeros(2), torch.zeros(3)])


class Plain(torch.utils.data.Dataset[Any]):
    """A user's dataset that takes the items of another one by one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_one_by_one_the_plain_mask_is_shared_too(dataset: GPTDataset, num_workers: int) -> None:
    loader = torch.utils.data.DataLoader(Plain(dataset), 3, num_workers=num_workers)
    batch = next(iter(loader))
    items = [dataset[number] for number in range(3)]
    assert list(batch) == list(items[0])
    for name, tensor in batch.items():
        assert torch.equal(tensor, torch.stack([torch.as_tensor(item[name]) for item in items]))
    assert batch["attention_mask"].stride(0) == 0
    # Values that are no tensors of zindex are collated as torch does.
    items[0]["name"], items[1]["name"] = "a", "b"
    mixed = torch.utils.data.default_collate(items[:2])
    assert mixed["name"] == ["a", "b"]
    assert type(mixed) is dict
    items[0]["attention_mask"] = items[0]["attention_mask"].clone()
    assert torch.utils.data.default_collate(items[:2])["attention_mask"].stride(0) != 0
