"""The memory of a batch of GPT samples: its tensors by name, their shapes, dtypes and order."""

from typing import Any

import numpy.typing as npt
import torch

from zindex.datasets.batch_memory import Shapes
from zindex.datasets.gpt_config import GPTDatasetConfig

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


def finish_tensors(
    tensors: dict[str, torch.Tensor], config: GPTDatasetConfig
) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch in the order of an item, plain positions for each sample."""
    size = len(tensors["tokens"])
    tensors["position_ids"] = tensors["position_ids"].expand(size, config.sequence_length)
    return {name: tensors[name] for name in _ORDER if name in tensors}
