"""Schemas of the usual kinds of training, by name; those of AstrAI have its keys and tensors.

In windows, ``input_ids`` and ``position_ids`` are the values of the window; ``target_ids`` and
``loss_mask`` are shifted by one, because a mask says for each token whether it is a target.
"""

import os
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from zindex.errors import check_choice
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import IGNORED, Field

_TOKENS = Field("input_ids", "sequence", axes="token", made_of="document")
_TARGETS = Field("target_ids", "sequence", axes="token", shift=1, pad=IGNORED)
_DIALOGUE = Field("input_ids", "sequence", axes="token", made_of="dialogue")

SEQ = RecordSchema("seq", [_TOKENS, _TARGETS], ["windows"])
SFT = RecordSchema(
    "sft",
    [
        _DIALOGUE,
        _TARGETS,
        Field("loss_mask", values="weights", like="sequence", shift=1),
        Field(
            "position_ids",
            values="numbers",
            like="sequence",
            dtype="int32",
            tensor_dtype="int64",
            optional=True,
            made_of="positions",
        ),
    ],
    ["windows"],
)
DPO = RecordSchema(
    "dpo",
    [
        Field("chosen", axes="answer", made_of=("prompt", "chosen")),
        Field("rejected", axes="answer", made_of=("prompt", "rejected")),
        Field("chosen_mask", values="weights", like="chosen"),
        Field("rejected_mask", values="weights", like="rejected"),
    ],
    ["records", "windows"],
)
_prompt = partial(Field, axes="prompt", pads_left=True, mask="prompt_mask")
GRPO = RecordSchema(
    "grpo",
    [
        _prompt("prompts", made_of="prompt"),
        Field("responses", axes=("group", "response")),
        Field("masks", values="weights", like="responses"),
        Field("rewards", values="floats", like="responses", axes="group", mask="group_mask"),
    ],
    ["records", "windows"],
)
_COMPLETION = Field("completion", axes="completion")
_COMPLETION_MASK = Field("completion_mask", values="weights", like="completion")
KTO = RecordSchema(
    "kto",
    [
        _prompt("prompt"),
        _COMPLETION,
        _COMPLETION_MASK,
        Field("label", values="weights"),
    ],
)
REWARD = RecordSchema(
    "reward",
    [
        Field("chosen", axes="answer", mask="chosen_attention_mask", made_of=("prompt", "chosen")),
        Field(
            "rejected",
            axes="answer",
            mask="rejected_attention_mask",
            made_of=("prompt", "rejected"),
        ),
        Field("margin", values="floats", optional=True, default=0.0),
    ],
)
PRM = RecordSchema(
    "prm",
    [
        Field(
            "input_ids",
            "sequence",
            axes="token",
            mask="attention_mask",
            made_of=("prompt", "steps[]"),
        ),
        Field("step_mask", values="weights", like="sequence"),
        Field("step_labels", values="floats", like="sequence", made_of="step_labels[]"),
    ],
)
PROMPTS = RecordSchema(
    "prompts",
    [
        _prompt("prompts", made_of="prompt"),
        Field("ground_truth", values="text", optional=True),
    ],
    keeps_fields=True,
)
DISTILL = RecordSchema(
    "distill",
    [
        _prompt("prompt"),
        _COMPLETION,
        _COMPLETION_MASK,
        Field("topk_ids", like="completion", axes=("completion", "choice"), mask="topk_mask"),
        Field("topk_logprobs", values="floats", like="topk_ids"),
    ],
)

ASTRAI = (SEQ, SFT, DPO, GRPO)
PRESETS = {schema.name: schema for schema in (*ASTRAI, KTO, REWARD, PRM, PROMPTS, DISTILL)}
#: Keys that a schema of AstrAI names: a dataset of another kind leaves them out.
KNOWN_KEYS = frozenset(key for schema in ASTRAI for key in schema.by_key)
#: Keys of token ids, of stores that do not say what they hold.
TOKEN_KEYS = frozenset(key for schema in PRESETS.values() for key in schema.token_keys)


def find_schema(kind: str | os.PathLike[str] | RecordSchema) -> RecordSchema:
    """Return a schema by its name or YAML file, or the given one.

    Raises
    ------
    ConfigError
        If there is no such preset, or the file is invalid.
    """
    if isinstance(kind, RecordSchema):
        return kind
    if not isinstance(kind, str) or kind.endswith((".yaml", ".yml")):
        return RecordSchema.read(kind)
    check_choice("train_type", kind, PRESETS)
    return PRESETS[kind]


def find_declared(spec: Mapping[str, Any]) -> RecordSchema | None:
    """Return the schema of the records of a store, from its description; None if it has none.

    Raises
    ------
    ConfigError
        If the description has an invalid schema.
    """
    own = spec.get("import")
    if not isinstance(own, Mapping):
        return None
    if own.get("schema") is not None:
        return RecordSchema.from_json(own["schema"], "the schema of a store")
    return PRESETS.get(str(own.get("train_type")))


def _find_kinds(spec: Mapping[str, Any]) -> list[RecordSchema]:
    """Return the kind of records of a store if a user declared it, otherwise all presets."""
    declared = find_declared(spec)
    is_preset = declared is None or declared is PRESETS.get(declared.name)
    return [*PRESETS.values()] if declared is None or is_preset else [declared]


def find_token_keys(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of token ids of a store, from its description: of its own kind of records.

    Raises
    ------
    ConfigError
        If the description has an invalid schema.
    """
    return frozenset().union(*(schema.token_keys for schema in _find_kinds(spec)))


def find_masks(spec: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return the field that masks each masked field of a store.

    Parameters
    ----------
    spec
        The description of the store. Weights mask the field that they are ``like``; if the store
        has no kind of a user's own, ``F_mask`` masks any other field F.
    names
        The fields of the store.

    Raises
    ------
    ConfigError
        If the description has an invalid schema.

    Examples
    --------
    >>> find_masks({}, ["sequence", "loss_mask", "text", "text_mask"])
    {'sequence': 'loss_mask', 'text': 'text_mask'}
    """
    kinds = _find_kinds(spec)
    pairs = [
        (item.like, key)
        for schema in kinds
        for key, item in schema.by_key.items()
        if item.values == "weights" and item.like and item.axes == schema.by_key[item.like].axes
    ]
    if len(kinds) > 1:
        pairs += [(name, f"{name}_mask") for name in names]
    found: dict[str, str] = {}
    for field, mask in pairs:
        if field in names and mask in names:
            found.setdefault(field, mask)
    return found
