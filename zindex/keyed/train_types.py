"""What each kind of training needs of a store, and what its samples are made of.

Samples of windows have tensors of the window's length. ``input_ids`` and ``position_ids`` are of
the window itself; ``target_ids`` and ``loss_mask`` of the values one further on, for a mask says
of each token whether it is trained as a target.
"""

from dataclasses import dataclass

from zindex.errors import ConfigError
from zindex.keyed.columns import Form

#: What torch's losses ignore.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of a sample."""

    name: str
    #: Where its values come from.
    key: str
    #: How many values behind the window's start it begins.
    shift: int = 0
    form: Form = "int64"
    #: What stands where there is no value; None: the dataset's padding id.
    pad: int | None = None


@dataclass(frozen=True, slots=True)
class TrainType:
    """One kind of training."""

    name: str
    #: Keys that a store must have.
    keys: tuple[str, ...]
    #: What windows give; those whose key a store may lack, last.
    outputs: tuple[Output, ...]
    #: Whether samples are records unless windows are asked for.
    by_record: bool = False


_SEQUENCE = (
    Output("input_ids", "sequence"),
    Output("target_ids", "sequence", shift=1, pad=IGNORED),
)
_LOSS_MASK = Output("loss_mask", "loss_mask", shift=1, form="bool", pad=0)
_POSITIONS = Output("position_ids", "position_ids", pad=0)

SEQ = TrainType("seq", ("sequence",), _SEQUENCE)
SFT = TrainType("sft", ("sequence", "loss_mask"), (*_SEQUENCE, _LOSS_MASK, _POSITIONS))
DPO = TrainType(
    "dpo",
    ("chosen", "rejected", "chosen_mask", "rejected_mask"),
    (
        Output("chosen", "chosen"),
        Output("rejected", "rejected"),
        Output("chosen_mask", "chosen_mask", form="bool", pad=0),
        Output("rejected_mask", "rejected_mask", form="bool", pad=0),
    ),
    by_record=True,
)
GRPO = TrainType(
    "grpo",
    ("prompts", "responses", "masks", "rewards"),
    (
        Output("prompts", "prompts"),
        Output("responses", "responses"),
        Output("masks", "masks", form="bool", pad=0),
        Output("rewards", "rewards", form="copy", pad=0),
    ),
    by_record=True,
)

TRAIN_TYPES = {kind.name: kind for kind in (SEQ, SFT, DPO, GRPO)}


def find_train_type(name: str) -> TrainType:
    """Return a kind of training by its name.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    if name not in TRAIN_TYPES:
        raise ConfigError(
            f"train_type must be one of {', '.join(TRAIN_TYPES)}, got {name!r}; choose one"
        )
    return TRAIN_TYPES[name]
