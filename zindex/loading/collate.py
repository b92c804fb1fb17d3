"""Collate samples into tensors, and copy tensors to pinned memory or a device."""

from collections.abc import Mapping

import torch

from zindex.samples.batch import BatchTensors, collate, transfer

__all__ = ["collate", "pin", "to_device"]


def pin(batch: Mapping[str, torch.Tensor]) -> BatchTensors:
    """Return the tensors of a batch in pinned memory; unchanged without a GPU."""
    tensors = BatchTensors(batch)
    return tensors.pin_memory() if torch.cuda.is_available() else tensors


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
        (name, transfer(tensor, lambda part: part.to(target, non_blocking=non_blocking)))
        for name, tensor in batch.items()
    )
