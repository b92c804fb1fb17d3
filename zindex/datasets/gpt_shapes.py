"""The memory of a batch of GPT samples: its tensors by name, their shapes, dtypes and order."""

from typing import Any

import numpy.typing as npt
import torch

from zindex.datasets.batch_memory import Shapes, allocate
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_masks import causal_mask

AnyArray = npt.NDArray[Any]

#: Names of a GPT item, in its order.
_ORDER = (
    "dataset_id",
    "tokens",
    "labels",
    "attention_mask",
    "loss_mask",
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
    "document_ids",
    "epoch",
    "sample_id",
)


def plan_shapes(
    size: int, config: GPTDatasetConfig, dataset_ids: AnyArray | None, *, own_positions: bool
) -> Shapes:
    """Return what memory the tensors of a batch need."""
    length = config.sequence_length
    shapes: Shapes = {
        "tokens": ((size, length), torch.int64),
        "labels": ((size, length), torch.int64),
        "loss_mask": ((size, length), torch.float32),
        "position_ids": ((size if own_positions else 1, length), torch.int64),
    }
    if config.inter_document_masking:
        shapes["cu_seqlens"] = ((size, length + 1), torch.int32)
        shapes["max_seqlen"] = ((size,), torch.int32)
    if dataset_ids is not None:
        shapes["dataset_id"] = ((size,), torch.from_numpy(dataset_ids).dtype)
    if config.with_provenance:
        shapes["document_ids"] = ((size, length), torch.int64)
        shapes["epoch"] = shapes["sample_id"] = ((size,), torch.int64)
    return shapes


def plain_masks(size: int, length: int) -> torch.Tensor:
    """Return the plain causal mask of each sample: shape (size, 1, length, length).

    It is one tensor for all batches, which torch refuses to change as a whole as long as it is
    expanded. A batch of one sample has a copy: there it could be changed for all that follow.
    """
    mask = causal_mask(length, torch.device("cpu")).unsqueeze(0)
    if size != 1:
        return mask.expand(size, 1, length, length)
    return allocate({"mask": (tuple(mask.shape), torch.bool)})["mask"].copy_(mask)


def finish_tensors(
    tensors: dict[str, torch.Tensor], config: GPTDatasetConfig
) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch in the order of an item, plain positions for each sample."""
    size = len(tensors["tokens"])
    tensors["position_ids"] = tensors["position_ids"].expand(size, config.sequence_length)
    return {name: tensors[name] for name in _ORDER if name in tensors}
