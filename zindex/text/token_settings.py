"""Settings of tokenised records: their kind, their lengths, and the ids around them."""

import os
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

from zindex.errors import ConfigError, check_choice
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_presets import ASTRAI, find_schema
from zindex.text.length_limits import LengthLimits
from zindex.text.record_recipe import POSITIONS, Recipe, recipe_of

#: The name of a preset, the YAML file of a schema, or a schema.
TrainType = str | os.PathLike[str] | RecordSchema
PositionIds = Literal["doc_reset", "none"]
SpecialInText = Literal["parse", "refuse"]
UnreadFields = Literal["report", "refuse"]

_TOKEN_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: Placeholder of a required id that the tokenizer does not define.
UNKNOWN_ID = -1
#: The text after each step of an answer by default.
STEP_SEPARATOR = "\n"


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Settings of records besides tokenizer and template."""

    #: The kind of record: the name of a preset, or a schema; a YAML file is read.
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
    #: Text after each step of an answer, encoded by itself.
    step_separator: str = STEP_SEPARATOR

    def __post_init__(self) -> None:
        for item in fields(self):
            if get_origin(item.type) is Literal:
                check_choice(item.name, getattr(self, item.name), get_args(item.type))
        check_choice("token_dtype (--token-dtype)", self.token_dtype, _TOKEN_DTYPES)
        declared = find_schema(self.train_type)
        object.__setattr__(self, "train_type", declared)
        own = [name for name in ("max_prompt", "max_answer") if name in self.limits.limits]
        if own and not self.recipe.has_prompt:
            raise ConfigError(
                f"{' and '.join(own)} must come with a kind that has a prompt, such as dpo or "
                f"grpo, got {declared.name!r}, which has none; use max_length (--max-length)"
            )
        if self.step_separator != STEP_SEPARATOR and not self.recipe.is_steps:
            raise ConfigError(
                "step_separator (--step-separator) must come with steps (prm), got "
                f"{declared.name!r}; leave it out"
            )

    @property
    def kind(self) -> str:
        """The name of the kind of record."""
        return find_schema(self.train_type).name

    @property
    def recipe(self) -> Recipe:
        """What records are made of; its schema has the dtypes of these settings."""
        return _find_recipe(find_schema(self.train_type), self.token_dtype, self.position_ids)

    @property
    def dtypes(self) -> dict[str, str]:
        """Fields of numbers of a record in order, with their dtypes."""
        layout = self.recipe.schema.layout
        return {name: dtype for name, dtype in layout.items() if dtype is not None}

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the records, as JSON values."""
        schema, limits = find_schema(self.train_type), self.limits
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("train_type", "token_dtype", "limits", "step_separator"):
            del found[name]  # the dtype is already in the fields of the store
        found |= {item.name: getattr(limits, item.name) for item in fields(limits)}
        found |= {"step_separator": self.step_separator} if self.recipe.is_steps else {}
        own = {} if schema in ASTRAI else {"schema": schema.to_json()}
        return {"train_type": schema.name} | own | found


@cache
def _find_recipe(schema: RecordSchema, token_dtype: str, positions: PositionIds) -> Recipe:
    """Return the recipe of a schema with the given dtype of ids, with positions or without."""
    kept = [
        replace(item, dtype=item.dtype or token_dtype) if item.values == "ids" else item
        for item in schema.fields
        if item.made_of != (POSITIONS,) or positions == "doc_reset"
    ]
    return recipe_of(replace(schema, fields=tuple(kept)))
