"""Batches of samples: memory, tensors, and items as views of them."""

import math
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, cast, overload
from weakref import ref

import numpy as np
import torch

from zindex.arrays import AnyArray, BoolArray, DTypeLike, Int64Array, IntegerArray, UInt8Array
from zindex.errors import PlanError
from zindex.samples.deferred import defer, pickle_deferred
from zindex.samples.masks import causal_mask, is_causal_mask

Item = dict[str, Any]
#: Shape and dtype of tensors by name.
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
Tensors = dict[str, torch.Tensor]
#: The memory of tensors, by the same names.
Arrays = dict[str, AnyArray]

# Bytes: a cache line, and a multiple of every item size.
_ALIGNMENT = 64
# malloc reuses smaller blocks but returns larger ones to the system, and the page faults of fresh
# memory cost as much as filling it.
_MIN_NBYTES = 1 << 16
# Limits of the pool: blocks, and bytes of all blocks.
_MAX_BLOCKS, _MAX_NBYTES = 16, 1 << 28


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The samples of a batch, of datasets of one class and configuration."""

    datasets: Sequence[Any]
    #: Shape (samples,): the dataset of each sample.
    which: Int64Array
    #: Shape (samples,): position of each sample in its dataset, from the start.
    positions: Int64Array
    #: Shape (samples,): padding samples, with a loss mask of zeros.
    is_padding: BoolArray
    #: Shape (samples,): ``dataset_id`` of the items; None omits it.
    dataset_ids: AnyArray | None = None
    #: Shape (samples,): what keys the draws of each sample; None for its position.
    keys: Int64Array | None = None

    @property
    def first(self) -> Any:
        """The dataset of the first sample."""
        return self.datasets[int(self.which[0])]

    def open_text(self, number: int) -> Any:
        """Return the index and the documents of a dataset of text, opened once."""
        dataset = self.datasets[number]
        return dataset._text or dataset.open_text()


class _Block(NamedTuple):
    """Pooled memory, and a weak reference to its last user."""

    memory: UInt8Array
    #: Dead once the memory is free: every view of the array keeps the array alive.
    user: "ref[UInt8Array]"


_pool: deque[_Block] = deque()


def empty_bytes(nbytes: int) -> UInt8Array:
    """Return uninitialised memory from a pool.

    The memory returns to the pool once the array, its views and all tensors over it are deleted.
    """
    if nbytes < _MIN_NBYTES:
        return _allocate(nbytes)
    with suppress(IndexError):  # other threads emptied the pool
        for _ in range(len(_pool)):
            # Removed from the pool, so that no other thread uses the same block.
            block = _pool.popleft()
            if nbytes <= block.memory.nbytes <= 2 * nbytes and block.user() is None:
                return _use(block.memory, nbytes)
            _pool.append(block)
    view = _use(_allocate(nbytes), nbytes)
    with suppress(IndexError):
        while _pool_nbytes() > _MAX_NBYTES or len(_pool) > _MAX_BLOCKS:
            _pool.popleft()
    return view


def _allocate(nbytes: int) -> UInt8Array:
    """Return aligned memory."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + nbytes]


def _use(memory: UInt8Array, nbytes: int) -> UInt8Array:
    """Return the first bytes of a block, and put the block into the pool."""
    # Views of a view refer to the array that owns the memory; a buffer hides that array, so that
    # they refer to this view.
    view: UInt8Array = np.frombuffer(memory.data, np.uint8, nbytes)
    _pool.append(_Block(memory, ref(view)))
    return view


def _pool_nbytes() -> int:
    # Iterate over a copy, because other threads modify the pool.
    return sum(block.memory.nbytes for block in list(_pool))


def empty_array(shape: tuple[int, ...], dtype: DTypeLike) -> AnyArray:
    """Return an uninitialised array in pooled memory."""
    kind = np.dtype(dtype)
    return empty_bytes(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)


def allocate_arrays(shapes: Shapes, dataset_ids: AnyArray | None = None) -> tuple[Tensors, Arrays]:
    """Return uninitialised tensors in one block of memory, and arrays that share it.

    If ``dataset_ids`` are given, ``dataset_id`` is the first tensor and has these values.

    In a worker of torch's DataLoader the block is shared memory, so that the tensors reach the main
    process through one file and without another copy.
    """
    if dataset_ids is not None:
        ids = {"dataset_id": (dataset_ids.shape, torch.from_numpy(dataset_ids).dtype)}
        found = allocate_arrays(ids | shapes)
        found[1]["dataset_id"][:] = dataset_ids
        return found
    starts, nbytes = _lay_out(tuple(shapes.values()))
    if torch.utils.data.get_worker_info() is not None:
        storages: Any = torch.UntypedStorage
        shared = torch.empty(0, dtype=torch.uint8).set_(storages._new_shared(max(nbytes, 1)))
        tensors = {
            name: shared[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for (name, (shape, dtype)), start in zip(shapes.items(), starts, strict=True)
        }
        return tensors, {name: tensor.numpy() for name, tensor in tensors.items()}
    memory = empty_bytes(nbytes)
    arrays: Arrays = {
        name: np.ndarray(shape, _numpy_dtype(dtype), memory, start)
        for (name, (shape, dtype)), start in zip(shapes.items(), starts, strict=True)
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, arrays


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


@lru_cache(64)
def _lay_out(shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]) -> tuple[list[int], int]:
    """Return the aligned offset of each array, and the bytes of all of them."""
    starts, nbytes = [], 0
    for shape, dtype in shapes:
        starts.append(nbytes)
        nbytes += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return starts, nbytes


class BatchTensors(Tensors):
    """The tensors of a batch by name, each with the samples along its first dimension.

    Texts of samples are lists. Tensors that are equal for all samples are expanded, not repeated:
    plain position ids and the plain causal mask, which batches share. torch rejects in-place
    operations on a whole expanded tensor, but not on a part of it: clone it first. If a mask was
    written to, later batches get a new one; see `zindex.samples.masks.causal_mask`.
    """

    def pin_memory(self) -> "BatchTensors":
        """Return the tensors in pinned memory; torch's DataLoader calls this."""
        return BatchTensors((name, pin_tensor(tensor)) for name, tensor in self.items())


def _join_tensors(parts: list[tuple[str, Any]]) -> BatchTensors:
    """Rebuild the tensors of a batch in the receiving process, with that process's masks."""
    cpu = torch.device("cpu")
    return BatchTensors(
        (name, causal_mask(part[-1], cpu).expand(part) if isinstance(part, torch.Size) else part)
        for name, part in parts
    )


def _split_tensors(batch: BatchTensors) -> tuple[Any, ...]:
    """Reduce a batch for another process, replacing plain masks by their shapes.

    In shared memory one process could silently change the other's mask.
    """
    parts = [
        (name, tensor.shape if is_causal_mask(tensor) else tensor) for name, tensor in batch.items()
    ]
    return _join_tensors, (parts,)


ForkingPickler.register(BatchTensors, _split_tensors)
_DeferredTensors = defer(BatchTensors)
pickle_deferred(BatchTensors, _DeferredTensors)


class Sample(Item):
    """A sample; torch's ``default_collate`` takes the tensors of a whole batch, or stacks items.

    It does not copy the plain causal mask, which all items share: it expands it.
    """


_DeferredSample = defer(Sample)


class SampleBatch(Sequence[Item]):
    """The samples of a batch: a sequence of items, and one tensor per name for all of them.

    torch's ``default_collate`` takes the tensors, copying plain positions but not the plain causal
    mask, which all samples share; ``zindex.loading.collate`` takes them without a copy. Items are
    views of the batch, except for plain position ids, which are copies.

    Parameters
    ----------
    tensors
        By name, with the samples along the first dimension.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors: BatchTensors | None = BatchTensors(tensors)
        self._items: list[Item] | None = None
        self._size = len(next(iter(tensors.values())))

    @classmethod
    def of_items(cls, items: list[Item]) -> "SampleBatch":
        """Return the batch of samples that were made one by one, as by a user's subclass."""
        batch = cls.__new__(cls)
        batch._tensors = None
        batch._items = items
        batch._size = len(items)
        return batch

    @classmethod
    def of_text(cls, make: Callable[[], Tensors], size: int) -> "SampleBatch":
        """Return a batch of a given size whose tensors are made from its text on first use.

        If it is sent to another process before that, ``make`` is pickled instead of the tensors.
        """
        batch = cls.of_items([])
        batch._tensors = _DeferredTensors(make)
        batch._items, batch._size = None, size
        return batch

    def stack(self) -> BatchTensors:
        """Return the tensors of the batch, contiguous except for a plain causal mask."""
        tensors: Any = self._tensors
        if type(tensors) is _DeferredTensors:
            return cast("BatchTensors", _DeferredTensors(partial(_stack, tensors.make)))
        return _stack(lambda: self.tensors)

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
        """Return one sample as a dict of tensors, as the dataset does, or a list of samples."""
        if isinstance(index, slice):
            return [self[i] for i in range(self._size)[index]]
        return self._take_item(range(self._size)[index])

    def _take_item(self, place: int) -> Item:
        """Return the sample at a valid place."""
        if self._items is not None:
            return self._items[place]

        def take() -> Item:
            return {name: _take(name, tensor, place) for name, tensor in self.tensors.items()}

        is_deferred = type(self._tensors) is _DeferredTensors
        return cast("Item", _DeferredSample(take)) if is_deferred else Sample(take())


def _stack(make: Callable[[], Tensors]) -> BatchTensors:
    """Return tensors without expanded ones, except a plain causal mask, which would be large."""
    return BatchTensors(
        (
            name,
            tensor if is_causal_mask(tensor) or isinstance(tensor, list) else tensor.contiguous(),
        )
        for name, tensor in make().items()
    )


def _collate_samples(batch: Sequence[Sample], *, collate_fn_map: Any = None) -> Any:
    """Collate samples for torch's ``default_collate``."""
    if isinstance(batch, SampleBatch):
        return batch.stack()
    first, stack = batch[0], torch.utils.data._utils.collate.collate
    # `BatchTensors` of another process get that process's mask; other values are sent as they are.
    is_plain = all(isinstance(value, torch.Tensor | np.generic) for value in first.values())
    masks = {
        name: value.expand(len(batch), *value.shape)
        for name, value in first.items()
        if is_plain and all(is_causal_mask(sample.get(name)) for sample in batch)
    }
    others = [
        {name: value for name, value in sample.items() if name not in masks} for sample in batch
    ]
    found = stack(others, collate_fn_map=collate_fn_map)
    return BatchTensors((name, (found | masks)[name]) for name in first) if masks else found


torch.utils.data._utils.collate.default_collate_fn_map[Sample] = _collate_samples


def _take(name: str, tensor: torch.Tensor, place: int) -> Any:
    """Return one sample's part of a tensor."""
    value = tensor[place]
    if name == "dataset_id":  # a number of the array's dtype, as in Megatron's blends
        return value.numpy()[()]
    # Through a view of one sample, torch would allow writes to an expanded tensor.
    return value.clone() if name == "position_ids" and tensor.stride(0) == 0 else value


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in pinned memory, unless it already is or is on a GPU; texts unchanged."""
    is_done = isinstance(tensor, list) or tensor.is_cuda or tensor.is_pinned()
    return tensor if is_done else transfer(tensor, torch.Tensor.pin_memory)


def transfer(tensor: torch.Tensor, move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return a moved tensor, of an expanded one a single sample; texts are not moved."""
    if isinstance(tensor, list):
        return tensor
    if tensor.dim() > 0 and tensor.shape[0] > 1 and tensor.stride(0) == 0:
        return move(tensor[:1]).expand(tensor.shape)
    return move(tensor)


def batch_of_items(dataset: Any, positions: Sequence[int | None]) -> SampleBatch:
    """Return samples that a dataset makes one by one.

    Without positions the batch is empty, with the shapes and dtypes of the dataset's last sample.
    Ranks get such batches if fewer samples remain than there are ranks.
    """
    if len(positions) or not len(dataset):
        return SampleBatch.of_items([dataset[position] for position in positions])
    tensors = dataset.__getitems__([-1]).tensors
    return SampleBatch({name: tensor[:0] for name, tensor in tensors.items()})


def collate(batch: Sequence[Any]) -> Any:
    """Return the tensors of a batch: those of a `SampleBatch`, or stacked items.

    A ``collate_fn`` for torch's DataLoader. It does not copy a `SampleBatch`, whose tensors are in
    shared memory if a loader worker made it.

    Parameters
    ----------
    batch
        The result of ``dataset.__getitems__``, or a list of items.

    Returns
    -------
    tensors
        By name, each with the samples along its first dimension. Plain position ids and the plain
        causal mask are expanded, not repeated: clone them before writing to them.

    Raises
    ------
    PlanError
        If samples differ in length, as before and after a change of the sequence length.
    """
    if isinstance(batch, SampleBatch):
        return batch.tensors
    try:
        return torch.utils.data.default_collate(list(batch))
    except RuntimeError as error:
        named = [item for item in batch if isinstance(item, Mapping) and "tokens" in item]
        lengths = sorted({len(item["tokens"]) for item in named})
        if len(lengths) < 2:
            raise
        raise PlanError(
            f"samples of a batch must be of one length, got {', '.join(map(str, lengths))}: the "
            "run's sequence length was edited at a position within this batch; choose batches that "
            "end there, or begin at the position of the edit"
        ) from error


def resolve_positions(
    positions: Sequence[int | None], size: int, where: str
) -> tuple[Int64Array, BoolArray]:
    """Return positions counted from the start, and which of them are padding.

    Parameters
    ----------
    positions
        Positions, from the end if negative; None is padding with the first sample.
    size
        Number of samples.
    where
        Name of the dataset, for the message.

    Raises
    ------
    IndexError
        If there is no such sample.
    """
    numbers = np.array(positions)
    if numbers.dtype == np.int64 and numbers.ndim == 1:  # the usual case, in a tenth of the time
        is_padding = np.zeros(len(numbers), np.bool_)
    else:
        is_padding = np.array([position is None for position in positions], np.bool_)
        numbers = np.array(
            [0 if position is None else operator.index(position) for position in positions],
            np.int64,
        )
    if numbers.view(np.uint64).max() < size:  # as uint64, negative positions are larger than any
        return numbers, is_padding
    numbers[numbers < 0] += size
    if numbers.min() < 0 or numbers.max() >= size:
        i = int(np.argmax((numbers < 0) | (numbers >= size)))
        raise IndexError(f"index {positions[i]} is out of range for the {size} samples of {where}")
    return numbers, is_padding


def find_spans(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return starts and stops of spans of consecutive numbers.

    Examples
    --------
    >>> starts, stops = find_spans(np.array([4, 5, 6, 2, 3, 3]))
    >>> starts.tolist(), stops.tolist()
    ([4, 2, 3], [7, 4, 4])
    """
    breaks = np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1
    if not breaks.size:
        return numbers[:1], numbers[-1:] + 1
    starts = numbers[np.concatenate(([0], breaks))]
    return starts, numbers[np.append(breaks - 1, len(numbers) - 1)] + 1


def group_samples(which: Int64Array, num_datasets: int) -> tuple[Int64Array, list[slice]]:
    """Return the samples of a batch ordered by dataset, and the slice of each dataset.

    Parameters
    ----------
    which
        Shape (samples,): number of the dataset of each sample.
    num_datasets
        Number of datasets, also of those without samples.
    """
    if num_datasets == 1:
        return np.arange(len(which)), [slice(0, len(which))]
    rows = np.argsort(which, kind="stable")
    ordered = which[rows]
    edges = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return rows, slices_at(edges, len(rows))


def slices_at(edges: IntegerArray, size: int) -> list[slice]:
    """Return the slices of ``size`` rows that start at the given edges."""
    starts = edges.tolist()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], size], strict=True)]
