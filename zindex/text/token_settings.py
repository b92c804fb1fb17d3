"""Settings of tokenised records: their kind, their lengths, and the ids around them."""

from dataclasses import dataclass, field, fields
from typing import Literal, get_args, get_origin

from zindex.errors import ConfigError, check_choice
from zindex.store.records import LENGTH_SUFFIX
from zindex.text.length_limits import LengthLimits

TrainType = Literal["seq", "sft", "dpo", "grpo"]
PositionIds = Literal["doc_reset", "none"]
SpecialInText = Literal["parse", "refuse"]
UnreadFields = Literal["report", "refuse"]

_TOKEN_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: Placeholder of a required id that the tokenizer does not define.
UNKNOWN_ID = -1


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Settings of records besides tokenizer and template."""

    train_type: TrainType
    #: Maximum tokens of its sequences.
    limits: LengthLimits = field(default_factory=LengthLimits)
    #: Store the positions of a conversation's tokens, starting at 0; or none.
    position_ids: PositionIds = "doc_reset"
    token_dtype: str = "int32"
    #: Ids before and after each document, and after the text of a plain template.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether special tokens written in a text become special tokens, or are rejected.
    special_in_text: SpecialInText = "parse"
    #: Whether records with fields that nothing reads are counted, or rejected.
    unread_fields: UnreadFields = "report"

    def __post_init__(self) -> None:
        for item in fields(self):
            if get_origin(item.type) is Literal:
                check_choice(item.name, getattr(self, item.name), get_args(item.type))
        own = [name for name in ("max_prompt", "max_answer") if name in self.limits.limits]
        if own and not self.has_prompts:
            raise ConfigError(
                f"{' and '.join(own)} must come with pairs or groups (dpo or grpo), got "
                f"{self.train_type!r}; use max_length (--max-length)"
            )
        check_choice("token_dtype (--token-dtype)", self.token_dtype, _TOKEN_DTYPES)

    @property
    def has_prompts(self) -> bool:
        """Whether a record is a prompt with its answers."""
        return self.train_type in ("dpo", "grpo")

    @property
    def dtypes(self) -> dict[str, str]:
        """Fields of a record in order, with their dtypes."""
        ids = self.token_dtype
        if self.train_type == "seq":
            return {"sequence": ids}
        if self.train_type == "sft":
            positions = {"position_ids": "int32"} if self.position_ids == "doc_reset" else {}
            return {"sequence": ids, "loss_mask": "bool"} | positions
        if self.train_type == "dpo":
            masks = {"chosen_mask": "bool", "rejected_mask": "bool"}
            return {"chosen": ids, "rejected": ids} | masks
        return {
            "prompts": ids,
            "responses": ids,
            f"responses{LENGTH_SUFFIX}": "int64",
            "masks": "bool",
            f"masks{LENGTH_SUFFIX}": "int64",
            "rewards": "float32",
        }
