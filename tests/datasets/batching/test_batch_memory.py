"""Memory of batches is used again when nobody holds it, and never before."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from zindex.datasets.batching import batch_memory
from zindex.datasets.batching.batch_memory import allocate, take_array, take_bytes

SIZE = 1 << 17


@pytest.fixture(autouse=True)
def no_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    batch_memory._pieces.clear()


def take() -> torch.Tensor:
    return allocate({"a": ((SIZE,), torch.uint8), "b": ((3, 5), torch.int64)})["b"]


HOLDERS: dict[str, Any] = {
    "tensor": lambda tensor: tensor,
    "view": lambda tensor: tensor[1:, 2],
    "array": lambda tensor: tensor.numpy(),
    "array of a view": lambda tensor: tensor[0].numpy()[1:],
    "storage": lambda tensor: tensor.untyped_storage(),
    "detached": lambda tensor: tensor.detach(),
    "bytes": lambda tensor: memoryview(tensor.numpy()),
    "graph": lambda tensor: torch.nn.functional.embedding(tensor % 2, torch.ones(2, 2)),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_that_is_held_is_not_used_again(name: str) -> None:
    tensor = take()
    address = tensor.data_ptr()
    tensor.fill_(1)
    held = HOLDERS[name](tensor)
    is_copy = name == "graph"
    del tensor
    other = take()
    assert is_copy or other.data_ptr() != address
    other.fill_(2)
    del held
    assert is_copy or take().data_ptr() == address


def test_saved_for_a_gradient() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    tokens = take()
    address = tokens.data_ptr()
    tokens.fill_(1)
    result = torch.nn.functional.embedding(tokens, weight)
    del tokens
    other = take()
    assert other.data_ptr() != address
    other.fill_(0)
    result.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[0, 0], [15, 15]]
    del result, other
    gc.collect()
    assert address in {take().data_ptr(), take().data_ptr()}


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [take_bytes(SIZE + number) for number in range(40)]
    assert len(batch_memory._pieces) == batch_memory._MAX_PIECES
    assert len({piece.__array_interface__["data"] for piece in held}) == 40
    batch_memory._pieces.clear()
    monkeypatch.setattr(batch_memory, "_MAX_NBYTES", 3 * SIZE)
    held = [take_bytes(SIZE) for _ in range(5)]
    assert len(batch_memory._pieces) == 3
    assert take_bytes(4 * SIZE).size == 4 * SIZE
    assert not batch_memory._pieces


def test_pieces_of_another_size_do_not_fit() -> None:
    address = take_bytes(4 * SIZE).__array_interface__["data"][0]
    assert take_bytes(SIZE).__array_interface__["data"][0] != address
    assert take_bytes(3 * SIZE).__array_interface__["data"][0] == address
    assert take_bytes(3 * SIZE).size == 3 * SIZE


def test_threads_never_share_memory() -> None:
    def work(number: int) -> bool:
        kept: list[Any] = []
        for i in range(1000):
            kept = [*kept[-5:], take_bytes(SIZE + (i * 7919) % SIZE)]
            kept[-1][:8] = number
            if any((piece[:8] != number).any() for piece in kept):
                return False
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_small_arrays_are_left_to_malloc() -> None:
    array = take_array((2, 3), np.int16)
    assert (array.shape, array.dtype) == ((2, 3), np.int16)
    assert not batch_memory._pieces


def test_memory_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())
    tensors = allocate(
        {"a": ((3,), torch.int16), "b": ((2, 5), torch.float32), "c": ((0, 2), torch.int64)}
    )
    assert [tuple(tensor.shape) for tensor in tensors.values()] == [(3,), (2, 5), (0, 2)]
    tensors["a"].fill_(-1)
    tensors["b"].fill_(2.5)
    assert tensors["a"].tolist() == [-1] * 3
    assert tensors["b"].dtype is torch.float32
    assert tensors["b"].is_shared()
