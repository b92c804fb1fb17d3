"""From the samples of a batch to tensors, and from there to a device."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zindex.datasets.batching.sample_batch import BatchTensors, SampleBatch, move_tensor, pin_tensor
from zindex.errors import PlanError


def collate(batch: Sequence[Any]) -> Any:
    """Return the tensors of a batch: as they are if it was read as a batch, stacked otherwise.

    A ``collate_fn`` for torch's DataLoader. Nothing is copied of a `SampleBatch`, and in a loader
    worker its tensors lie in shared memory already.

    Parameters
    ----------
    batch
        What ``dataset.__getitems__`` returns, or a list of items.

    Returns
    -------
    tensors
        By name, each with the samples along its first dimension. Plain position ids and the plain
        causal mask are expanded, not repeated: clone them before writing to them.

    Raises
    ------
    PlanError
        If samples differ in length, as on both sides of an edit of the sequence length.
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


def pin(batch: Mapping[str, torch.Tensor]) -> BatchTensors:
    """Return the tensors of a batch in pinned memory; as they are where there is no GPU."""
    if not torch.cuda.is_available():
        return BatchTensors(batch)
    return BatchTensors(
        (name, tensor if tensor.is_cuda or tensor.is_pinned() else pin_tensor(tensor))
        for name, tensor in batch.items()
    )


def to_device(
    batch: Mapping[str, torch.Tensor], device: torch.device | str, *, non_blocking: bool = True
) -> BatchTensors:
    """Return the tensors of a batch on a device; on a GPU by way of pinned memory.

    Parameters
    ----------
    batch
        Tensors by name. What is expanded over the samples travels once, and is expanded there.
    device
        Where to.
    non_blocking
        Whether to go on while the copies run; work queued on the device afterwards sees them.
    """
    target = torch.device(device)
    if target.type == "cuda" and non_blocking:
        batch = pin(batch)
    return BatchTensors(
        (name, move_tensor(tensor, target, non_blocking=non_blocking))
        for name, tensor in batch.items()
    )
