"""Keys and tensors of each type of training, declared: roles, dtypes, alignment and padding.

Tensors of windows have the window's length. ``input_ids`` and ``position_ids`` are the values of
the window; ``target_ids`` and ``loss_mask`` are shifted by one, because the mask says for each
token whether it is a target. Tensors of records have an axis for what varies in length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

#: The label that torch's losses ignore.
IGNORED = -100

#: What values are: ids of tokens; weights of the loss, which are booleans, rewards, which are
#: float32, and other numbers, which are int64, unless they are stored as floats.
Role = Literal["ids", "weights", "rewards", "numbers"]


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of a sample."""

    name: str
    #: Key of its values.
    key: str
    role: Role = "ids"
    #: In windows, offset of its first value from the start of the window.
    shift: int = 0
    #: Dtype of the tensor; None for that of its role, given the stored values.
    dtype: torch.dtype | None = None
    #: Padding value; None for the dataset's padding id in ids, and 0 elsewhere.
    pad: int | None = None
    #: In records, the axes along which it varies in length. Outputs with a common axis are padded
    #: to one length; no axis is one value per record, two axes are a group of items.
    axes: tuple[str, ...] = ()
    #: In records, the key whose lengths its own must equal.
    like: str | None = None
    #: In records, whether padding goes on the left.
    pads_left: bool = False
    #: In batches of records, name of a tensor that is True at values and False at padding.
    mask: str | None = None

    def dtype_of(self, stored: np.dtype[np.generic]) -> torch.dtype:
        """Return the dtype of the tensor, given that of the stored values."""
        if self.dtype is not None or self.role == "ids":
            return self.dtype or torch.int64
        if stored.kind == "f":
            return torch.from_numpy(np.empty(0, stored)).dtype
        if self.role == "rewards":
            return torch.float32
        return torch.bool if self.role == "weights" or stored.kind == "b" else torch.int64

    def pad_of(self, pad_id: int) -> int:
        """Return the padding value, given the dataset's padding id."""
        if self.pad is not None:
            return self.pad
        return pad_id if self.role == "ids" else 0


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
_LOSS_MASK = Output("loss_mask", "loss_mask", "weights", shift=1)
_POSITIONS = Output("position_ids", "position_ids", "numbers", dtype=torch.int64)

SEQ = TrainType("seq", ("sequence",), _SEQUENCE)
SFT = TrainType("sft", ("sequence", "loss_mask"), (*_SEQUENCE, _LOSS_MASK, _POSITIONS))


def _by_record(name: str, outputs: Sequence[Output]) -> TrainType:
    """Return a type of training whose samples are records, with a tensor for each key."""
    return TrainType(name, tuple(output.key for output in outputs), tuple(outputs), by_record=True)


_ANSWER, _RESPONSE = ("answer",), ("group", "response")
DPO = _by_record(
    "dpo",
    [
        Output("chosen", "chosen", axes=_ANSWER),
        Output("rejected", "rejected", axes=_ANSWER),
        Output("chosen_mask", "chosen_mask", "weights", axes=_ANSWER, like="chosen"),
        Output("rejected_mask", "rejected_mask", "weights", axes=_ANSWER, like="rejected"),
    ],
)
GRPO = _by_record(
    "grpo",
    [
        Output("prompts", "prompts", axes=("prompt",), pads_left=True, mask="prompt_mask"),
        Output("responses", "responses", axes=_RESPONSE),
        Output("masks", "masks", "weights", axes=_RESPONSE, like="responses"),
        Output(
            *("rewards", "rewards", "rewards"),
            axes=("group",),
            like="responses",
            mask="group_mask",
        ),
    ],
)

TRAIN_TYPES = {kind.name: kind for kind in (SEQ, SFT, DPO, GRPO)}
#: Keys that a type of training names: a dataset of another type leaves them out.
KNOWN_KEYS = frozenset(output.key for kind in TRAIN_TYPES.values() for output in kind.outputs)
