"""Memory of batches: used again once nobody holds it, or shared where another process needs it."""

import math
from collections import deque
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
Bytes = npt.NDArray[np.uint8]

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
# Bytes: a cache line, and a multiple of every item.
_ALIGNMENT = 64
# Below this, malloc uses its memory again by itself; above it gives it back to the system, and
# the page faults of fresh memory cost as much as filling it.
_MIN_NBYTES = 1 << 16
# What is kept at most: pieces, and bytes of all of them.
_MAX_PIECES, _MAX_NBYTES = 16, 1 << 28


class _Piece(NamedTuple):
    """Memory that is kept, and the array through which it was handed out last."""

    memory: Bytes
    #: Dead when nobody holds the memory any more, for every view of the array holds the array.
    holder: "ref[Bytes]"


_pieces: deque[_Piece] = deque()


def take_bytes(nbytes: int) -> Bytes:
    """Return uninitialised memory that nobody else holds.

    It is used again when the array, all of its views and all tensors made of them are gone.
    """
    if nbytes < _MIN_NBYTES:
        return _allocate(nbytes)
    for _ in range(len(_pieces)):
        try:
            # Out of the queue, so that no other thread takes it too.
            piece = _pieces.popleft()
        except IndexError:
            break
        if nbytes <= piece.memory.nbytes <= 2 * nbytes and piece.holder() is None:
            return _hand_out(piece.memory, nbytes)
        _pieces.append(piece)
    view = _hand_out(_allocate(nbytes), nbytes)
    while _count_bytes() > _MAX_NBYTES or len(_pieces) > _MAX_PIECES:
        try:
            _pieces.popleft()
        except IndexError:
            break
    return view


def _allocate(nbytes: int) -> Bytes:
    """Return memory that begins at a multiple of the alignment."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + nbytes]


def _hand_out(memory: Bytes, nbytes: int) -> Bytes:
    """Return the first bytes of memory, and keep it for those who come when they are gone."""
    # Views of views refer to the array that owns the memory; where that is none, to the first one.
    view: Bytes = np.frombuffer(memory.data, np.uint8, nbytes)
    _pieces.append(_Piece(memory, ref(view)))
    return view


def _count_bytes() -> int:
    """Return the bytes of what is kept."""
    # A copy, for other threads change the queue meanwhile.
    return sum(piece.memory.nbytes for piece in list(_pieces))


def take_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array in memory of this kind."""
    kind = np.dtype(dtype)
    return take_bytes(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)


def allocate(shapes: Shapes) -> dict[str, torch.Tensor]:
    """Return uninitialised tensors by name, side by side in one piece of memory.

    In a worker of torch's DataLoader that is shared memory, so that they reach the main process
    without another copy, and with one file.
    """
    return allocate_arrays(shapes)[0]


def allocate_arrays(
    shapes: Shapes,
) -> tuple[dict[str, torch.Tensor], dict[str, npt.NDArray[Any]]]:
    """Return tensors as `allocate` does, and arrays of the same memory to fill them through."""
    starts, nbytes = _lay_out(tuple(shapes.values()))
    if torch.utils.data.get_worker_info() is not None:
        storages: Any = torch.UntypedStorage
        shared = torch.empty(0, dtype=torch.uint8).set_(storages._new_shared(max(nbytes, 1)))
        tensors = {
            name: shared[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for (name, (shape, dtype)), start in zip(shapes.items(), starts, strict=True)
        }
        return tensors, {name: tensor.numpy() for name, tensor in tensors.items()}
    memory = take_bytes(nbytes)
    arrays: dict[str, npt.NDArray[Any]] = {
        name: np.ndarray(shape, _DTYPES[dtype], memory, start)
        for (name, (shape, dtype)), start in zip(shapes.items(), starts, strict=True)
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, arrays


@lru_cache(64)
def _lay_out(shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]) -> tuple[list[int], int]:
    """Return where each array begins in the memory of all of them, and the bytes of that."""
    starts, nbytes = [], 0
    for shape, dtype in shapes:
        starts.append(nbytes)
        nbytes += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return starts, nbytes
