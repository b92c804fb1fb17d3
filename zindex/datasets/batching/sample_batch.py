"""A batch of samples: one tensor per name for all of them, and the samples as views of it."""

import operator
from collections.abc import Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.gpt_masks import causal_mask, is_causal_mask

Item = dict[str, Any]


class BatchTensors(dict[str, torch.Tensor]):
    """The tensors of a batch by name, each with the samples along its first dimension.

    What is equal for all samples is one tensor that is expanded, not repeated: plain position ids,
    and the plain causal mask, which batches made before it was written to share too. torch refuses
    to change such a tensor as a whole, but not a part of it: clone it first. Batches made after
    that have a mask that nobody wrote to; see `zindex.datasets.gpt_masks.causal_mask`.
    """

    def pin_memory(self) -> "BatchTensors":
        """Return the tensors in pinned memory; torch's DataLoader calls this."""
        return BatchTensors((name, pin_tensor(tensor)) for name, tensor in self.items())


class _PlainMasks(NamedTuple):
    """Stands for plain causal masks on their way from a loader worker."""

    shape: tuple[int, ...]

    def make(self) -> torch.Tensor:
        """Return them, of the mask of this process."""
        return causal_mask(self.shape[-1], torch.device("cpu")).expand(self.shape)


def _join_tensors(parts: list[tuple[str, Any]]) -> BatchTensors:
    """Return the tensors of a batch that came from another process."""
    return BatchTensors(
        (name, part.make() if isinstance(part, _PlainMasks) else part) for name, part in parts
    )


def _split_tensors(batch: BatchTensors) -> tuple[Any, ...]:
    """Return a batch as it travels between processes: without the plain mask.

    In memory that both share, one process could change the mask of the other unnoticed.
    """
    parts = [
        (name, _PlainMasks(tuple(tensor.shape)) if is_causal_mask(tensor) else tensor)
        for name, tensor in batch.items()
    ]
    return _join_tensors, (parts,)


ForkingPickler.register(BatchTensors, _split_tensors)


class SampleBatch(Sequence[Item]):
    """The samples of a batch: a sequence of items, and all of them in one tensor per name.

    torch's ``default_collate`` stacks the items; ``zindex.loading.collate`` takes the tensors as
    they are. Items are views of the batch, but their plain position ids are their own.

    Parameters
    ----------
    tensors
        By name, with the samples along the first dimension.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors: BatchTensors | None = BatchTensors(tensors)
        self._items: list[Item] | None = None
        self._size = len(next(iter(tensors.values())))

    @classmethod
    def of_items(cls, items: list[Item]) -> "SampleBatch":
        """Return the batch of samples that were made one by one, such as by a user's subclass."""
        batch = cls.__new__(cls)
        batch._tensors = None
        batch._items = items
        batch._size = len(items)
        return batch

    @property
    def tensors(self) -> BatchTensors:
        """The tensors of the batch; samples that were made one by one are stacked here."""
        if self._tensors is None:
            assert self._items is not None
            self._tensors = BatchTensors(torch.utils.data.default_collate(self._items))
        return self._tensors

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        return (self[i] for i in range(self._size))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        """Return a sample as a dict of tensors, as the dataset itself gives it, or some."""
        if isinstance(index, slice):
            return [self[i] for i in range(self._size)[index]]
        return self._take_item(range(self._size)[index])

    def _take_item(self, place: int) -> Item:
        """Return a sample by its place, which is there."""
        if self._items is not None:
            return self._items[place]
        assert self._tensors is not None
        return {name: _take(name, tensor, place) for name, tensor in self._tensors.items()}


def _take(name: str, tensor: torch.Tensor, place: int) -> Any:
    """Return what one sample has of a tensor."""
    value = tensor[place]
    if name == "dataset_id":  # a number of the array's dtype, as in Megatron's blends
        return value.numpy()[()]
    # Only torch's own guard keeps a tensor of all samples from being written to through one.
    return value.clone() if name == "position_ids" and tensor.stride(0) == 0 else value


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in pinned memory; one that is expanded over the samples stays so."""
    if _is_expanded(tensor):
        return tensor[:1].pin_memory().expand(tensor.shape)
    return tensor.pin_memory()


def move_tensor(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
    """Return a tensor on a device; one that is expanded over the samples stays so."""
    if _is_expanded(tensor):
        return tensor[:1].to(device, non_blocking=non_blocking).expand(tensor.shape)
    return tensor.to(device, non_blocking=non_blocking)


def _is_expanded(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] > 1 and tensor.stride(0) == 0


def batch_of_items(dataset: Any, positions: Sequence[int | None]) -> SampleBatch:
    """Return samples of a dataset that are asked for one by one.

    Without any position, as a rank is without where fewer samples are left than there are ranks,
    the batch has tensors of no samples, with the shapes and dtypes of the last one.
    """
    if len(positions) or not len(dataset):
        return SampleBatch.of_items([dataset[position] for position in positions])
    tensors = dataset.__getitems__([-1]).tensors
    return SampleBatch({name: tensor[:0] for name, tensor in tensors.items()})


def resolve_positions(
    positions: Sequence[int | None], size: int, where: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return positions counted from the start, and which of them only fill up the batch.

    Parameters
    ----------
    positions
        Positions, from the end if negative; None stands for the first one, as padding.
    size
        Samples that there are.
    where
        Whose they are, for the message.

    Raises
    ------
    IndexError
        If there is no such sample.
    """
    numbers = np.array(positions)
    if numbers.dtype == np.int64 and numbers.ndim == 1:  # almost always, and in a tenth of the time
        is_padding = np.zeros(len(numbers), np.bool_)
    else:
        is_padding = np.array([position is None for position in positions], np.bool_)
        numbers = np.array(
            [0 if position is None else operator.index(position) for position in positions],
            np.int64,
        )
    if numbers.view(np.uint64).max() < size:  # a negative one is larger than any
        return numbers, is_padding
    numbers[numbers < 0] += size
    if numbers.min() < 0 or numbers.max() >= size:
        i = int(np.argmax((numbers < 0) | (numbers >= size)))
        raise IndexError(f"index {positions[i]} is out of range for the {size} samples of {where}")
    return numbers, is_padding
