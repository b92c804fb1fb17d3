"""Memory of batches is reused after its last user, and never before."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from zindex.samples import batch
from zindex.samples.batch import allocate_arrays, empty_array, empty_bytes

SIZE = 1 << 17


@pytest.fixture(autouse=True)
def empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    batch._pool.clear()


def take() -> torch.Tensor:
    return allocate_arrays({"a": ((SIZE,), torch.uint8), "b": ((3, 5), torch.int64)})[0]["b"]


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
def test_memory_in_use_is_not_reused(name: str) -> None:
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


def test_the_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [empty_bytes(SIZE + number) for number in range(40)]
    assert len(batch._pool) == batch._MAX_BLOCKS
    assert len({block.__array_interface__["data"] for block in held}) == 40
    batch._pool.clear()
    monkeypatch.setattr(batch, "_MAX_NBYTES", 3 * SIZE)
    held = [empty_bytes(SIZE) for _ in range(5)]
    assert len(batch._pool) == 3
    assert empty_bytes(4 * SIZE).size == 4 * SIZE
    assert not batch._pool


def test_blocks_of_another_size_are_not_reused() -> None:
    address = empty_bytes(4 * SIZE).__array_interface__["data"][0]
    assert empty_bytes(SIZE).__array_interface__["data"][0] != address
    assert empty_bytes(3 * SIZE).__array_interface__["data"][0] == address
    assert empty_bytes(3 * SIZE).size == 3 * SIZE


def test_threads_never_share_memory() -> None:
    def work(number: int) -> bool:
        kept: list[Any] = []
        for i in range(1000):
            kept = [*kept[-5:], empty_bytes(SIZE + (i * 7919) % SIZE)]
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
    array = empty_array((2, 3), np.int16)
    assert (array.shape, array.dtype) == ((2, 3), np.int16)
    assert not batch._pool


def test_memory_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())
    tensors, _ = allocate_arrays(
        {"a": ((3,), torch.int16), "b": ((2, 5), torch.float32), "c": ((0, 2), torch.int64)}
    )
    assert [tuple(tensor.shape) for tensor in tensors.values()] == [(3,), (2, 5), (0, 2)]
    tensors["a"].fill_(-1)
    tensors["b"].fill_(2.5)
    assert tensors["a"].tolist() == [-1] * 3
    assert tensors["b"].dtype is torch.float32
    assert tensors["b"].is_shared()
