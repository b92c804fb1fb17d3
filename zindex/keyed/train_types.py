"""Keys and tensors of each type of training.

Tensors of windows have the window's length. ``input_ids`` and ``position_ids`` are the values of
the window; ``target_ids`` and ``loss_mask`` are shifted by one, because the mask says for each
token whether it is a target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: The label that torch's losses ignore.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of a sample."""

    name: str
    #: Key of its values.
    key: str
    #: Offset of its first value from the start of the window.
    shift: int = 0
    #: Dtype of the tensor; None for that of the stored values.
    dtype: torch.dtype | None = torch.int64
    #: Padding value; None for the dataset's padding id.
    pad: int | None = None


@dataclass(frozen=True, slots=True)
class TrainType:
    """One type of training."""

    name: str
    #: Required keys of a store.
    keys: tuple[str, ...]
    #: Tensors of a sample; those with optional keys last.
    outputs: tuple[Output, ...]
    #: Whether samples are records by default.
    by_record: bool = False


_SEQUENCE = (
    Output("input_ids", "sequence"),
    Output("target_ids", "sequence", shift=1, pad=IGNORED),
)
_LOSS_MASK = Output("loss_mask", "loss_mask", shift=1, dtype=torch.bool, pad=0)
_POSITIONS = Output("position_ids", "position_ids", pad=0)

SEQ = TrainType("seq", ("sequence",), _SEQUENCE)
SFT = TrainType("sft", ("sequence", "loss_mask"), (*_SEQUENCE, _LOSS_MASK, _POSITIONS))
_REWARDS = Output("rewards", "rewards", dtype=None, pad=0)


def _by_record(name: str, ids: Sequence[str], masks: Sequence[str], *others: Output) -> TrainType:
    """Return a kind of training whose samples are records, with a tensor for each key."""
    of_ids = (Output(key, key) for key in ids)
    of_masks = (Output(key, key, dtype=torch.bool, pad=0) for key in masks)
    outputs = (*of_ids, *of_masks, *others)
    return TrainType(name, tuple(output.key for output in outputs), outputs, by_record=True)


DPO = _by_record("dpo", ("chosen", "rejected"), ("chosen_mask", "rejected_mask"))
GRPO = _by_record("grpo", ("prompts", "responses"), ("masks",), _REWARDS)

TRAIN_TYPES = {kind.name: kind for kind in (SEQ, SFT, DPO, GRPO)}
