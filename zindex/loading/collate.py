"""Collate samples into tensors, and copy tensors to pinned memory or a device."""

from collections.abc import Mapping

import torch

from zindex.samples.batch import BatchTensors, collate, move_tensor, pin_tensor

__all__ = ["collate", "pin", "to_device"]


def pin(batch: Mapping[str, torch.Tensor]) -> BatchTensors:
    """Return the tensors of a batch in pinned memory; unchanged without a GPU."""
    if not torch.cuda.is_available():
        return BatchTensors(batch)
    return BatchTensors(
        (name, tensor if tensor.is_cuda or tensor.is_pinned() else pin_tensor(tensor))
        for name, tensor in batch.items()
    )


def to_device(
    batch: Mapping[str, torch.Tensor], device: torch.device | str, *, non_blocking: bool = True
) -> BatchTensors:
    """Return the tensors of a batch on a device, copied to a GPU through pinned memory.

    Parameters
    ----------
    batch
        Tensors by name. Tensors expanded over the samples are copied once and expanded there.
    device
        The target device.
    non_blocking
        Whether to return before the copies finish; work queued on the device later sees them.
    """
    target = torch.device(device)
    if target.type == "cuda" and non_blocking:
        batch = pin(batch)
    return BatchTensors(
        (name, move_tensor(tensor, target, non_blocking=non_blocking))
        for name, tensor in batch.items()
    )
